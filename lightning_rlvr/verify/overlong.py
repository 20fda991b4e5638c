"""A soft punishment for completions that use up their budget."""

from __future__ import annotations

import math
from collections.abc import Sequence

from typing_extensions import override

from lightning_rlvr.checks import require
from lightning_rlvr.verify.base import VERIFIERS, Attempt, Verdict, Verifier


def soft_overlong_punishment(length: int, max_completion_length: int, buffer: int) -> float:
    """0 up to the last ``buffer`` tokens of the budget, falling there to -1, and -1 beyond (arXiv:2503.14476 eq. 13).

    Args:
        length: Tokens of the completion.
        max_completion_length: The budget in tokens.
        buffer: Tokens over which the punishment grows, at least 1.

    Example:
        >>> [soft_overlong_punishment(length, max_completion_length=16, buffer=4) for length in (0, 12, 13, 16, 17)]
        [0.0, 0.0, -0.25, -1.0, -1.0]
    """
    return 0.0 - min(max(length - (max_completion_length - buffer), 0) / buffer, 1.0)


@VERIFIERS.register("overlong")
class OverlongVerifier(Verifier):
    """DAPO's soft overlong punishment, in [-1, 0]: a part for ``WeightedVerifier``, beside one that reads answers.

    The budget is that of the sampling (``max_completion_length`` of the attempt), in training and evaluation each its
    own; where it is not known, or no token ids are, the verdict is ``error``.

    Args:
        buffer: The last part of the budget, in which the punishment grows from 0 to 1: a share below 1 (DAPO: 0.2) or
            a whole number of tokens.

    Raises:
        ValueError: ``buffer`` is neither; on verifying: it is longer than the budget.

    Example:
        >>> attempt = Attempt(
        ...     prompt="", completion="", completion_ids=(5,) * 15, truncated=False, columns={},
        ...     max_completion_length=16,
        ... )
        >>> OverlongVerifier(buffer=4).verify([attempt])
        [Verdict(status='wrong', reward=-0.75, answer=None, reason='15 tokens, of which 12 are free', parts={})]
    """

    row_local = True

    def __init__(self, buffer: float = 0.2) -> None:
        fit = not isinstance(buffer, bool) and (0 < buffer < 1 or (buffer >= 1 and buffer % 1 == 0))
        require(fit, "buffer", "a share below 1 or a whole number of tokens", buffer)
        self.buffer = buffer

    @override
    def verify(self, attempts: Sequence[Attempt]) -> list[Verdict]:
        return [self._verdict(len(attempt.completion_ids), attempt.max_completion_length) for attempt in attempts]

    def _verdict(self, length: int, budget: int | None) -> Verdict:
        if budget is None or length == 0:  # sampled completions hold an end token at least
            reason = "no token ids to count" if length == 0 else "the budget, `max_completion_length`, is not known"
            return Verdict(status="error", reward=math.nan, reason=reason)
        buffer = int(self.buffer) if self.buffer >= 1 else max(1, round(self.buffer * budget))
        require(buffer <= budget, "buffer", f"at most the {budget} tokens of `max_completion_length`", buffer)
        reward = soft_overlong_punishment(length, budget, buffer)
        reason = f"{length} tokens, of which {budget - buffer} are free"
        return Verdict(status="correct" if reward == 0 else "wrong", reward=reward, reason=reason)
