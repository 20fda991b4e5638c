"""Several processes at a time on this machine."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
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
        self.slots = max(1, len(gpus)) if slots is None else slots
        require(self.slots >= 1, "slots", "at least 1", slots)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.threads_per_run = max(1, cores // self.slots) if threads_per_run is None else threads_per_run
        require(self.threads_per_run >= 1, "threads_per_run", "at least 1", threads_per_run)
        self._environments = [self._environment(slot, gpus) for slot in range(self.slots)]

    def _environment(self, slot: int, gpus: Sequence[str]) -> dict[str, str]:
        threads = {"OMP_NUM_THREADS": str(self.threads_per_run)}
        share = [gpu for number, gpu in enumerate(gpus) if number % self.slots == slot]
        own = share or ([gpus[slot % len(gpus)]] if gpus else [])
        return threads | ({"CUDA_VISIBLE_DEVICES": ",".join(own)} if own else {})

    @override
    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        stop = threading.Event()
        free: SimpleQueue[Mapping[str, str]] = SimpleQueue()
        for environment in self._environments:
            free.put(environment)

        def run(job: Job) -> Outcome:
            environment = free.get()
            try:
                return job.run(environment, stop)
            except OSError as error:  # a full disk, say: of this cell
                return Outcome(cell=job.cell.folder, status="failed", attempts=1, message=str(error))
            finally:
                free.put(environment)

        with ThreadPoolExecutor(self.slots) as pool:
            try:
                for future in as_completed([pool.submit(run, job) for job in jobs]):
                    yield future.result()
            finally:
                stop.set()
                pool.shutdown(wait=True, cancel_futures=True)


def visible_gpus() -> list[str]:
    """Names of the GPUs that this process may use, as in CUDA_VISIBLE_DEVICES."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [name.strip() for name in listed.split(",") if name.strip() and name.strip() != "-1"]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]
