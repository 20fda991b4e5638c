"""Plug-ins made of other plug-ins: whatever Lightning tells the whole reaches its members."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch.callbacks import Callback
from typing_extensions import override


class Composite(Callback):
    """A callback that forwards every hook, and its state, to its members in order.

    It comes first among the bases of a class, before the protocol whose hooks it forwards.
    """

    members: tuple[Callback, ...]

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
    def call(self: Composite, *args: Any, **kwargs: Any) -> None:
        for member in self.members:
            getattr(member, hook)(*args, **kwargs)

    return call


for _hook in vars(Callback):
    if _hook.startswith("on_") or _hook in {"setup", "teardown"}:
        setattr(Composite, _hook, _forwarded(_hook))
