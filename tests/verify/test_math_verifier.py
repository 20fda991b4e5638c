import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lightning_rlvr.verify.base import VERIFIERS, Attempt
from lightning_rlvr.verify.math import MathVerifier


def attempt(completion, gold, truncated=False):
    return Attempt(prompt="", completion=completion, completion_ids=(), truncated=truncated, columns={"answer": gold})


def status(gold, completion, truncated=False):
    return MathVerifier().verify([attempt(completion, gold, truncated)])[0].status


def boxed(gold, answer):
    return status(gold, rf"Hence \boxed{{{answer}}}.")


def test_registered():
    assert VERIFIERS["math"] is MathVerifier


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\frac{7}{12}", r"\frac{14}{24}"),
        (r"-\frac{2}{9}", r"\frac{-2}{9}"),
        ("3/4", r"\dfrac{3}{4}"),
        (r"\frac{1}{8}", "0.125"),
        (".25", r"\frac{1}{4}"),
        ("8", "8."),
        ("12500", r"12\,500"),
        ("1,204,000", "1204000"),
        (r"\frac{1}{3}", "0.333333333333"),
        ("80", "80.0"),
        ("044", "44"),
        (r"15\text{ cm}^2", "15"),
        (r"45^\circ", "45"),
        (r"\$12.50", "12.50"),
        ("0,7", "0, 7"),
        (r"1-\frac{1}{\mathrm{e}}", r"1-\frac{1}{e}"),
        (r"\pm 4", "-4, 4"),
        ("x=7", "7"),
        ("7", "x = 7"),
        (r"2\sqrt{3}", r"\sqrt{12}"),
        ("$6$", "6"),
        (6, "6"),
        (["6"], "6"),
        (27.0, "27"),
    ],
)
def test_equal_values_are_correct_however_they_are_written(gold, answer):
    assert boxed(gold, answer) == "correct"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\frac{7}{12}", r"\frac{7}{13}"),
        ("3", "3/4"),
        (r"\frac{1}{2^{60}}", r"\frac{1}{2^{61}}"),
        (r"\frac{2^{300}+1}{3 \cdot 2^{301}}", r"\frac{1}{6}"),
        (r"\pi", "3.14"),
        ("0,7", "7"),
        ("[2,5)", "(2,5]"),
        (r"1-\frac{1}{\mathrm{e}}", r"1+\frac{1}{\mathrm{e}}"),
        (r"\infty", r"-\infty"),
        ("-3", "3"),
        (r"\text{Monday}", r"\text{Sunday}"),
    ],
)
def test_unequal_values_are_wrong(gold, answer):
    assert boxed(gold, answer) == "wrong"


def test_gold_comes_first():  # VR-07: the library is asymmetric on purpose
    assert boxed("x<4", r"(-\infty,4)") == "correct"


def test_bare_golds_are_read():  # VR-09
    assert boxed(r"\frac{63}{400}", r"\frac{64}{400}") == "wrong"
    assert boxed("6", "6") == "correct"


def test_nearby_boxes_are_not_merged():  # VX-02
    text = r"My first guess was \boxed{15}. But no: the answer is \boxed{12}."
    assert (status("12", text), status("15", text)) == ("correct", "wrong")


def test_text_after_the_box_is_ignored():  # VX-04
    verdict = MathVerifier().verify([attempt(r"<answer>The sum is \(\boxed{81}\).</answer>", "81")])[0]
    assert (verdict.answer, verdict.reward) == ("81", 1.0)


def test_truncated_trace_has_no_answer():  # VX-06
    assert status("12", "... therefore x + y = 12, and now we must", truncated=True) == "no_answer"


def test_listing_the_options_is_wrong():  # VX-08
    completions = [r"\boxed{A or B or C}", r"\boxed{B}", r"either \boxed{A} or \boxed{B}"]
    assert [status("B", text) for text in completions] == ["wrong", "correct", "wrong"]


@pytest.mark.parametrize("gold", ["", "  ", r"2, 4, \ldots, 2n", "?!"])
def test_gold_that_does_not_parse_is_reported_and_never_scores(gold):
    assert MathVerifier().check_columns({"answer": gold}) is not None
    verdict = MathVerifier().verify([attempt(rf"\boxed{{{gold or 4}}}", gold)])[0]
    assert verdict.status in {"error", "no_answer"}
    assert verdict.reward != 1.0


def test_check_columns_names_what_is_missing():
    assert MathVerifier().check_columns({"solution": "4"}) == "`columns` must hold 'answer', got solution"
    assert MathVerifier().check_columns({"answer": r"\frac12"}) is None


def test_malformed_answer_is_wrong_not_unscored():
    assert boxed("4", r"\frac{") == "no_answer"
    assert boxed("4", r"\frac{}{") == "no_answer"
    assert boxed("4", "?!") == "wrong"


def test_one_failure_of_any_base_class_stays_in_its_row(monkeypatch):  # VR-03
    import math_verify

    class Alarm(BaseException):
        pass

    def verify(gold, answer, **options):
        if answer == [3]:
            raise Alarm("time is up")
        return gold == answer

    monkeypatch.setattr(math_verify, "verify", verify)
    verdicts = MathVerifier().verify([attempt(rf"\boxed{{{i}}}", "5") for i in range(8)])
    assert [verdict.status for verdict in verdicts] == ["wrong"] * 3 + ["error", "wrong", "correct", "wrong", "wrong"]
    assert verdicts[3].reward != verdicts[3].reward
    assert verdicts[3].reason == "Alarm: time is up"


def test_keyboard_interrupt_is_not_a_verdict(monkeypatch):
    import math_verify

    def verify(gold, answer, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(math_verify, "verify", verify)
    with pytest.raises(KeyboardInterrupt):
        status("5", r"\boxed{5}")


def test_works_outside_the_main_thread():  # VR-01
    def run(_):
        assert threading.current_thread() is not threading.main_thread()
        return boxed(r"\frac{1}{2}", "0.5")

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(8))) == ["correct"] * 8
