"""Evidence contrast credit: more of the advantage where the evidence changed the token's probability."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Literal, get_args

from torch import Tensor
from typing_extensions import override

from lightning_rlvr.checks import require, require_choice
from lightning_rlvr.credit.ablation.base import EVIDENCE_ABLATIONS, EvidenceAblation
from lightning_rlvr.credit.base import CREDIT_ASSIGNERS, CreditAssigner
from lightning_rlvr.functional.credit import (
    WEIGHT_MAPS,
    ContrastStatistic,
    Renorm,
    WeightMap,
    contrast,
    midranks,
    renormalise,
)
from lightning_rlvr.types import Rollout

Negative = Literal["same", "flip"]

_WEIGHTS: Mapping[WeightMap, str] = {
    "exp": "exp(tau x)",
    "linear": "1 + tau x",
    "gauss": "1 + tau PPF(u)",
    "power": "(1 + tau) u^tau",
}
_RENORMS: Mapping[Renorm, str] = {
    "divide": "w = clip(g, clip_low, clip_high); A_t = A w / mean(w)",
    "project": "w = clip(c g, clip_low, clip_high) with mean(w) = 1; A_t = A w",
}


@CREDIT_ASSIGNERS.register("evidence_contrast")
class EvidenceContrastCredit(CreditAssigner):
    """Evidence contrast credit (TACE, second stage): ranks of ``log p(token | evidence) - log p(token | ablated)``.

    Contrasts are ranked within the completion, mapped to weights, clipped and brought to mean one. The abstract fixes
    this order; ablation, statistic, weight map and bounds are choices of ours. The contrast depends on the sampled
    token, unlike a margin: for a fixed positive advantage it drifts towards tokens that need the evidence.

    Args:
        ablation: How the evidence is taken away: an ablation or its short name.
        statistic: `signed` contrast, its absolute value, or `k3` (VPPO, GCPO).
        weight_map: Of the midrank u and x = 2u - 1: `exp` exp(tau x), `linear` 1 + tau x, `gauss` 1 + tau PPF(u),
            `power` (1 + tau) u^tau (GCPO with tau 2.1507 and wide clip bounds).
        tau: Strength of the weight map, positive.
        clip_low: Lower bound of the weights, in (0, 1].
        clip_high: Upper bound of the weights, at least 1.
        renorm: `divide` clips and divides by the mean; `project` keeps mean one and both bounds.
        tie_tol: Contrasts this close (nats) are ties.
        negative: `flip` turns the ranks upside down in rows of negative advantage.

    Raises:
        ValueError: A setting out of range, or an unknown ablation.

    Example:
        >>> sorted(ablation.statistic for ablation in EvidenceContrastCredit().ablations)
        ["ablated_logprobs[PromptMask(placeholder='[problem omitted]')]"]
    """

    def __init__(
        self,
        ablation: EvidenceAblation | str = "prompt_mask",
        statistic: ContrastStatistic = "signed",
        weight_map: WeightMap = "exp",
        tau: float = 1.0,
        clip_low: float = 0.5,
        clip_high: float = 2.0,
        renorm: Renorm = "divide",
        tie_tol: float = 1e-4,
        negative: Negative = "same",
    ) -> None:
        require_choice("statistic", get_args(ContrastStatistic), statistic)
        require_choice("weight_map", get_args(WeightMap), weight_map)
        require_choice("renorm", get_args(Renorm), renorm)
        require_choice("negative", get_args(Negative), negative)
        require(tau > 0, "tau", "positive", tau)
        bounds = (clip_low, clip_high)
        require(
            0 < clip_low <= 1 <= clip_high and clip_low < clip_high,
            "clip_low, clip_high",
            "bounds with 0 < clip_low <= 1 <= clip_high, not both 1",
            bounds,
        )
        require(tie_tol >= 0, "tie_tol", "at least 0 nats", tie_tol)
        if weight_map == "exp" and renorm == "divide" and clip_high < 1 + tau:
            warnings.warn(
                f"`clip_high` = {clip_high} is below 1 + `tau` = {1 + tau}: dividing by the mean can lift "
                "weights above `clip_high`; raise it, lower `tau`, or choose `renorm` project",
                stacklevel=2,
            )
        self.ablation = EVIDENCE_ABLATIONS[ablation]() if isinstance(ablation, str) else ablation
        self.ablations = frozenset({self.ablation})
        self.statistic = statistic
        self.weight_map = weight_map
        self.tau = tau
        self.clip_low, self.clip_high = bounds
        self.renorm = renorm
        self.tie_tol = tie_tol
        self.negative = negative
        self.formula = (
            f"e = {statistic} contrast of log p(y_t) against {self.ablation!r}; u = midrank(e) in (0, 1); "
            f"x = 2u - 1; g = {_WEIGHTS[weight_map]}; {_RENORMS[renorm]}"
        )

    @property
    @override
    def state_key(self) -> str:
        return self._generate_state_key(
            ablation=repr(self.ablation),
            statistic=self.statistic,
            weight_map=self.weight_map,
            tau=self.tau,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            renorm=self.renorm,
            tie_tol=self.tie_tol,
            negative=self.negative,
        )

    def contrasts(self, rollout: Rollout) -> Tensor:
        """What the evidence did for each token: ``[B, T]`` float32, anything outside the mask."""
        return contrast(rollout.old_logprobs, rollout.statistics[self.ablation.statistic], self.statistic)

    @override
    def assign(self, rollout: Rollout, advantages: Tensor) -> Tensor:
        mask = rollout.completion_mask
        ranks = midranks(self.contrasts(rollout), mask, self.tie_tol)
        if self.negative == "flip":
            ranks = ranks.where(advantages[:, None] >= 0, 1 - ranks)
        weights = WEIGHT_MAPS[self.weight_map](ranks, self.tau)
        return advantages[:, None] * renormalise(weights, mask, self.renorm, low=self.clip_low, high=self.clip_high)

    @override
    def diagnostics(self, rollout: Rollout) -> Mapping[str, Tensor]:
        contrasts = self.contrasts(rollout)
        return {"contrast": contrasts, "contrast_zero": contrasts.abs() <= self.tie_tol / 2}
