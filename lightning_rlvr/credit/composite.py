"""What assigners made of other assigners share: united needs and laws."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping

from torch import Tensor
from typing_extensions import override

from lightning_rlvr.composite import Composite
from lightning_rlvr.credit.base import CREDIT_ASSIGNERS, CreditAssigner
from lightning_rlvr.types import Rollout


class CompositeCredit(Composite, CreditAssigner, ABC):
    """An assigner that asks others.

    Args:
        assigners: Assigners, or short names of assigners with their default settings.
    """

    members: tuple[CreditAssigner, ...]

    def __init__(self, *assigners: CreditAssigner | str) -> None:
        self.members = tuple(CREDIT_ASSIGNERS.build(assigner) for assigner in assigners)
        self.requires = frozenset[str]().union(*(a.requires for a in self.members))
        self.ablations = frozenset().union(*(a.ablations for a in self.members))
        self.conserves = all(a.conserves for a in self.members)
        self.row_local = all(a.row_local for a in self.members)

    @override
    def diagnostics(self, rollout: Rollout) -> Mapping[str, Tensor]:
        named: dict[str, Tensor] = {}
        for number, assigner in enumerate(self.members, start=1):
            for name, values in assigner.diagnostics(rollout).items():
                named[f"{name}_{number}" if name in named else name] = values
        return named
