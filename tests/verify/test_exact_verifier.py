import pytest

from lightning_rlvr.verify.base import VERIFIERS, Attempt
from lightning_rlvr.verify.exact import ExactVerifier


def status(verifier, completion, gold="75", truncated=False):
    attempt = Attempt(
        prompt="", completion=completion, completion_ids=(), truncated=truncated, columns={"answer": gold}
    )
    return verifier.verify([attempt])[0].status


def test_registered():
    assert VERIFIERS["exact"] is ExactVerifier


@pytest.mark.parametrize(
    ("options", "completion", "expected"),
    [
        ({}, r"7+8=15,\boxed{75}", "correct"),
        ({}, r"7+8=15,\boxed{57}", "wrong"),
        ({}, "75", "no_answer"),
        ({"extract": "last_line"}, "thus\n75\n", "correct"),
        ({"extract": "last_line"}, "75\nthus\n", "wrong"),
        ({"extract": "all"}, " 75 ", "correct"),
        ({"extract": "all"}, "It is 75", "wrong"),
        ({"extract": "all"}, "  ", "no_answer"),
        ({"extract": "all", "after": ";"}, "7+8=15,1+2+4=7;75", "correct"),
        ({"extract": "all", "after": ";"}, "75;57", "wrong"),
        ({"extract": "all", "after": ";"}, "75", "no_answer"),
        ({"extract": "all", "after": ";"}, "75;", "no_answer"),
        ({"after": "="}, r"\boxed{x = 75}", "correct"),
    ],
)
def test_answer_is_compared_letter_by_letter(options, completion, expected):
    assert status(ExactVerifier(**options), completion) == expected


@pytest.mark.parametrize("options", [{"extract": "all"}, {"extract": "last_line"}, {"extract": "all", "after": ";"}])
def test_cut_off_extract_is_no_answer(options):
    assert status(ExactVerifier(**options), "1;75", truncated=True) == "no_answer"


def test_white_space_is_all_that_is_forgiven():
    assert status(ExactVerifier(extract="all"), "a  b\nc", gold="a b c") == "correct"
    assert status(ExactVerifier(extract="all"), "A b c", gold="a b c") == "wrong"


def test_alternatives_and_solutions_are_read():
    assert status(ExactVerifier(), r"\boxed{B}", gold=["A", "B"]) == "correct"
    assert status(ExactVerifier(), r"\boxed{A, B}", gold=["A", "B"]) == "wrong"
    assert status(ExactVerifier(), r"\boxed{75}", gold="50 + 25 = 75\n#### 75") == "correct"


@pytest.mark.parametrize(
    ("options", "completion", "reason"),
    [
        ({}, r"\boxed{75}", r"last \boxed{}; the same text"),
        ({}, r"\boxed{57}", r"last \boxed{}; not the same text"),
        ({}, "75", "no box and no Answer: line"),
        ({"extract": "all", "after": ";"}, "1;75", "completion, after ';'; the same text"),
        ({"extract": "all", "after": ";"}, "75", "completion without ';'"),
    ],
)
def test_reasons_name_the_rules(options, completion, reason):
    attempt = Attempt(prompt="", completion=completion, completion_ids=(), truncated=False, columns={"answer": "75"})
    assert ExactVerifier(**options).verify([attempt])[0].reason == reason


def test_golds_are_checked():
    verifier = ExactVerifier()
    assert verifier.check_columns({"answer": 0}) is None
    assert verifier.check_columns({"answer": " "}) == "`answer` is empty"
    assert verifier.check_columns({}) == "`columns` must hold 'answer', got none"


def test_bad_settings_name_the_choices():
    with pytest.raises(
        ValueError, match="`extract` must be one of boxed, last_line, last_number, all, got 'lastline'"
    ):
        ExactVerifier(extract="lastline")
    with pytest.raises(ValueError, match="`after` must be some text"):
        ExactVerifier(after="")
