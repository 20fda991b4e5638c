"""Permuted credit: the placebo of another assigner."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from lightning_rlvr.credit.base import CREDIT_ASSIGNERS, CreditAssigner
from lightning_rlvr.credit.composite import CompositeCredit
from lightning_rlvr.functional.credit import permute_rows
from lightning_rlvr.types import Rollout


@CREDIT_ASSIGNERS.register("permuted")
class PermutedCredit(CompositeCredit):
    """The token advantages of another assigner in a random order within each completion.

    The weights have the same values, so whatever a method gains over this control comes from where it puts them. The
    order follows from the sampling seed of the row: it is the same in every run, micro-batch and epoch.

    Args:
        assigner: An assigner, or the short name of one with its default settings.

    Example:
        >>> from lightning_rlvr.credit.margin import MarginCredit
        >>> PermutedCredit(MarginCredit()).requires
        frozenset({'margin'})
    """

    def __init__(self, assigner: CreditAssigner | str) -> None:
        super().__init__(assigner)
        (self.assigner,) = self.members
        self.formula = f"the following, in a random order within each completion: {self.assigner.formula}"

    @override
    def assign(self, rollout: Rollout, advantages: Tensor) -> Tensor:
        return permute_rows(self.assigner.assign(rollout, advantages), rollout.completion_mask, rollout.seeds)
