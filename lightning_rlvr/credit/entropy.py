"""Entropy credit: more of the advantage where the next-token distribution was wide."""

from __future__ import annotations

import math
from typing import ClassVar

from lightning_rlvr.credit.base import CREDIT_ASSIGNERS
from lightning_rlvr.credit.threshold import ThresholdCredit
from lightning_rlvr.functional.credit import ScoreMap, Spread


@CREDIT_ASSIGNERS.register("entropy")
class EntropyCredit(ThresholdCredit):
    """Margin credit's machinery on the entropy: the arm that tells what the margin itself contributes.

    The default thresholds are the entropies of the 90/10 and of the 60/40 split, which are margin credit's defaults.

    Args:
        lo: Entropy in nats up to which the score is 0.
        hi: Entropy in nats from which the score is 1.
        floor: Share of the weight that a score of 0 keeps, in (0, 1]; 1 is uniform credit. Only with `spread` ratio,
            where leaving it out means 0.2.
        lam: Strength in (0, 1]. Only with `spread` additive, where leaving it out means 0.5.
        score_map: `ramp` is linear between the thresholds, `step` is one half there.
        spread: `ratio` floor + (1 - floor) * score over its mean; `additive` 1 + lam * (score - mean score);
            `pure` score over its mean, unbounded.

    Raises:
        ValueError: Thresholds out of order, a setting out of range, or one that has no effect with this `spread`.

    Example:
        >>> EntropyCredit(lo=0.5, hi=1.5).requires
        frozenset({'entropy'})
    """

    statistic: ClassVar[str] = "entropy"
    definition: ClassVar[str] = "H = -sum p log p"
    upper: ClassVar[float] = math.inf
    rising: ClassVar[bool] = True

    def __init__(
        self,
        lo: float = 0.325,
        hi: float = 0.673,
        floor: float | None = None,
        lam: float | None = None,
        score_map: ScoreMap = "ramp",
        spread: Spread = "ratio",
    ) -> None:
        super().__init__(lo, hi, floor, lam, score_map, spread)
