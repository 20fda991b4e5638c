"""What assigners made of other assigners share: united needs, forwarded hooks and state."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch.callbacks import Callback
from torch import Tensor
from typing_extensions import override

from lightning_rlvr.credit.base import CREDIT_ASSIGNERS, CreditAssigner
from lightning_rlvr.types import Rollout


class CompositeCredit(CreditAssigner, ABC):
    """An assigner that asks others; every Lightning hook and the state reach them in order.

    Args:
        assigners: Assigners, or short names of assigners with their default settings.
    """

    def __init__(self, *assigners: CreditAssigner | str) -> None:
        self.assigners = tuple(CREDIT_ASSIGNERS[a]() if isinstance(a, str) else a for a in assigners)
        self.requires = frozenset[str]().union(*(a.requires for a in self.assigners))
        self.ablations = frozenset().union(*(a.ablations for a in self.assigners))
        self.conserves = all(a.conserves for a in self.assigners)
        self.row_local = all(a.row_local for a in self.assigners)

    @property
    @override
    def state_key(self) -> str:
        return self._generate_state_key(assigners=[a.state_key for a in self.assigners])

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"assigners": [a.state_dict() for a in self.assigners]}

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        for assigner, state in zip(self.assigners, state_dict["assigners"], strict=True):
            assigner.load_state_dict(state)

    @override
    def diagnostics(self, rollout: Rollout) -> Mapping[str, Tensor]:
        return {name: values for a in self.assigners for name, values in a.diagnostics(rollout).items()}


def _forwarded(hook: str) -> Callable[..., None]:
    def call(self: CompositeCredit, *args: Any, **kwargs: Any) -> None:
        for a in self.assigners:
            getattr(a, hook)(*args, **kwargs)

    return call


for _hook in vars(Callback):
    if _hook.startswith("on_") or _hook in {"setup", "teardown"}:
        setattr(CompositeCredit, _hook, _forwarded(_hook))
