"""Cells as one job array of Slurm, by submitit."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from typing_extensions import override

from lightning_rlvr.checks import require, require_choice, require_package
from lightning_rlvr.sweep.launchers.base import LAUNCHERS, Launcher
from lightning_rlvr.sweep.runner import UNSET, Job, Outcome

if TYPE_CHECKING:
    import submitit

_SECONDS_BETWEEN_LOOKS = 1.0
_SUBMITTED = "_submitted.pkl"
"""End of the name of submitit's file for a job; what stands before is the id of the job."""


@dataclass(frozen=True, kw_only=True)
class ResumableJob:
    """A job that is queued again when its node is needed or its time is up, and then resumes from its checkpoint."""

    job: Job
    environment: Mapping[str, str]

    def __call__(self) -> Outcome:
        """Run the job; submitit's signal handler ends it by an exception."""
        return self.job.run(self.environment)

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """What to queue again: the same, for the state of a run is in its folder."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


@LAUNCHERS.register("slurm")
class SlurmLauncher(Launcher):
    """All runs are one job array; the command waits and shows how each one ends.

    It is run where `sbatch` works. Ctrl-C ends the command and leaves the array; the same command again waits for
    what is still queued or running and submits what else is not finished. All nodes must see the working directory
    and the folder of the sweep under the same path. A preempted run, or one whose time is up, is queued again and
    resumes from its checkpoint. What submitit writes is in `slurm/` in the folder of the sweep.

    Args:
        cluster: `slurm`, or `local` to try the same out with processes of this machine, all at once.
        partition: Partition to submit to; by default the cluster's own default.
        timeout_min: Minutes for a run before it is queued again.
        max_timeouts: How often a run whose time is up is queued again; preemptions are not counted.
        cpus_per_run: CPUs for each run; its threads (OMP_NUM_THREADS).
        gpus_per_run: GPUs for each run.
        mem_gb: Memory for each run, in GB; by default what the cluster gives.
        max_parallel: Runs at a time; by default as many as Slurm starts, at most 256.
        additional_parameters: More options of `sbatch`, such as `{"account": "me", "signal": "USR2@300"}`.
    """

    def __init__(
        self,
        cluster: Literal["slurm", "local"] = "slurm",
        partition: str | None = None,
        timeout_min: int = 240,
        max_timeouts: int = 10,
        cpus_per_run: int = 1,
        gpus_per_run: int = 0,
        mem_gb: float | None = None,
        max_parallel: int | None = None,
        additional_parameters: dict[str, Any] | None = None,
    ) -> None:
        require_package("submitit", "submitit", "slurm", "SlurmLauncher")
        require_choice("cluster", ("slurm", "local"), cluster)
        require(timeout_min >= 1, "timeout_min", "at least 1", timeout_min)
        require(max_timeouts >= 0, "max_timeouts", "at least 0", max_timeouts)
        require(cpus_per_run >= 1, "cpus_per_run", "at least 1", cpus_per_run)
        require(gpus_per_run >= 0, "gpus_per_run", "at least 0", gpus_per_run)
        require(mem_gb is None or mem_gb > 0, "mem_gb", "positive", mem_gb)
        require(max_parallel is None or max_parallel >= 1, "max_parallel", "at least 1", max_parallel)
        only_slurm = {
            "partition": partition,
            "mem_gb": mem_gb,
            "max_parallel": max_parallel,
            "additional_parameters": additional_parameters,
        }
        for name, value in only_slurm.items():
            require(cluster == "slurm" or value is None, name, "left out with `cluster` local", value)
        self.cluster = cluster
        self.max_timeouts = max_timeouts
        self.cpus_per_run = cpus_per_run
        self._parameters = {
            "timeout_min": timeout_min,
            "cpus_per_task": cpus_per_run,
            "gpus_per_node": gpus_per_run or None,
            "mem_gb": mem_gb,
            "slurm_partition": partition,
            "slurm_array_parallelism": max_parallel,
            "slurm_additional_parameters": additional_parameters,
        }

    @override
    def run(self, jobs: Sequence[Job]) -> Generator[Outcome, None, None]:
        if not jobs:
            return
        self._check_commands()
        folder = jobs[0].folder / "slurm"
        waiting = self._left(folder, jobs)  # looked up first: what has ended by now is finished, or has to run again
        others = [job for job in jobs if job.cell.folder not in waiting]
        finished = [job for job in others if job.finished]
        waiting |= self._submitted(folder, [job for job in others if job not in finished])
        try:
            for job in finished:
                yield job.run()  # at once
            while waiting:
                ended = [cell for cell, handle in waiting.items() if handle.done()]
                for cell in ended:
                    yield _outcome(cell, waiting.pop(cell))
                if not ended:
                    time.sleep(_SECONDS_BETWEEN_LOOKS)
        finally:
            if waiting:
                self._leave(list(waiting.values()))

    def _check_commands(self) -> None:
        for command in ("sbatch", "srun"):
            if self.cluster == "slurm" and shutil.which(command) is None:
                raise ValueError(f"`cluster` slurm needs the command {command}, which is not on the PATH")

    def _left(self, folder: Path, jobs: Sequence[Job]) -> dict[str, submitit.Job[Outcome]]:
        """Those that an earlier command has submitted and that are queued or running, by cell."""
        import submitit

        if self.cluster == "local":
            return {}
        ids = [path.name.removesuffix(_SUBMITTED) for path in sorted(folder.glob(f"*{_SUBMITTED}"))]
        handles = [submitit.SlurmJob[Outcome](folder, number) for number in ids]
        alive = [handle for handle in handles if not handle.done() and handle.state != "UNKNOWN"]
        submitted = [(cast(ResumableJob, handle.submission().function).job.cell, handle) for handle in alive]
        wanted = {job.cell.folder: job.cell for job in jobs}
        return {cell.folder: handle for cell, handle in submitted if wanted.get(cell.folder) == cell}

    def _submitted(self, folder: Path, jobs: Sequence[Job]) -> dict[str, submitit.Job[Outcome]]:
        """The handle of each job in a new array, by cell."""
        import submitit

        if not jobs:
            return {}
        timeouts = {f"{cluster}_max_num_timeout": self.max_timeouts for cluster in ("slurm", "local")}
        executor = submitit.AutoExecutor(folder, cluster=self.cluster, **timeouts)
        executor.update_parameters(name=folder.parent.name, **self._parameters)
        # with SLURM_NTASKS, Lightning takes the run for a task of srun's, and answers the signals itself
        environment = {"OMP_NUM_THREADS": str(self.cpus_per_run), "SLURM_NTASKS": UNSET}
        try:
            handles = executor.submit_array([ResumableJob(job=job, environment=environment) for job in jobs])
        except submitit.core.utils.FailedJobError as error:
            raise ValueError(f"sbatch refused the job array: {error}") from error
        return {job.cell.folder: handle for job, handle in zip(jobs, handles, strict=True)}

    def _leave(self, handles: Sequence[submitit.Job[Outcome]]) -> None:
        if self.cluster == "local":
            for handle in handles:
                handle.cancel()
            for handle in handles:
                handle.wait()
            return
        ids = ", ".join(sorted({handle.job_id.partition("_")[0] for handle in handles}))
        text = f"{len(handles)} runs are left to Slurm (job {ids}): the same command waits for them, scancel ends them"
        print(text, file=sys.stderr)  # noqa: T201  # how the command ended


def _outcome(cell: str, handle: submitit.Job[Outcome]) -> Outcome:
    import submitit

    try:
        return handle.result()
    except submitit.core.utils.UncompletedJobError:
        message = f"job {handle.job_id} ended without an outcome ({handle.state}): see {handle.paths.stderr}"
        return Outcome(cell=cell, status="failed", attempts=1, message=message)
