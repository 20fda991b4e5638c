"""A soft punishment for completions that use up their budget."""

from __future__ import annotations

import math
from collections.abc import Sequence

from typing_extensions import override

from lightning_rlvr.checks import require
from lightning_rlvr.verify.base import VERIFIERS, Attempt, Verdict, Verifier


def soft_overlong_punishment(lengths: Sequence[int], max_completion_length: int, buffer: int) -> list[float]:
    """0 up to the last ``buffer`` tokens of the budget, falling there to -1, and -1 beyond (arXiv:2503.14476 eq. 13).

    Args:
        lengths: Tokens of each completion.
        max_completion_length: The budget in tokens.
        buffer: Tokens over which the punishment grows, at least 1.

    Example:
        >>> soft_overlong_punishment([0, 12, 13, 16, 17], max_completion_length=16, buffer=4)
        [0.0, 0.0, -0.25, -1.0, -1.0]
    """
    free = max_completion_length - buffer
    return [-min(max(length - free, 0) / buffer, 1.0) + 0.0 for length in lengths]  # + 0.0 makes 0 of -0


@VERIFIERS.register("overlong")
class OverlongVerifier(Verifier):
    """DAPO's soft overlong punishment, in [-1, 0]: a part for ``WeightedVerifier``, beside one that reads answers.

    Args:
        max_completion_length: Budget in tokens; give it the value of `model.rollout.max_completion_length`.
        buffer: The last part of the budget, in which the punishment grows from 0 to 1: a share below 1 (DAPO: 0.2) or
            a whole number of tokens.

    Example:
        >>> attempt = Attempt(prompt="", completion="", completion_ids=(5,) * 15, truncated=False, columns={})
        >>> OverlongVerifier(max_completion_length=16, buffer=4).verify([attempt])
        [Verdict(status='wrong', reward=-0.75, answer=None, reason='15 tokens, of which 12 are free', parts={})]
    """

    def __init__(self, max_completion_length: int, buffer: float = 0.2) -> None:
        require(max_completion_length >= 1, "max_completion_length", "at least 1", max_completion_length)
        share = 0 < buffer < 1
        whole = 1 <= buffer <= max_completion_length and buffer % 1 == 0
        expected = f"a share below 1 or a whole number up to {max_completion_length}"
        require(share or whole, "buffer", expected, buffer)
        self.max_completion_length = max_completion_length
        self.buffer = max(1, round(buffer * max_completion_length)) if share else int(buffer)

    @override
    def verify(self, attempts: Sequence[Attempt]) -> list[Verdict]:
        lengths = [len(attempt.completion_ids) for attempt in attempts]
        rewards = soft_overlong_punishment(lengths, self.max_completion_length, self.buffer)
        return [self._verdict(length, reward) for length, reward in zip(lengths, rewards, strict=True)]

    def _verdict(self, length: int, reward: float) -> Verdict:
        if length == 0:  # sampled completions hold an end token at least
            return Verdict(status="error", reward=math.nan, reason="no token ids to count")
        reason = f"{length} tokens, of which {self.max_completion_length - self.buffer} are free"
        return Verdict(status="correct" if reward == 0 else "wrong", reward=reward, reason=reason)
