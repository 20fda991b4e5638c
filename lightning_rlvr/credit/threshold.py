"""What margin and entropy credit share: a score between two fixed thresholds, then a spread of the advantage."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from typing import ClassVar, get_args

from torch import Tensor
from typing_extensions import override

from lightning_rlvr.checks import require, require_choice
from lightning_rlvr.credit.base import CreditAssigner
from lightning_rlvr.functional.credit import SCORE_MAPS, ScoreMap, Spread, spread
from lightning_rlvr.types import Rollout

_SPREADS: Mapping[Spread, str] = {
    "ratio": "u = floor + (1 - floor) s; A_t = A u / mean(u)",
    "additive": "A_t = A (1 + lam (s - mean(s)))",
    "pure": "A_t = A s / mean(s)",
}


class ThresholdCredit(CreditAssigner, ABC):
    """Credit where one token statistic says that the model hesitated.

    Args:
        lo: Lower threshold, in the unit of the statistic.
        hi: Upper threshold, above `lo`.
        floor: Share of the weight that a score of 0 keeps; None is 0.2. Only with `spread` ratio.
        lam: Strength; None is 0.5. Only with `spread` additive.
        score_map: Linear between the thresholds, or one half there.
        spread: How scores become weights with mean one.
    """

    statistic: ClassVar[str]
    """Name of the token statistic that is scored."""
    definition: ClassVar[str]
    """The statistic in symbols."""
    upper: ClassVar[float]
    """Largest sensible threshold."""
    rising: ClassVar[bool]
    """Whether a high value (True) or a low one (False) means hesitation, and hence a score of 1."""

    def __init__(
        self, lo: float, hi: float, floor: float | None, lam: float | None, score_map: ScoreMap, spread: Spread
    ) -> None:
        require(0 <= lo < hi <= self.upper, "lo, hi", f"thresholds with 0 <= lo < hi <= {self.upper:g}", (lo, hi))
        require_choice("score_map", get_args(ScoreMap), score_map)
        require_choice("spread", get_args(Spread), spread)
        for name, value, kind in (("floor", floor, "ratio"), ("lam", lam, "additive")):
            require(value is None or spread == kind, name, f"left out with spread {spread}: it has no effect", value)
            require(value is None or 0 < value <= 1, name, "in (0, 1]", value)
        self.lo, self.hi = lo, hi
        self.floor = 0.2 if spread == "ratio" and floor is None else floor
        self.lam = 0.5 if spread == "additive" and lam is None else lam
        self.score_map = score_map
        self.spread = spread
        self.requires = frozenset({self.statistic})
        zero, one = (lo, hi) if self.rising else (hi, lo)
        self.formula = f"{self.definition}; s = {score_map} from 0 at {zero} to 1 at {one}; {_SPREADS[spread]}"

    @property
    @override
    def state_key(self) -> str:
        return self._generate_state_key(
            lo=self.lo, hi=self.hi, floor=self.floor, lam=self.lam, score_map=self.score_map, spread=self.spread
        )

    def scores(self, rollout: Rollout) -> Tensor:
        """How much the model hesitated: ``[B, T]`` float32 in ``[0, 1]``, anything outside the mask."""
        scores = SCORE_MAPS[self.score_map](rollout.statistics[self.statistic], self.lo, self.hi)
        return scores if self.rising else 1 - scores

    @override
    def assign(self, rollout: Rollout, advantages: Tensor) -> Tensor:
        amounts = {"floor": self.floor, "lam": self.lam}
        given = {name: amount for name, amount in amounts.items() if amount is not None}
        return advantages[:, None] * spread(self.scores(rollout), rollout.completion_mask, self.spread, **given)

    @override
    def diagnostics(self, rollout: Rollout) -> Mapping[str, Tensor]:
        scores = self.scores(rollout)
        return {
            self.statistic: rollout.statistics[self.statistic],
            f"{self.statistic}_score": scores,
            f"{self.statistic}_score_zero": scores == 0,
            f"{self.statistic}_score_one": scores == 1,
        }
