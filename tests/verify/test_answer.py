import pytest

from lightning_rlvr.verify.answer import final_answer, last_line, last_number


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"\boxed{57}. Once more: the final answer is \boxed{57}.", "57"),
        (r"\boxed{57} or \boxed{57}", "57"),
        (r"$\boxed{1}$, $\boxed{2}$ and $\boxed{3}$", "1, 2, 3"),
        (r"x = \boxed{3}, so y = \boxed{4}", "4"),
        (r"$\fbox{14}$", "14"),
        (r"\boxed {14}", "14"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\boxed{a \\}", r"a \\"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{3 and then \boxed{4}", "4"),
        (r"<think>\boxed{9}?</think> It is \boxed{8}.", "8"),
        (r"hidden start </think> It is \boxed{8}.", "8"),
        (r"<think>\boxed{9}</think> I do not know.", None),
        (r"<think>\boxed{9} and so on", None),
        (r"\boxed{3} and later \boxed{4", None),
        (r"\boxed{3}, finally \boxed{}", None),
        (r"Answer: 7, that is \boxed{ }", None),
        ("Answer: 3\nAnswer: 4", "4"),
        ("**Final Answer:** **64**.", "64"),
        ("Answer: $35\\%$", "35\\%"),
        ("Answer:", None),
        ("It is 12.", None),
        ("", None),
    ],
)
def test_final_answer_is_the_last_one_stated(completion, answer):
    assert final_answer(completion, truncated=False) == answer


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("Answer: 12", None),
        ("Answer: 12\nBecause", "12"),
        (r"It is \boxed{12}. Beca", "12"),
        (r"It is \boxed{12", None),
        ("x + y = 12, and now", None),
    ],
)
def test_cut_off_answers_do_not_count(completion, answer):
    assert final_answer(completion, truncated=True) == answer


def test_last_line_is_the_last_that_is_not_blank():
    assert last_line("<think>5</think>\n6\n 7 \n\n", truncated=False) == "7"
    assert last_line("6\n7", truncated=True) is None
    assert last_line(" \n", truncated=False) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("97-12", "12"),
        ("x = -5", "-5"),
        ("1,250,000.5 dollars", "1250000.5"),
        ("about 3.14.", "3.14"),
        ("none", None),
        ("", None),
        ("<think>7", None),
        ("7</think> so 8", "8"),
    ],
)
def test_last_number_reads_one_number_and_no_operator(text, number):
    assert last_number(text, truncated=False) == number
    assert last_number(text, truncated=True) is None
