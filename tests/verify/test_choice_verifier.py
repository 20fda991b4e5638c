import numpy as np
import pytest

from lightning_rlvr.verify.base import VERIFIERS, Attempt
from lightning_rlvr.verify.choice import ChoiceVerifier, chosen_letter

CHOICES = ["10", "12", r"$12\text{ C}$", "A dog"]


def verdict(completion, gold="B", truncated=False, **columns):
    row = {"answer": gold, **columns}
    attempt = Attempt(prompt="", completion=completion, completion_ids=(), truncated=truncated, columns=row)
    return ChoiceVerifier().verify([attempt])[0]


def complaint(**columns):
    return ChoiceVerifier().check_columns(columns)


def test_registered():
    assert VERIFIERS["choice"] is ChoiceVerifier


@pytest.mark.parametrize(
    "answer",
    [
        "B", "b", "(B)", "[B]", "{B}", "B.", "B)", "(b).", "B) 12", "(B) 12", "B: 12", r"B.\ 12", r"\text{B}",
        r"\textbf{(B)}", r"\textbf{(B)}\ 12", r"\mathrm{B}", r"(\text{B})", r"\text{\textbf{B}}", "option B",
        "Option (B)", "choice b", "Answer: B", "$B$", r"\(B\)", "**B**", " B\n",
    ],
)  # fmt: skip
def test_one_letter_is_read_however_it_is_written(answer):
    assert chosen_letter(answer) == chosen_letter(answer, CHOICES) == "B"


@pytest.mark.parametrize(
    "answer",
    [
        "A or B or C", "A, B", "A and B", "B, C", "A/B", "AB", "(A)(B)", "B) 12 or C) 15", "B. C. D.", "not B",
        "B. or c", "B) (a) (c) (d)", "B) a) c)", "B, or d", "B because it fits", "optionB", "",
        " ", "()", "option", "12 or B", "?!",
    ],
)  # fmt: skip
def test_several_letters_or_none_are_no_choice(answer):
    assert chosen_letter(answer) is None
    assert chosen_letter(answer, CHOICES) is None


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("12", "B"),
        (" 12 .", "B"),
        ("a  DOG", "D"),
        ("12 C", "C"),
        (r"12\text{ C}", "C"),
        ("D) A dog", "D"),
        ("C) 12 C", "C"),
        ("B) twelve", "B"),
        ("B) a dozen, or so f(a)", "B"),
        (r"\textbf{(C)}\ 12 C", "C"),
        ("B) 10", None),
        ("B) 12 or 10", None),
        ("D) A cat", None),
        ("E", None),
        ("dog", None),
    ],
)
def test_text_of_a_choice_names_it(answer, letter):
    assert chosen_letter(answer, CHOICES) == letter


def test_text_that_looks_like_a_letter_of_no_choice_is_text():
    assert chosen_letter("x", ["y", "x"]) == "B"
    assert chosen_letter("E. coli", ["yeast", "E. coli"]) == "B"
    assert chosen_letter("A. niger", ["yeast", "A. niger"]) == "B"


def test_text_of_two_choices_names_neither():
    assert chosen_letter("12", ["12", "12"]) is None


@pytest.mark.parametrize(
    ("gold", "columns"),
    [
        ("B", {}),
        ("(B)", {}),
        ("b", {}),
        (["B"], {}),
        (r"The sides are equal: \boxed{\textbf{(B)}\ 12}", {}),
        ("B", {"choices": []}),
        ("B", {"choices": None, "options": CHOICES}),
        ("12", {"choices": CHOICES}),
        (1, {"choices": CHOICES}),
        (1, {"options": CHOICES}),
        (np.int64(1), {"choices": CHOICES}),
        (True, {"choices": ["False", "True"]}),
        ("yes", {"choices": ["No", "Yes"]}),
    ],
)
def test_gold_is_letter_text_or_index(gold, columns):
    assert complaint(answer=gold, **columns) is None
    assert verdict(r"So \boxed{B}.", gold, **columns).status == "correct"
    assert verdict(r"So \boxed{A}.", gold, **columns).status == "wrong"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "`columns` must hold 'answer', got none"),
        ({"answer": "Paris"}, "`answer` must be the letter of a choice, got 'Paris'"),
        ({"answer": "A or B"}, "`answer` must be the letter of a choice, got 'A or B'"),
        ({"answer": ["A", "B"]}, "`answer` must be the letter of a choice, got ['A', 'B']"),
        ({"answer": 1}, "`answer` must be the letter of a choice, got 1"),
        (
            {"answer": "C", "choices": ["x", "y"]},
            "`answer` must be the letter, text or index (from 0) of one of 2 choices, got 'C'",
        ),
        (
            {"answer": 2, "choices": ["x", "y"]},
            "`answer` must be the letter, text or index (from 0) of one of 2 choices, got 2",
        ),
        ({"answer": -1, "choices": ["x", "y"]}, "`answer` must be the letter, text or index (from 0) of one of 2"),
        ({"answer": "A", "choices": ["B", "A"]}, "`answer` must name one choice, got 'A', which may be A or B"),
        ({"answer": 0, "choices": [1, 0]}, "`answer` must name one choice, got 0, which may be A or B"),
        ({"answer": "A", "choices": "['x', 'y']"}, "`choices` must be a list of texts, got \"['x', 'y']\""),
        ({"answer": "A", "choices": [["x"]]}, "`choices` must be a list of texts, got [['x']]"),
    ],
)
def test_gold_that_names_no_choice_is_reported_and_never_scores(columns, message):
    assert complaint(**columns).startswith(message)
    if "answer" in columns:
        row = {"gold" if name == "answer" else name: value for name, value in columns.items()}
        assert verdict(rf"\boxed{{{columns['answer']}}}", **row).status == "error"


def test_listing_the_options_is_wrong():  # VX-08
    completions = [r"\boxed{A or B or C}", r"\boxed{B}", r"either \boxed{A} or \boxed{B}"]
    assert [verdict(text).status for text in completions] == ["wrong", "correct", "wrong"]


def test_letter_beyond_the_last_choice_is_wrong():
    assert verdict(r"\boxed{E}", "B", choices=CHOICES).status == "wrong"


def test_answer_line_counts_and_a_cut_off_one_does_not():
    assert verdict("I think so.\n**Answer:** (B)").status == "correct"
    assert verdict("Answer: B", truncated=True).status == "no_answer"
    assert verdict("It is B.").status == "no_answer"


def test_reason_says_what_was_read():
    assert verdict(r"\boxed{C}").reason == r"last \boxed{}; names C; the gold choice is B"
    assert verdict("Answer: A, B").reason == "last Answer: line; names no choice, or several; the gold choice is B"
    assert verdict("").reason == "no box and no Answer: line"


def test_answer_is_where_the_setting_says():
    attempts = [
        Attempt(prompt="", completion=text, completion_ids=(), truncated=False, columns={"answer": "B"})
        for text in ("(B)", "It is\nB", "B\nI think")
    ]
    statuses = {w: [v.status for v in ChoiceVerifier(extract=w).verify(attempts)] for w in ("all", "last_line")}
    assert statuses == {"all": ["correct", "wrong", "wrong"], "last_line": ["correct", "correct", "wrong"]}
    with pytest.raises(ValueError, match="`extract` must be one of boxed, last_line, last_number, all, got 'last'"):
        ChoiceVerifier(extract="last")


@pytest.mark.parametrize("unit", [r"\text{", "{", "(", "A) ", r"\quad"])
def test_long_answers_take_no_time(unit):
    assert chosen_letter(unit * 50_000, CHOICES) is None
