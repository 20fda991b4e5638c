"""Cells as tasks of a Ray cluster."""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Generator, Sequence
from typing import Any

from typing_extensions import override

from lightning_rlvr.checks import require, require_package
from lightning_rlvr.monitoring.files import read_json
from lightning_rlvr.sweep.launchers.base import LAUNCHERS, Launcher
from lightning_rlvr.sweep.runner import Job, Outcome

_AMOUNT = "a share of one or a whole number"
_FORWARDED = ("HF_", "RLVR_", "TOKENIZERS_")
"""Beginnings of variables that runs on other nodes need as they are here."""
_SECONDS_TO_END = 30
"""For cancelled tasks, more than a run needs to end after SIGTERM."""


@LAUNCHERS.register("ray")
class RayLauncher(Launcher):
    """Each run is a task that waits for its share of a node.

    All nodes must see the working directory and the folder of the sweep under the same path, and have the same
    packages: a run on a lost worker or node resumes on another one from the checkpoint that it finds there.

    Args:
        address: An existing cluster, `auto` for the one that this machine belongs to, or `host:port`; by default one
            of this machine alone is started for the sweep.
        cpus_per_run: CPUs that a run reserves; its threads (OMP_NUM_THREADS).
        gpus_per_run: GPUs that a run reserves and sees; half a GPU is shared with another run.
        max_retries: How often a run is started again after its worker or node was lost; failures of the run itself
            are retried by the sweep.
    """

    def __init__(
        self, address: str | None = None, cpus_per_run: float = 1, gpus_per_run: float = 0, max_retries: int = 3
    ) -> None:
        require_package("ray", "ray", "ray", "RayLauncher")
        require(cpus_per_run > 0 and _divides(cpus_per_run), "cpus_per_run", _AMOUNT, cpus_per_run)
        require(gpus_per_run >= 0 and _divides(gpus_per_run), "gpus_per_run", f"0, {_AMOUNT}", gpus_per_run)
        require(max_retries >= 0, "max_retries", "at least 0", max_retries)
        self.address = address
        self.cpus_per_run = cpus_per_run
        self.gpus_per_run = gpus_per_run
        self.max_retries = max_retries

    @override
    def run(self, jobs: Sequence[Job]) -> Generator[Outcome, None, None]:
        import ray

        connected = ray.is_initialized()
        if not connected:
            ray.init(
                address=self.address or "local",
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        pending: dict[ray.ObjectRef[Outcome], Job] = {}
        try:
            self._check_room()
            # only what the worker itself needs: Ray logs these variables, and there may be a token among the others
            path = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
            task: Any = ray.remote(
                num_cpus=self.cpus_per_run,
                num_gpus=self.gpus_per_run,
                max_retries=self.max_retries,
                runtime_env={"env_vars": path},
            )(Job.run)
            pending = {task.remote(job, self._environment()): job for job in jobs}
            while pending:
                [ended, *_], _ = ray.wait(list(pending))
                job = pending.pop(ended)
                try:
                    yield ray.get(ended)
                except ray.exceptions.RayError as error:
                    yield self._lost(job, error)
        finally:
            for one in pending:
                ray.cancel(one)
            if pending:
                ray.wait(list(pending), num_returns=len(pending), timeout=_SECONDS_TO_END)
            if not connected:
                ray.shutdown()

    def _environment(self) -> dict[str, str]:
        forwarded = {name: value for name, value in os.environ.items() if name.startswith(_FORWARDED)}
        own = {"OMP_NUM_THREADS": str(max(1, int(self.cpus_per_run)))}
        if not self.gpus_per_run:
            own["CUDA_VISIBLE_DEVICES"] = ""  # without a reservation, Ray leaves all GPUs of the node visible
        return forwarded | own

    def _check_room(self) -> None:
        """Refuse, or for a cluster that may grow report, a run that fits no node: it would wait without a word."""
        import ray

        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        wanted = {"CPU": self.cpus_per_run, "GPU": self.gpus_per_run}
        if any(all(node.get(kind, 0) >= number for kind, number in wanted.items()) for node in nodes):
            return
        text = f"no node of the Ray cluster has {self.cpus_per_run:g} CPUs and {self.gpus_per_run:g} GPUs"
        if self.address is None:
            raise ValueError(f"{text}; lower `cpus_per_run` or `gpus_per_run`")
        warnings.warn(f"{text}; the runs wait until one joins", stacklevel=2)

    def _lost(self, job: Job, error: Exception) -> Outcome:
        import ray

        attempts, cause = self.max_retries + 1, error
        if isinstance(error, ray.exceptions.RayTaskError):  # an exception of the job, which Ray does not retry
            attempts, cause = 1, error.cause
        message = f"{type(cause).__name__}: {str(cause).strip()}".splitlines()[0]
        seconds = read_json(job.path / "cell.json").get("seconds", 0.0)
        return Outcome(cell=job.cell.folder, status="failed", attempts=attempts, seconds=seconds, message=message)


def _divides(number: float) -> bool:
    """Ray divides a single CPU or GPU, not several."""
    return math.isfinite(number) and (number <= 1 or number == int(number))
