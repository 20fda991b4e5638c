import math
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lightning_rlvr.verify import pool
from lightning_rlvr.verify.base import VERIFIERS, Attempt
from lightning_rlvr.verify.equality import Ruling
from lightning_rlvr.verify.math import MathVerifier, tolerance_of
from lightning_rlvr.verify.pool import Failure

TOWER = "9^{9^{9^{9}}}"


def attempt(completion, gold, truncated=False, **columns):
    return Attempt(
        prompt="", completion=completion, completion_ids=(), truncated=truncated, columns={"answer": gold, **columns}
    )


def verdict(gold, completion, *, truncated=False, verifier=None, **columns):
    return (verifier or MathVerifier()).verify([attempt(completion, gold, truncated, **columns)])[0]


def boxed(gold, answer, **columns):
    return verdict(gold, rf"Hence \boxed{{{answer}}}.", **columns).status


def test_registered():
    assert VERIFIERS["math"] is MathVerifier


@pytest.mark.parametrize(
    ("gold", "answer", "status"),
    [
        (r"\frac{1}{2}", "0.5", "correct"),
        (6, "6", "correct"),
        (27.0, "27", "correct"),
        (np.float64(27), "27", "correct"),
        (4.5e33, r"4.5 \times 10^{33}", "correct"),
        ("025", "25", "correct"),
        (["6"], "6", "correct"),
        (["6", "7"], "7", "correct"),  # alternatives
        (["6", "7"], "6, 7", "wrong"),
        (["$69$,$84$"], "84, 69", "correct"),  # one gold with two parts
        (["$69$,$84$"], "69", "wrong"),
        (r"So $x = \boxed{12}$.", "12", "correct"),
        ("3 * 4 = <<3*4=12>>12\n#### 12", "12", "correct"),
        ("6 + 6 = 12\n#### 1,012", "1012", "correct"),
        ("3", "4", "wrong"),
    ],
)
def test_golds_of_all_kinds_are_read(gold, answer, status):
    assert MathVerifier().check_columns({"answer": gold}) is None
    assert boxed(gold, answer) == status


def test_gold_comes_first():  # VR-07
    assert boxed("x<4", r"(-\infty,4)") == "correct"


def test_bare_golds_are_read():  # VR-09
    assert boxed(r"\frac{63}{400}", r"\frac{64}{400}") == "wrong"
    assert boxed("6", "6") == "correct"


def test_nearby_boxes_are_not_merged():  # VX-02
    text = r"My first guess was \boxed{15}. But no: the answer is \boxed{12}."
    assert [verdict(gold, text).status for gold in ("12", "15")] == ["correct", "wrong"]


def test_text_after_the_box_is_ignored():  # VX-04
    found = verdict("81", r"<answer>The sum is \(\boxed{81}\).</answer>")
    assert (found.answer, found.reward) == ("81", 1.0)


def test_truncated_trace_has_no_answer():  # VX-06
    assert verdict("12", "... therefore x + y = 12, and now we must", truncated=True).status == "no_answer"


def test_listing_the_options_is_wrong():  # VX-08
    completions = [r"\boxed{A or B or C}", r"\boxed{B}", r"either \boxed{A} or \boxed{B}"]
    assert [verdict("B", text).status for text in completions] == ["wrong", "correct", "wrong"]


@pytest.mark.parametrize(
    ("extract", "completion", "status"),
    [
        ("boxed", "It is 12.", "no_answer"),
        ("last_line", "Hence\n12.0", "correct"),
        ("last_number", "Hence 12.0 it is.", "correct"),
        ("all", "24/2", "correct"),
    ],
)
def test_the_answer_is_where_extract_says(extract, completion, status):
    assert verdict("12", completion, verifier=MathVerifier(extract=extract)).status == status


def test_reasons_name_the_rules_that_extracted_and_decided():
    assert verdict("1/2", r"\boxed{0.5}").reason == r"last \boxed{}; equal as mathematics"
    assert verdict("1/2", "Answer: 0.6").reason == "last Answer: line; not equal as mathematics"
    assert verdict("1/3", "Answer: 0.3", tolerance=0.1).reason == "last Answer: line; 0.3 is within 0.1 of 1/3"
    assert verdict("1/2", "0.5").reason == "no box and no Answer: line"


@pytest.mark.parametrize(
    ("tolerance", "answer", "status"),
    [
        (0.1, "3.2", "correct"),
        ("1e-1", "3.2", "correct"),
        ("1e-2", "3.2", "wrong"),
        (0, "3.14", "wrong"),
        (0, r"\pi", "correct"),
        (None, "3.14", "wrong"),
        ("", "3.14", "wrong"),
        ("", r"\pi", "correct"),
    ],
)
def test_the_tolerance_of_a_row_is_an_absolute_error(tolerance, answer, status):
    assert MathVerifier().check_columns({"answer": r"\pi", "tolerance": tolerance}) is None
    assert boxed(r"\pi", answer, tolerance=tolerance) == status


@pytest.mark.parametrize("tolerance", [-1, "x", float("nan"), float("inf"), [0.1], True])
def test_a_tolerance_that_is_no_size_is_a_data_error(tolerance):
    complaint = MathVerifier().check_columns({"answer": "3", "tolerance": tolerance})
    assert complaint.startswith("`tolerance` must be a number of at least 0, got ")
    found = verdict("3", r"\boxed{3}", tolerance=tolerance)
    assert (found.status, found.reason) == ("error", rf"last \boxed{{}}; {complaint}")


def test_gold_that_does_not_parse_is_compared_as_text():
    gold = r"2, 4, \ldots, 2n"
    assert MathVerifier().check_columns({"answer": gold}) is None
    assert [boxed(gold, answer) for answer in (r"2,4,\ldots,2n", r"2, 5, \ldots, 3n-1")] == ["correct", "wrong"]


def test_boxes_joined_in_markup_are_parts():
    text = r"\(\boxed{1}\) or \(\boxed{2}\)"
    assert [verdict(gold, text).status for gold in ("2", "1, 2")] == ["wrong", "correct"]


def test_tolerance_may_be_missing():
    assert tolerance_of({"answer": "3"}) is None


@pytest.mark.parametrize("gold", ["", "  ", r"\frac{1}{", "?!", "(1,2", ["1", "?!"], r"so \boxed{}"])
def test_gold_that_cannot_be_read_is_reported_and_never_scores(gold):
    assert MathVerifier().check_columns({"answer": gold}).startswith("`answer` ")
    found = verdict(gold, rf"\boxed{{{gold if isinstance(gold, str) and gold.strip() else 4}}}")
    assert found.status in {"error", "no_answer"}
    assert found.reward != 1.0


def test_a_gold_that_hangs_is_a_data_error():
    complaint = MathVerifier(time_limit=0.5).check_columns({"answer": TOWER})
    assert complaint == f"`answer` '{TOWER}' does not parse within 0.5 s"


def test_a_gold_that_is_slow_beside_others_is_asked_again_alone(monkeypatch):
    asked = []

    def run(function, items, *, time_limit):
        asked.append(len(items))
        busy = [Failure(status="timeout", reason="busy")] * len(items)
        return busy if len(items) > 1 else pool.run(function, items, time_limit=time_limit)

    monkeypatch.setattr("lightning_rlvr.verify.math.run", run)
    golds = ["1/2", r"\sqrt{2}", "?!"]
    complaints = MathVerifier().check_rows([{"answer": gold} for gold in golds])
    assert complaints[:2] == [None, None]
    assert complaints[2].startswith("`answer` '?!' does not parse (")
    assert asked == [6] + [1] * 6
    verdicts = MathVerifier().verify([attempt(rf"\boxed{{{i}}}", "7") for i in range(3)])
    assert [one.status for one in verdicts] == ["timeout"] * 3, "a step takes no longer than the limit allows"
    assert asked == [6] + [1] * 6 + [3]


def test_check_columns_names_what_is_missing():
    assert MathVerifier().check_columns({"solution": "4"}) == "`columns` must hold 'answer', got solution"
    assert MathVerifier().check_columns({"answer": r"\frac12"}) is None


def test_malformed_answer_is_wrong_not_unscored():
    assert boxed("4", r"\frac{") == "no_answer"
    assert boxed("4", r"\frac{}{") == "no_answer"
    assert boxed("4", "?!") == "wrong"


def test_answers_that_hang_time_out_alone():  # VR-05
    verifier = MathVerifier(time_limit=0.5)
    rows = [attempt(rf"\boxed{{{TOWER}-{i}}}", "7") for i in range(4)]
    rows += [attempt(r"\boxed{7}", "7"), attempt(r"\boxed{8}", "7"), attempt("7", "7")]
    start = time.monotonic()
    verdicts = verifier.verify(rows)
    assert time.monotonic() - start < 5
    assert [one.status for one in verdicts] == ["timeout"] * 4 + ["correct", "wrong", "no_answer"]
    assert all(math.isnan(one.reward) for one in verdicts[:4])
    assert verdicts[0].reason == r"last \boxed{}; no result within 0.5 s"


@pytest.mark.parametrize(
    "answer", ["((99999!)!)!", "9" * 5000, "(" * 900 + "1" + ")" * 900, "(" * 400 + "1" + ",2)" * 400]
)
def test_heavy_answers_are_anything_but_correct_in_time(answer):
    start = time.monotonic()
    assert verdict("7", rf"\boxed{{{answer}}}", verifier=MathVerifier(time_limit=0.5)).status != "correct"
    assert time.monotonic() - start < 5


def test_an_alternative_that_hangs_does_not_hide_the_right_one():
    verifier = MathVerifier(time_limit=0.5)
    assert verdict([TOWER, "7"], r"\boxed{7}", verifier=verifier).status == "correct"
    assert verdict([TOWER, "7"], r"\boxed{8}", verifier=verifier).status == "timeout"


class Alarm(BaseException):
    pass


def alarming(item):
    if item.answer == "3":
        raise Alarm("time is up")
    return Ruling(equal=item.answer == item.gold, reason="the same")


def test_one_failure_of_any_base_class_stays_in_its_row(monkeypatch):  # VR-03
    monkeypatch.setattr("lightning_rlvr.verify.math.compare", alarming)
    verdicts = MathVerifier().verify([attempt(rf"\boxed{{{i}}}", "5") for i in range(8)])
    assert [one.status for one in verdicts] == ["wrong"] * 3 + ["error", "wrong", "correct", "wrong", "wrong"]
    assert math.isnan(verdicts[3].reward)
    assert "Alarm: time is up" in verdicts[3].reason


def test_equal_pairs_are_decided_once_and_none_without_an_answer(monkeypatch):
    asked = []

    def run(function, items, *, time_limit):
        asked.extend(items)
        return [function(item) for item in items]

    monkeypatch.setattr("lightning_rlvr.verify.math.run", run)
    completions = [r"\boxed{5}", r"so \boxed{5}", "Answer: 5", r"\boxed{6}", "5", r"\boxed{}"]
    verdicts = MathVerifier().verify([attempt(text, "5") for text in completions])
    assert [one.status for one in verdicts] == ["correct"] * 3 + ["wrong"] + ["no_answer"] * 2
    assert [item.answer for item in asked] == ["5", "6"]


def test_works_outside_the_main_thread():  # VR-01
    def run(_):
        assert threading.current_thread() is not threading.main_thread()
        return boxed(r"\frac{1}{2}", "0.5")

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(8))) == ["correct"] * 8


def test_settings_are_checked():
    with pytest.raises(ValueError, match="`time_limit` must be a positive number of seconds, got 0"):
        MathVerifier(time_limit=0)
    with pytest.raises(ValueError, match="`extract` must be one of boxed, last_line, last_number, all, got 'box'"):
        MathVerifier(extract="box")


SEEDS = [
    r"\frac{1}{2}", r"\sqrt[3]{\frac{5+\sqrt{13}}{2}}", r"\begin{pmatrix}1&-2\\0&\frac{1}{4}\end{pmatrix}", "12,500",
    r"(0,1)\cup[1,4)", r"\{x \mid x>1\}", "f(x)=2-x, f(x)=x", r"35\%", r"15\text{ cm}^2", r"\pm 4", r"x^{2}+3x \le 1",
    r"\int_0^1 \sin x \, dx", r"\left\lfloor \log_2 n \right\rfloor!", r"\lim_{n\to\infty}\sum_{k=1}^{n} \frac{1}{k}",
]  # fmt: skip
JUNK = [
    "{", "}", "\\", "^", "_", "\x00", "\ud800", "\N{INFINITY}", "^{9", "!", "&", r"\left(", r"\frac", "$", "\n", ",",
    "=",
]  # fmt: skip


def mangle(rng):
    tokens = list(rng.choice(SEEDS))
    for _ in range(rng.randint(1, 5)):
        place = rng.randrange(len(tokens) + 1)
        match rng.randrange(5):
            case 0:
                del tokens[place : place + rng.randint(1, 3)]
            case 1:
                tokens.insert(place, rng.choice(JUNK))
            case 2:
                moved = tokens[place : place + 4]
                tokens[place : place + 4] = rng.sample(moved, len(moved))
            case 3:
                tokens.insert(place, chr(rng.randrange(1, 0x3000)))
            case 4:
                tokens.insert(
                    place, rng.choice(["9" * 400, "(" * 100, "{" * 60 + "}" * 60, r"\sqrt{" * 30, rng.choice(SEEDS)])
                )
    return "".join(tokens)


@pytest.mark.slow
def test_mangled_answers_get_one_verdict_each_and_cost_no_worker():
    rng = random.Random(0)
    texts = [mangle(rng) for _ in range(1000)]
    verifier = MathVerifier(time_limit=1, extract="all")
    answers = verifier.verify([attempt(text, "7") for text in texts])
    golds = verifier.verify([attempt("7", text) for text in texts[:100]])
    assert (len(answers), len(golds)) == (1000, 100)
    assert {one.status for one in answers + golds} <= {"wrong", "error", "timeout", "no_answer"}
    assert not any("died" in one.reason for one in answers + golds)
    assert boxed("7", "7") == "correct"
