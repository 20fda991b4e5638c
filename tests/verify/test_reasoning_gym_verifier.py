import math

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


def test_last_line_is_an_answer_only_on_request():
    assert verdict("It is\n7").status == "no_answer"
    assert verdict("It is\n7", last_line=True).status == "correct"
    assert verdict("It is\n7", truncated=True, last_line=True).status == "no_answer"


@pytest.mark.parametrize("score", [float("nan"), 1.5, -0.1])
def test_score_outside_the_unit_interval_is_an_error(score, monkeypatch):
    monkeypatch.setattr(module, "_scorer", lambda dataset: lambda answer, entry: score)
    result = verdict(r"\boxed{7}")
    assert result.status == "error"
    assert math.isnan(result.reward)
    assert "score must be in [0, 1]" in result.reason


def test_columns_are_checked():
    verifier = ReasoningGymVerifier()
    assert verifier.check_columns(COLUMNS) is None
    assert verifier.check_columns({"answer": "7"}) == "`columns` must hold question, metadata, got answer"
    assert "nowhere" in verifier.check_columns(COLUMNS | {"metadata": {"source_dataset": "nowhere"}})
