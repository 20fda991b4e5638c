"""Uniform credit: every token gets the advantage of its completion."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from lightning_rlvr.credit.base import CREDIT_ASSIGNERS, CreditAssigner
from lightning_rlvr.types import Rollout


@CREDIT_ASSIGNERS.register("uniform")
class UniformCredit(CreditAssigner):
    """The same advantage for every token, as in GRPO: the neutral element among assigners."""

    formula = "A_t = A"

    @override
    def assign(self, rollout: Rollout, advantages: Tensor) -> Tensor:
        return advantages[:, None] * rollout.completion_mask
