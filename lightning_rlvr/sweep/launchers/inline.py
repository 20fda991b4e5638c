"""All cells in this process, one after the other."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from typing_extensions import override

from lightning_rlvr.sweep.launchers.base import LAUNCHERS, Launcher
from lightning_rlvr.sweep.runner import Job, Outcome, in_process


@LAUNCHERS.register("inline")
class InlineLauncher(Launcher):
    """No process and no start-up time for each run: for many short ones."""

    slots = 1

    @override
    def run(self, jobs: Sequence[Job]) -> Generator[Outcome, None, None]:
        for job in jobs:
            yield job.run(call=in_process)
