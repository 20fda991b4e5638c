"""Several processes at a time on this machine."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from queue import SimpleQueue

from typing_extensions import override

from lightning_rlvr.checks import require
from lightning_rlvr.sweep.launchers.base import LAUNCHERS, Launcher
from lightning_rlvr.sweep.runner import Job, Outcome


@LAUNCHERS.register("local")
class LocalLauncher(Launcher):
    """Each slot runs one cell at a time in a process of its own, on its own share of cores and GPUs.

    Args:
        slots: Runs at a time; by default one for each visible GPU, without any one.
        threads_per_run: Threads of a run (OMP_NUM_THREADS); by default the cores, divided among the slots.
    """

    def __init__(self, slots: int | None = None, threads_per_run: int | None = None) -> None:
        gpus = visible_gpus()
        number = max(1, len(gpus)) if slots is None else slots
        require(number >= 1, "slots", "at least 1", slots)
        cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        threads = max(1, cores // number) if threads_per_run is None else threads_per_run
        require(threads >= 1, "threads_per_run", "at least 1", threads_per_run)
        self.slots = number
        self._environments = [
            {"OMP_NUM_THREADS": str(threads), **_share_of_gpus(slot, number, gpus)} for slot in range(number)
        ]

    @override
    def run(self, jobs: Sequence[Job]) -> Generator[Outcome, None, None]:
        stop = threading.Event()
        free: SimpleQueue[Mapping[str, str]] = SimpleQueue()
        for environment in self._environments:
            free.put(environment)

        def run(job: Job) -> Outcome:
            environment = free.get()
            try:
                return job.run(environment, stop)
            finally:
                free.put(environment)

        with ThreadPoolExecutor(len(self._environments)) as pool:
            try:
                for future in as_completed([pool.submit(run, job) for job in jobs]):
                    yield future.result()
            finally:
                stop.set()
                pool.shutdown(wait=True, cancel_futures=True)


def _share_of_gpus(slot: int, slots: int, gpus: Sequence[str]) -> dict[str, str]:
    """Every ``slots``-th GPU; one that several slots share where there are fewer GPUs than slots."""
    if not gpus:
        return {}
    own = gpus[slot::slots] or [gpus[slot % len(gpus)]]
    return {"CUDA_VISIBLE_DEVICES": ",".join(own)}


def visible_gpus() -> list[str]:
    """Names of the GPUs that this process may use, as in CUDA_VISIBLE_DEVICES."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [name.strip() for name in listed.split(",") if name.strip() and name.strip() != "-1"]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]
