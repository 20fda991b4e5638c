import math
import subprocess
import sys

import pytest

from lightning_rlvr.verify import reasoning_gym as module
from lightning_rlvr.verify.base import VERIFIERS, Attempt
from lightning_rlvr.verify.reasoning_gym import ReasoningGymVerifier

COLUMNS = {"question": "4 + 3 =", "answer": "7", "metadata": {"source_dataset": "chain_sum"}}


def verdict(completion, truncated=False, columns=COLUMNS, **options):
    attempt = Attempt(prompt="", completion=completion, completion_ids=(), truncated=truncated, columns=columns)
    return ReasoningGymVerifier(**options).verify([attempt])[0]


def test_registered():
    assert VERIFIERS["reasoning_gym"] is ReasoningGymVerifier


def test_correct_means_the_full_score():
    assert (verdict(r"\boxed{7}").status, verdict(r"\boxed{7}").reward) == ("correct", 1.0)
    assert (verdict(r"\boxed{8}").status, verdict(r"\boxed{8}").reward) == ("wrong", 0.0)


def test_graded_scores_are_kept():
    # the stock scorer gives len(gold) / len(answer) where the gold is part of the answer: 1 / 4
    assert (verdict(r"\boxed{7 km}").status, verdict(r"\boxed{7 km}").reward) == ("wrong", 0.25)


def test_answer_is_where_the_setting_says():
    assert verdict("It is\n7").status == "no_answer"
    assert verdict("It is\n7", extract="last_line").status == "correct"
    assert verdict("It is\n7", truncated=True, extract="last_line").status == "no_answer"


def test_reason_names_rule_and_data_set():
    assert verdict(r"\boxed{7 km}").reason == r"last \boxed{}; chain_sum gives 0.25"
    assert verdict("7").reason == "no box and no Answer: line"


@pytest.mark.parametrize("score", [float("nan"), 1.5, -0.1])
def test_score_outside_the_unit_interval_is_an_error(score, monkeypatch):
    monkeypatch.setattr(module, "run", lambda function, items, time_limit: [score] * len(items))
    result = verdict(r"\boxed{7}")
    assert result.status == "error"
    assert math.isnan(result.reward)
    assert "must be in [0, 1]" in result.reason


def test_answer_that_hangs_its_scorer_is_unscored_and_the_others_keep_their_order():
    columns = {"question": "", "answer": "X**2", "metadata": {"source_dataset": "simple_integration"}}
    columns["metadata"] |= {"variable": "X", "integrand": "2*X"}
    texts = [r"\boxed{X**2 + C}", r"\boxed{9**9**9**9}", "", r"\boxed{X**3}"]
    attempts = [
        Attempt(prompt="", completion=text, completion_ids=(), truncated=False, columns=columns) for text in texts
    ]
    statuses = [one.status for one in ReasoningGymVerifier(time_limit=2).verify(attempts)]
    assert statuses == ["correct", "timeout", "no_answer", "wrong"]


def test_row_without_its_columns_is_an_error():
    result = verdict(r"\boxed{7}", columns={"answer": "7"})
    assert (result.status, result.answer) == ("error", "7")


@pytest.mark.parametrize(("option", "value"), [("time_limit", 0), ("extract", "last")])
def test_bad_settings_are_refused(option, value):
    with pytest.raises(ValueError, match=f"`{option}` must be .*, got {value!r}"):
        ReasoningGymVerifier(**{option: value})


def test_columns_are_checked():
    verifier = ReasoningGymVerifier()
    assert verifier.check_columns(COLUMNS) is None
    assert verifier.check_columns({"answer": "7"}) == "`columns` must hold question, metadata, got answer"
    assert "nowhere" in verifier.check_columns(COLUMNS | {"metadata": {"source_dataset": "nowhere"}})


def test_what_the_workers_import_leaves_torch_alone():
    code = f"import sys, {module.__name__} as m; m.warm_up(); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
