"""Inverted credit: another assigner turned upside down."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from lightning_rlvr.credit.base import CREDIT_ASSIGNERS, CreditAssigner
from lightning_rlvr.credit.composite import CompositeCredit
from lightning_rlvr.functional.credit import reflect
from lightning_rlvr.types import Rollout


@CREDIT_ASSIGNERS.register("inverted")
class InvertedCredit(CompositeCredit):
    """Most credit where another assigner puts least: ``max + min - A_t`` of each row, scaled back to the row's mean.

    With margin or entropy credit and `spread` ratio this is the score ``1 - s`` wherever the scores of the row reach
    from 0 to 1. If the control does as well as the method, its direction does not matter.

    Args:
        assigner: An assigner, or the short name of one with its default settings.

    Example:
        >>> from lightning_rlvr.credit.margin import MarginCredit
        >>> InvertedCredit(MarginCredit()).requires
        frozenset({'margin'})
    """

    def __init__(self, assigner: CreditAssigner | str) -> None:
        super().__init__(assigner)
        (self.assigner,) = self.members
        self.formula = (
            f"(max + min - A_t) mean(A_t) / (max + min - mean(A_t)) over the completion, with {self.assigner.formula}"
        )

    @override
    def assign(self, rollout: Rollout, advantages: Tensor) -> Tensor:
        return reflect(self.assigner.assign(rollout, advantages), rollout.completion_mask)
