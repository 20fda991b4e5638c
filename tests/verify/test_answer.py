import time
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_rlvr.verify.answer import AnswerVerifier, Extract, extract, gold_complaint, golds_of
from lightning_rlvr.verify.base import VERIFIERS, Attempt, Verdict

PIECES = [
    *("\\boxed{", "\\boxed", "\\fbox{", "{", "}", "\\{", "\\}", "\\", "$", " or ", ", ", " and ", "\n", "\r\n", "."),
    *("Answer:", "answer:", "**", "<think>", "</think>", "</answer>", "12", "-3,000", "A", "x", " ", "\x00", "\ud800"),
]
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=30).map("".join)


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
        (r"The sum is \(\boxed{81}\).</answer>", "81"),  # VX-04
        ("<answer>Answer: 81</answer>", "81"),
        (r"It is $\boxed 5$.", "5"),
        (r"It is \boxed 1,250, so", "1,250"),
        (r"Put it into \boxed notation. Answer: 3", "3"),
        (r"\boxed{15}. No, rather \boxed{12}.", "12"),  # VX-02
        (r"\boxed{A} or \boxed{B}", "A, B"),  # VX-08
        (r"\boxed{A or B or C}", "A or B or C"),
        (r"\boxed{\text{(B)}}", r"\text{(B)}"),
        ("\\boxed{\n  \\frac{1}{2}\r\n}\r\n", r"\frac{1}{2}"),
        ("Answer: 3\r\n", "3"),
        ("**Answer:** 64", "64"),
        (r"Answer: \boxed{}", None),
        ("Answer: 3, no, Answer: 4", "4"),
        (r"<think>a</think>\boxed{1}<think>b</think>\boxed{2}", "2"),
        (r"\boxed{1}</think>\boxed{2}</think>", None),
        ("Answer:\n\n  12\nThat is all.", "12"),
        ("**Answer:**\n**12**", "12"),
        ("Answer: `12`", "12"),
        ("Answer:\n```\n12\n```", "12"),
    ],
)
def test_final_answer_is_the_last_one_stated(completion, answer):
    assert extract(completion, "boxed", truncated=False).answer == answer


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("Answer: 12", None),
        ("Answer:\n12", None),
        ("Answer: 12\nBecause", "12"),
        (r"It is \boxed{12}. Beca", "12"),
        (r"It is \boxed{12", None),
        ("x + y = 12, and now", None),
    ],
)
def test_cut_off_answers_do_not_count(completion, answer):
    assert extract(completion, "boxed", truncated=True).answer == answer


@pytest.mark.parametrize(
    ("completion", "where", "truncated", "rule"),
    [
        (r"\boxed{3}", "boxed", False, r"last \boxed{}"),
        ("Answer: 3", "boxed", False, "last Answer: line"),
        (r"\boxed{ }", "boxed", False, "empty box"),
        (r"\boxed{3", "boxed", False, "box not closed"),
        (r"\boxed{3", "boxed", True, "truncated inside the box"),
        ("Answer: 3", "boxed", True, "truncated inside the Answer: line"),
        ("Answer:", "boxed", False, "empty Answer: line"),
        ("It is 3.", "boxed", False, "no box and no Answer: line"),
        ("It is 3, and", "boxed", True, "truncated before a final answer"),
        (r"<think>\boxed{3}", "boxed", False, "reasoning not closed"),
        ("so\n3", "last_line", False, "last line"),
        ("so\n3", "last_line", True, "truncated inside the last line"),
        ("", "last_line", False, "no line"),
        ("so 3", "last_number", False, "last number"),
        ("so", "last_number", False, "no number"),
        ("<think>3", "last_number", False, "reasoning not closed"),
        ("3", "all", False, "completion"),
        ("", "all", False, "no completion"),
    ],
)
def test_the_rule_says_where_the_answer_stood_or_why_there_is_none(completion, where, truncated, rule):
    assert extract(completion, where, truncated=truncated).rule == rule


@given(TEXTS, st.sampled_from(get_args(Extract)), st.booleans())
def test_extraction_never_raises_and_always_gives_a_rule(completion, where, truncated):
    found = extract(completion, where, truncated=truncated)
    assert found.rule
    assert found.answer is None or found.answer.strip()


@given(TEXTS)
def test_extraction_is_idempotent(completion):
    found = extract(completion, "boxed", truncated=False)
    if found.rule == r"last \boxed{}":
        assert extract(rf"\boxed{{{found.answer}}}", "boxed", truncated=False) == found


@pytest.mark.parametrize("where", get_args(Extract))
@pytest.mark.parametrize(
    "piece",
    [
        r"\boxed{",
        "{",
        "}",
        "answer:",
        r"\boxed{1}, ",
        "answer ",
        "Answer:\n",
        r"\text{or} ",
        " ",
        "1",
        "1,",
        "\\",
        r"\boxed ",
    ],
)
def test_extraction_takes_linear_time(piece, where):
    text = piece * (200_000 // len(piece))
    start = time.process_time()
    for completion in (text, rf"\boxed{{{text}}}", rf"\boxed{{1}}{text}\boxed{{2}}"):
        extract(completion, where, truncated=False)
    assert time.process_time() - start < 2


JOINTS = [
    ",", " or ", r"\) or \(", r"\] and \[", "** or **", r" \text{ or } ", r" \text{ and } ", r"\quad", r"\ ", ";", "/",
    "&", r"\lor", r"\\", r"$, $", ", and/or ",
]  # fmt: skip


@pytest.mark.parametrize("joint", JOINTS)
def test_boxes_that_only_markup_or_an_alternative_joins_are_one_answer(joint):
    assert extract(rf"\boxed{{1}}{joint}\boxed{{2}}", "boxed", truncated=False).answer == "1, 2"
    assert extract(rf"\boxed{{1}}{joint}no, \boxed{{2}}", "boxed", truncated=False).answer == "2"


def test_golds_are_alternatives_and_solutions_stand_for_their_answers():
    assert golds_of({"answer": ["1", 2, 3.0]}) == ("1", "2", "3.0")
    assert golds_of({"answer": np.float32(0.5)}) == ("0.5",)
    assert gold_complaint({"answer": np.int64(3)}) is gold_complaint({"answer": 10**400}) is None
    assert golds_of({"answer": ["$69$,$84$"]}) == ("$69$,$84$",)
    assert golds_of({"answer": r"We get \boxed{1}, then $\boxed{\frac{1}{2}}$."}) == (r"\frac{1}{2}",)
    assert golds_of({"answer": "8 * 135 = <<8*135=1080>>1080\n#### 1,080"}) == ("1,080",)


@pytest.mark.parametrize(
    "gold",
    [None, float("nan"), np.float64("inf"), {"a": 1}, [], ["1", None], [["1"], "2"], " ", ["1", ""], r"so \boxed{}"],
)
def test_golds_that_nothing_can_match_are_complained_about(gold):
    assert gold_complaint({"answer": gold}).startswith("`answer` ")


def test_last_line_is_the_last_that_is_not_blank():
    assert extract("<think>5</think>\n6\n 7 \n\n", "last_line", truncated=False).answer == "7"
    assert extract("6\n7", "last_line", truncated=True).answer is None
    assert extract(" \n", "last_line", truncated=False).answer is None


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
    assert extract(text, "last_number", truncated=False).answer == number
    assert extract(text, "last_number", truncated=True).answer is None


class Silent(AnswerVerifier):
    """Says what it was asked, without a reason."""

    def judge(self, answered):
        self.asked = [(answer, attempt.columns["id"]) for answer, attempt in answered]
        return [Verdict.of(answer == "7") for answer, _ in answered]


class Forgetful(AnswerVerifier):
    def judge(self, answered):
        return [Verdict.of(True)] * (len(answered) - 1)


def attempts(*texts):
    return [
        Attempt(prompt="", completion=text, completion_ids=(), truncated=False, columns={"id": i, "answer": "7"})
        for i, text in enumerate(texts)
    ]


def test_only_answers_are_judged_and_verdicts_say_where_they_stood():
    verifier = Silent()
    verdicts = verifier.verify(attempts("", r"\boxed{7}", "7", "Answer: 8"))
    assert verifier.asked == [("7", 1), ("8", 3)]
    assert [(one.status, one.reward, one.answer, one.reason) for one in verdicts] == [
        ("no_answer", 0.0, None, "no box and no Answer: line"),
        ("correct", 1.0, "7", r"last \boxed{}"),
        ("no_answer", 0.0, None, "no box and no Answer: line"),
        ("wrong", 0.0, "8", "last Answer: line"),
    ]


def test_a_judge_that_loses_an_answer_is_no_silence():
    with pytest.raises(ValueError, match="shorter"):
        Forgetful().verify(attempts(r"\boxed{7}", "", r"\boxed{8}"))


@pytest.mark.parametrize("columns", [{}, {"answer": []}, {"answer": None}, {"answer": " "}])
@pytest.mark.parametrize("name", ["choice", "exact", "math", "numeric"])
def test_an_unsound_row_is_an_error_with_its_complaint_and_none_of_its_neighbours_is(name, columns):
    rows = [
        Attempt(prompt="", completion=r"\boxed{B}", completion_ids=(), truncated=False, columns=one)
        for one in ({"answer": "A"}, columns, {"answer": "C"})
    ]
    verifier = VERIFIERS[name]()
    verdicts = verifier.verify(rows)
    assert [one.status for one in verdicts] == ["wrong", "error", "wrong"]
    assert verdicts[1].reason == rf"last \boxed{{}}; {verifier.check_columns(columns)}"


def test_rows_need_a_gold_unless_a_verifier_says_otherwise():
    assert Silent().check_columns({"id": 1}) == "`columns` must hold 'answer', got id"
