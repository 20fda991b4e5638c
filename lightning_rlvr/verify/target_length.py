"""A punishment for every token by which a completion is longer or shorter than it should be."""

from __future__ import annotations

import math
from collections.abc import Sequence

from typing_extensions import override

from lightning_rlvr.checks import require
from lightning_rlvr.verify.base import VERIFIERS, Attempt, Verdict, Verifier


def target_length_punishment(length: int, target: int, tolerance: int) -> float:
    """0 at ``target`` tokens, falling to either side by ``1 / tolerance`` for each token, and -1 from there on.

    Args:
        length: Tokens of the completion.
        target: Tokens that it should have.
        tolerance: Tokens off target at which the punishment is whole, at least 1.

    Example:
        >>> [target_length_punishment(length, target=20, tolerance=8) for length in (20, 18, 24, 28, 90)]
        [0.0, -0.25, -0.5, -1.0, -1.0]
    """
    return 0.0 - min(abs(length - target) / tolerance, 1.0)


@VERIFIERS.register("target_length")
class TargetLengthVerifier(Verifier):
    """A punishment of the distance from a target length, in [-1, 0]: a part for ``WeightedVerifier``.

    For interventions: arms that are trained with the same target end at about the same length, whatever their credit,
    so that a difference that is left between them is none of length. Where no token ids are, the verdict is ``error``.

    Args:
        target: Tokens that a completion should have, its end token included, at least 1.
        tolerance: Tokens off target, to either side, at which the punishment reaches -1, at least 1. Beyond, there is
            no slope to learn from: choose it no smaller than the spread of lengths at the start.

    Raises:
        ValueError: One is not a whole number of at least 1.

    Example:
        >>> attempt = Attempt(prompt="", completion="", completion_ids=(5,) * 15, truncated=False, columns={})
        >>> TargetLengthVerifier(target=20, tolerance=10).verify([attempt])
        [Verdict(status='wrong', reward=-0.5, answer=None, reason='15 tokens, 5 off the target of 20', parts={})]
    """

    row_local = True

    def __init__(self, target: int, tolerance: int) -> None:
        for name, value in (("target", target), ("tolerance", tolerance)):
            require(type(value) is int and value >= 1, name, "a whole number of at least 1", value)
        self.target, self.tolerance = target, tolerance

    @override
    def verify(self, attempts: Sequence[Attempt]) -> list[Verdict]:
        return [self._verdict(len(attempt.completion_ids)) for attempt in attempts]

    def _verdict(self, length: int) -> Verdict:
        if length == 0:  # sampled completions hold an end token at least
            return Verdict(status="error", reward=math.nan, reason="no token ids to count")
        reward = target_length_punishment(length, self.target, self.tolerance)
        reason = f"{length} tokens, {abs(length - self.target)} off the target of {self.target}"
        return Verdict(status="correct" if reward == 0 else "wrong", reward=reward, reason=reason)
