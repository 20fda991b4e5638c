"""Margin credit: more of the advantage where the two likeliest next tokens were close."""

from __future__ import annotations

from typing import ClassVar

from lightning_rlvr.credit.base import CREDIT_ASSIGNERS
from lightning_rlvr.credit.threshold import ThresholdCredit
from lightning_rlvr.functional.credit import ScoreMap, Spread


@CREDIT_ASSIGNERS.register("margin")
class MarginCredit(ThresholdCredit):
    """Margin-guided credit (MCPO, arXiv:2611.14015): credit where the model hesitated, ``p1 - p2`` small.

    The abstract fixes the margin, the two thresholds and the conserved mean; thresholds, score map, floor and spread
    are choices of ours.

    Args:
        lo: Margin up to which the score is 1 (0.2: at least as even as 60/40).
        hi: Margin from which the score is 0 (0.8: at least as sharp as 90/10).
        floor: Share of the weight that a score of 0 keeps, in (0, 1]; 1 is uniform credit. Only with `spread` ratio,
            where leaving it out means 0.2.
        lam: Strength in (0, 1]. Only with `spread` additive, where leaving it out means 0.5.
        score_map: `ramp` is linear between the thresholds, `step` is one half there.
        spread: `ratio` floor + (1 - floor) * score over its mean; `additive` 1 + lam * (score - mean score);
            `pure` score over its mean, unbounded.

    Raises:
        ValueError: Thresholds out of order, a setting out of range, or one that has no effect with this `spread`.

    Example:
        >>> MarginCredit(lo=0.1, hi=0.5).requires
        frozenset({'margin'})
    """

    statistic: ClassVar[str] = "margin"
    definition: ClassVar[str] = "M = p1 - p2"
    upper: ClassVar[float] = 1.0
    rising: ClassVar[bool] = False

    def __init__(
        self,
        lo: float = 0.2,
        hi: float = 0.8,
        floor: float | None = None,
        lam: float | None = None,
        score_map: ScoreMap = "ramp",
        spread: Spread = "ratio",
    ) -> None:
        super().__init__(lo, hi, floor, lam, score_map, spread)
