"""What assigners made of other assigners share: united needs, forwarded hooks and state."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch.callbacks import Callback
from typing_extensions import override

from lightning_rlvr.credit.base import CREDIT_ASSIGNERS, CreditAssigner


class CompositeCredit(CreditAssigner, ABC):
    """An assigner that asks others; every Lightning hook and the state reach them in order.

    Args:
        members: Assigners, or short names of assigners with their default settings.
    """

    def __init__(self, *members: CreditAssigner | str) -> None:
        self.members = tuple(CREDIT_ASSIGNERS[m]() if isinstance(m, str) else m for m in members)
        self.requires = frozenset[str]().union(*(member.requires for member in self.members))
        self.ablations = frozenset().union(*(member.ablations for member in self.members))
        self.conserves = all(member.conserves for member in self.members)
        self.row_local = all(member.row_local for member in self.members)

    @property
    @override
    def state_key(self) -> str:
        return self._generate_state_key(members=[member.state_key for member in self.members])

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"members": [member.state_dict() for member in self.members]}

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        for member, state in zip(self.members, state_dict["members"], strict=True):
            member.load_state_dict(state)


def _forwarded(hook: str) -> Callable[..., None]:
    def call(self: CompositeCredit, *args: Any, **kwargs: Any) -> None:
        for member in self.members:
            getattr(member, hook)(*args, **kwargs)

    return call


for _hook in vars(Callback):
    if _hook.startswith("on_") or _hook in {"setup", "teardown"}:
        setattr(CompositeCredit, _hook, _forwarded(_hook))
