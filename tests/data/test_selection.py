import pytest

from lightning_rlvr.data.selection import Selection
from lightning_rlvr.data.sources import Problem, SumsSource
from lightning_rlvr.data.templates import PromptTemplate


def choose(tokenizer, *problems):
    problems = [Problem(id=name, problem=text, columns={"answer": "1"}, task="sums") for name, text in problems]
    selection = Selection(
        {"sums": SumsSource()}, tokenizer, PromptTemplate(), max_prompt_length=9, skip_bad_golds=False
    )
    return selection.choose(problems, "test", ("sums",), None, 0)


def test_two_problems_of_one_id_are_refused(plain_tokenizer):
    assert len(choose(plain_tokenizer, ("sums/1", "1"), ("sums/2", "1"))) == 2
    message = r"problems must have different ids, got 'sums/1' again from SumsSource \(task sums\)"
    with pytest.raises(ValueError, match=message):
        choose(plain_tokenizer, ("sums/1", "1"), ("sums/2", "2"), ("sums/1", "3"))


def test_problem_that_cannot_be_shown_is_named(plain_tokenizer):
    with pytest.raises(ValueError, match=r"^problem sums/2: the prompt must be Unicode"):
        choose(plain_tokenizer, ("sums/1", "1"), ("sums/2", "\udc00"))
