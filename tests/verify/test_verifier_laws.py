"""What every verifier of the registry keeps to."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_rlvr.verify.base import UNSCORED, VERIFIERS, Attempt

BUDGET = 40


def ends_with_a_box(completions, **columns):
    return [float(text.endswith(r"\boxed{7}")) for text in completions]


@dataclass(frozen=True)
class Case:
    """Settings that a verifier needs, a row, and a completion that is right about it."""

    settings: dict = field(default_factory=dict)
    columns: dict = field(default_factory=lambda: {"answer": "7"})
    right: str = r"<think>8?</think> So it is \boxed{7}"

    def attempt(self, text, truncated=False):
        ids = (5,) * (BUDGET if truncated else min(len(text), BUDGET // 2))
        return Attempt(
            prompt="", completion=text, completion_ids=ids, truncated=truncated, columns=self.columns,
            max_completion_length=BUDGET,
        )  # fmt: skip


CASES = {
    "choice": Case(columns={"answer": "B", "choices": ["6", "7"]}, right=r"Hence \boxed{B}"),
    "exact": Case(),
    "function": Case({"function": ends_with_a_box}),
    "math": Case(),
    "numeric": Case(),
    "overlong": Case({"buffer": 0.5}),
    "reasoning_gym": Case(columns={"question": "", "answer": "7", "metadata": {"source_dataset": "chain_sum"}}),
    "target_length": Case({"target": BUDGET // 2, "tolerance": 30}),
    "weighted": Case({"verifiers": ["exact", "choice"]}, columns={"answer": "B"}, right=r"Hence \boxed{B}"),
}
READ_NO_ANSWER = {"function", "overlong", "target_length"}
OURS = [name for name in VERIFIERS if VERIFIERS[name].__module__.startswith("lightning_rlvr.")]
TEXTS = st.text(max_size=30) | st.lists(
    st.sampled_from([r"\boxed{", r"\frac{", "}", "{", "7", "B", "Answer:", "\n", "<think>", "</think>", " or ", "$"]),
    max_size=8,
).map("".join)


@pytest.fixture(params=OURS)
def case(request):
    assert request.param in CASES, f"describe a case for the new verifier {request.param} in CASES, above"
    return request.param, CASES[request.param]


def judge(case, texts, truncated=False):
    name, case = case
    return VERIFIERS[name](**case.settings).verify([case.attempt(text, truncated) for text in texts])


def test_right_is_correct_and_its_row_is_sound(case):
    assert judge(case, [case[1].right])[0].status == "correct"
    assert VERIFIERS[case[0]](**case[1].settings).check_columns(case[1].columns) is None


def test_no_attempts_no_verdicts(case):
    assert judge(case, []) == []


def test_row_local_verifiers_judge_an_attempt_by_itself_in_any_thread(case):
    name, details = case
    if not VERIFIERS[name](**details.settings).row_local:
        return
    texts = [details.right, "", r"\boxed{9}", "Answer: A", details.right + " " * 30]
    together = [repr(verdict) for verdict in judge(case, texts)]
    with ThreadPoolExecutor(2) as threads:
        alone = threads.map(lambda text: judge(case, [text]), texts)
        assert [repr(verdict) for [verdict] in alone] == together


def test_verdicts_follow_their_attempts_in_any_order(case):
    texts = [case[1].right, "", r"\boxed{9}", "Answer: A", case[1].right + " " * 30, r"\boxed{"]
    verdicts = [repr(verdict) for verdict in judge(case, texts)]
    order = [4, 2, 5, 0, 3, 1]
    assert len(verdicts) == len(texts)
    assert [repr(v) for v in judge(case, [texts[i] for i in order])] == [verdicts[i] for i in order]


@pytest.mark.parametrize("name", OURS)
@settings(max_examples=6, deadline=None)
@given(texts=st.lists(TEXTS, min_size=4, max_size=8), truncated=st.booleans())
def test_no_text_raises_and_unscored_is_nan(name, texts, truncated):
    verdicts = judge((name, CASES[name]), texts, truncated)
    assert len(verdicts) == len(texts)
    assert all(math.isnan(verdict.reward) == (verdict.status in UNSCORED) for verdict in verdicts)


def test_parts_are_those_that_are_named(case):
    names = VERIFIERS[case[0]](**case[1].settings).part_names
    assert [tuple(verdict.parts) for verdict in judge(case, [case[1].right, ""])] == [names, names]


@pytest.mark.parametrize("name", [name for name in OURS if name not in READ_NO_ANSWER])
def test_cut_off_inside_the_answer_is_never_correct(name):
    case = name, CASES[name]
    right = case[1].right
    line = "Answer: " + right.rpartition("{")[2].rstrip("}")
    prefixes = [right[:end] for end in range(len(right))] + [line[:end] for end in range(len(line) + 1)]
    assert "correct" not in {verdict.status for verdict in judge(case, prefixes, truncated=True)}


def test_nothing_is_never_correct(case):
    assert judge(case, [""])[0].status != "correct"
    assert judge(case, [""], truncated=True)[0].status != "correct"
