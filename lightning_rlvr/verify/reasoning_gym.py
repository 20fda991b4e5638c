"""Scores by the scorer that belongs to a reasoning-gym data set."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from typing_extensions import override

from lightning_rlvr.checks import require, require_package
from lightning_rlvr.verify.answer import AnswerVerifier, Extract
from lightning_rlvr.verify.base import VERIFIERS, Attempt, Verdict
from lightning_rlvr.verify.pool import Failure, run

_COLUMNS = ("question", "answer", "metadata")


@VERIFIERS.register("reasoning_gym")
class ReasoningGymVerifier(AnswerVerifier):
    r"""The score in [0, 1] that the problem's own data set gives; correct if it is 1.

    Reads the columns ``question``, ``answer`` and ``metadata`` as reasoning-gym makes them. Scorers run in worker
    processes that can be killed: many of them hand answers to sympy.

    Args:
        extract: Where the final answer is; `boxed`: in the last ``\boxed{}``, else in the last ``Answer:`` line.
        time_limit: Seconds for each score; beyond it the verdict is `timeout`, which has no score.

    Raises:
        ImportError: reasoning-gym is not installed.
        ValueError: ``extract`` is none of its choices, or ``time_limit`` is not positive and finite.

    Example:
        >>> columns = {"question": "4 + 3 =", "answer": "7", "metadata": {"source_dataset": "chain_sum"}}
        >>> attempt = Attempt(
        ...     prompt="", completion="Answer: 7", completion_ids=(), truncated=False, columns=columns
        ... )
        >>> verdict = ReasoningGymVerifier().verify([attempt])[0]
        >>> verdict.status, verdict.reason
        ('correct', 'last Answer: line; chain_sum gives 1')
    """

    row_local = True

    def __init__(self, extract: Extract = "boxed", time_limit: float = 5.0) -> None:
        require_package("reasoning_gym", "reasoning-gym", "data", type(self).__name__)
        super().__init__(extract)
        require(0 < time_limit < math.inf, "time_limit", "a positive number of seconds", time_limit)
        self.time_limit = time_limit

    @override
    def judge(self, answered: Sequence[tuple[str, Attempt]]) -> list[Verdict]:
        asked = [(answer, {name: attempt.columns.get(name) for name in _COLUMNS}) for answer, attempt in answered]
        scores = run(_score, asked, time_limit=self.time_limit)
        return [_verdict(score, entry) for score, (_, entry) in zip(scores, asked, strict=True)]

    @override
    def check_columns(self, columns: Mapping[str, Any]) -> str | None:
        missing = [name for name in _COLUMNS if name not in columns]
        if missing:
            return f"`columns` must hold {', '.join(missing)}, got {', '.join(columns) or 'none'}"
        try:
            _scorer(columns["metadata"]["source_dataset"])
        except (KeyError, TypeError, ValueError) as error:
            return f"`metadata` must name its data set as source_dataset ({type(error).__name__}: {error})"
        return None


def _verdict(score: float | Failure, entry: Mapping[str, Any]) -> Verdict:
    if isinstance(score, Failure):
        return Verdict(status=score.status, reward=math.nan, reason=score.reason)
    dataset = entry["metadata"]["source_dataset"]
    if not 0 <= score <= 1:
        reason = f"the score of {dataset} must be in [0, 1], got {score}"
        return Verdict(status="error", reward=math.nan, reason=reason)
    return Verdict(status="correct" if score == 1 else "wrong", reward=score, reason=f"{dataset} gives {score:g}")


@cache
def _scorer(dataset: str) -> Callable[[str, dict[str, Any]], float]:
    from reasoning_gym import get_score_answer_fn

    scorer: Callable[[str, dict[str, Any]], float] = get_score_answer_fn(dataset)
    return scorer


def _score(item: tuple[str, dict[str, Any]]) -> float:
    """What runs in the workers."""
    answer, entry = item
    return float(_scorer(entry["metadata"]["source_dataset"])(answer, entry))


def warm_up() -> None:
    """Import, for all workers at once, what takes most of a second."""
    import reasoning_gym  # noqa: F401
