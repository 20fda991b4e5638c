"""The protocol of launchers, and their registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence

from lightning_rlvr.registry import Registry
from lightning_rlvr.sweep.runner import Job, Outcome


class Launcher(ABC):
    """Runs jobs somewhere. The arguments of the class are flags of `rlvr sweep --launcher NAME`."""

    slots: int | None = None
    """Runs at a time, where the launcher decides it."""

    @abstractmethod
    def run(self, jobs: Sequence[Job]) -> Generator[Outcome, None, None]:
        """Run all jobs; yield each outcome as its job ends. What happens to one job never stops the others.

        Closing the iterator, or an exception in it, ends what is running, unless the launcher says otherwise.
        """


LAUNCHERS: Registry[type[Launcher]] = Registry(
    "launcher", "lightning_rlvr.launchers", "lightning_rlvr.sweep.launchers"
)
