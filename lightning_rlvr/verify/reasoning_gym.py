"""Scores by the scorer that belongs to a reasoning-gym data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from typing_extensions import override

from lightning_rlvr.checks import require_package
from lightning_rlvr.verify.answer import final_answer, judge, last_line
from lightning_rlvr.verify.base import VERIFIERS, Attempt, Verdict, Verifier


@VERIFIERS.register("reasoning_gym")
class ReasoningGymVerifier(Verifier):
    r"""The score in [0, 1] that the problem's own data set gives; correct if it is 1.

    The answer is the last ``\boxed{}`` after any ``</think>``, else the last ``Answer:`` line. Reads the columns
    ``question``, ``answer`` and ``metadata`` as reasoning-gym makes them.

    Args:
        last_line: Take the last line as the answer where a completion has neither box nor ``Answer:`` line.

    Raises:
        ImportError: reasoning-gym is not installed.
    """

    def __init__(self, last_line: bool = False) -> None:
        require_package("reasoning_gym", "reasoning-gym", "data", type(self).__name__)
        self.last_line = last_line

    @override
    def verify(self, attempts: Sequence[Attempt]) -> list[Verdict]:
        return [judge(attempt, self._answer(attempt), _decide) for attempt in attempts]

    @override
    def check_columns(self, columns: Mapping[str, Any]) -> str | None:
        missing = [name for name in ("question", "answer", "metadata") if name not in columns]
        if missing:
            return f"`columns` must hold {', '.join(missing)}, got {', '.join(columns) or 'none'}"
        try:
            _scorer(columns["metadata"]["source_dataset"])
        except (KeyError, TypeError, ValueError) as error:
            return f"`metadata` must name its data set as source_dataset ({type(error).__name__}: {error})"
        return None

    def _answer(self, attempt: Attempt) -> str | None:
        answer = final_answer(attempt.completion, truncated=attempt.truncated)
        if answer is None and self.last_line:
            return last_line(attempt.completion, truncated=attempt.truncated)
        return answer


@cache
def _scorer(dataset: str) -> Callable[[str, dict[str, Any]], float]:
    from reasoning_gym import get_score_answer_fn

    scorer: Callable[[str, dict[str, Any]], float] = get_score_answer_fn(dataset)
    return scorer


def _decide(answer: str, columns: Mapping[str, Any]) -> Verdict:
    score = float(_scorer(columns["metadata"]["source_dataset"])(answer, dict(columns)))
    if not 0 <= score <= 1:
        raise ValueError(f"score must be in [0, 1], got {score}")
    return Verdict(status="correct" if score == 1 else "wrong", reward=score, answer=answer)
