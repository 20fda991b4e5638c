"""Mixture credit: a convex combination of other assigners."""

from __future__ import annotations

import math

from torch import Tensor
from typing_extensions import override

from lightning_rlvr.checks import require
from lightning_rlvr.credit.base import CREDIT_ASSIGNERS, CreditAssigner
from lightning_rlvr.credit.composite import CompositeCredit
from lightning_rlvr.types import Rollout


@CREDIT_ASSIGNERS.register("mixture")
class MixtureCredit(CompositeCredit):
    """Token advantages of several assigners, averaged with fixed weights; conserves if all of them do.

    Args:
        assigners: The members: assigners, or short names of assigners with their default settings.
        weights: One non-negative weight for each member, with sum 1; equal ones when left out.

    Raises:
        ValueError: No members, or weights of another number, sign or sum.

    Example:
        >>> from lightning_rlvr.credit.margin import MarginCredit
        >>> from lightning_rlvr.credit.uniform import UniformCredit
        >>> MixtureCredit([UniformCredit(), MarginCredit()]).weights
        (0.5, 0.5)
    """

    def __init__(self, assigners: list[CreditAssigner | str], weights: list[float] | None = None) -> None:
        require(len(assigners) > 0, "assigners", "a list of at least one", assigners)
        weights = [1 / len(assigners)] * len(assigners) if weights is None else weights
        require(len(weights) == len(assigners), "weights", f"{len(assigners)} numbers, one for each assigner", weights)
        convex = min(weights) >= 0 and math.isclose(sum(weights), 1, abs_tol=1e-6)
        require(convex, "weights", "non-negative with sum 1", weights)
        super().__init__(*assigners)
        self.weights = tuple(weights)
        terms = (f"{weight:g} ({a.formula})" for weight, a in zip(self.weights, self.members, strict=True))
        self.formula = f"A_t = {' + '.join(terms)}"

    @property
    @override
    def state_key(self) -> str:
        return self._generate_state_key(members=[a.state_key for a in self.members], weights=self.weights)

    @override
    def assign(self, rollout: Rollout, advantages: Tensor) -> Tensor:
        first, *rest = (
            weight * assigner.assign(rollout, advantages)
            for weight, assigner in zip(self.weights, self.members, strict=True)
        )
        return sum(rest, start=first)
