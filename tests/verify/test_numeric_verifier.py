import pytest

from lightning_rlvr.verify.base import VERIFIERS, Attempt
from lightning_rlvr.verify.numeric import NumericVerifier


def verdict(gold, answer, tolerance=None, **settings):
    columns = {"answer": gold, "tolerance": tolerance}
    attempt = Attempt(
        prompt="", completion=rf"\boxed{{{answer}}}", completion_ids=(), truncated=False, columns=columns
    )
    return NumericVerifier(**settings).verify([attempt])[0]


def test_registered():
    assert VERIFIERS["numeric"] is NumericVerifier


@pytest.mark.parametrize(
    ("gold", "answer", "settings", "status"),
    [
        (14.0, "14", {}, "correct"),
        (r"\frac{\pi}{2}", "1.570796", {}, "correct"),
        ("1/3", "0.333", {}, "wrong"),
        ("1/3", "0.333", {"atol": 1e-3}, "correct"),
        ("1000", "1009", {"rtol": 0.01}, "correct"),
        ("1000", "1011", {"rtol": 0.01}, "wrong"),
        ("-1000", "-1009", {"rtol": 0.01}, "correct"),
        ("0", "0.000002", {"rtol": 0.5}, "wrong"),  # nothing is relative to 0
        ("3", "3", {"atol": 0}, "correct"),
        ("3, 4", "4, 3.0", {}, "correct"),
        ("3, 4", "3", {}, "wrong"),
        ("x = 3", "3", {}, "correct"),
        (r"35\%", "0.35", {}, "correct"),
        ("100", "100 miles per hour", {}, "correct"),
        (r"5\text{ kg}", "5 km", {}, "wrong"),
        ("5,000,000", r"5\text{ million}", {}, "correct"),
        ("11", "1011_2", {}, "correct"),
        ("12:30", "24:60", {}, "wrong"),
    ],
)
def test_numbers_within_the_error_are_correct(gold, answer, settings, status):
    assert verdict(gold, answer, **settings).status == status


@pytest.mark.parametrize("answer", ["x", "2i", r"\infty", r"\frac{1}{0}", "(1,2)", r"\text{three}"])
def test_what_is_no_real_number_is_wrong(answer):
    found = verdict("3", answer)
    assert found.status == "wrong"
    assert found.reason.endswith("is not a number") or "is not within" in found.reason


def test_the_tolerance_of_a_row_takes_the_place_of_atol():
    assert verdict("3", "3.2", tolerance="0.5").status == "correct"
    assert verdict("3", "3.2", tolerance=0, atol=1.0).status == "wrong"


def test_a_gold_that_is_no_number_is_a_data_error():
    assert NumericVerifier().check_columns({"answer": "x+1"}) == "`answer` 'x+1' does not parse (x+1 is not a number)"
    assert NumericVerifier().check_columns({"answer": "1e-5"}) is None


def test_settings_are_checked():
    for name in ("rtol", "atol"):
        with pytest.raises(ValueError, match=f"`{name}` must be a number of at least 0, got -1"):
            NumericVerifier(**{name: -1})
