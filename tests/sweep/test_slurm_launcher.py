"""Runs by submitit: processes of this machine, and a job array of a Slurm that is a few scripts."""

import json
import os
import signal
import sys
from contextlib import closing
from threading import Thread, Timer

import pytest
from lightning.fabric.plugins.environments import SLURMEnvironment

from launched_jobs import ended, process_of, real, resumed_once, seen, stand_in, until
from lightning_rlvr.sweep.launchers.base import LAUNCHERS
from lightning_rlvr.sweep.launchers.slurm import ResumableJob, SlurmLauncher

submitit = pytest.importorskip("submitit", reason="needs the extra `slurm`, which `make test` installs")

SBATCH = r"""
import os, re, subprocess, sys
from pathlib import Path

root, text = Path(__file__).parent, Path(sys.argv[1]).read_text()
number = 1 + len(list(root.glob("*.sh")))
script = root / f"{number}.sh"
script.write_text(text)
for task in range(int(re.search(r"--array=0-(\d+)", text)[1]) + 1):  # an array: more than one job
    ids = {"SLURM_JOB_ID": f"9{task}", "SLURM_ARRAY_JOB_ID": f"{number}", "SLURM_ARRAY_TASK_ID": f"{task}"}
    environment = os.environ | ids | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_JOB_NAME": "sweep"}
    nothing = {name: subprocess.DEVNULL for name in ("stdin", "stdout", "stderr")}
    subprocess.Popen(["bash", str(script)], env=environment, start_new_session=True, **nothing)
print(f"Submitted batch job {number}")
"""
SRUN = """
import os, sys

start = next(n for n, arg in enumerate(sys.argv) if os.path.basename(arg).startswith("python"))
os.execv(sys.argv[start], sys.argv[start:])
"""
SACCT = """
from pathlib import Path

print("JobID|State|NodeList")
for line in (Path(__file__).parent / "states").read_text().split():
    print(f"{line}|here")
"""
SCONTROL = """
import os, subprocess, sys
from pathlib import Path

assert sys.argv[1] == "requeue"
script = Path(__file__).parent / (sys.argv[2].partition("_")[0] + ".sh")
once_it_ended = f"while kill -0 {os.getppid()} 2>/dev/null; do sleep 0.1; done; exec bash {script}"
nothing = {name: subprocess.DEVNULL for name in ("stdin", "stdout", "stderr")}
subprocess.Popen(["bash", "-c", once_it_ended], start_new_session=True, **nothing)
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Folder of the commands of a Slurm that starts everything at once on this machine."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {"sbatch": SBATCH, "srun": SRUN, "sacct": SACCT, "scontrol": SCONTROL}.items():
        (folder / name).write_text(f"#!{sys.executable}\n{text}")
        (folder / name).chmod(0o755)
    (folder / "states").write_text("")
    submitit.SlurmJob.watcher.clear()  # of the jobs of other tests, which had the same numbers
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return folder


def gather(outcomes):
    return {outcome.cell: outcome for outcome in outcomes}


def test_it_is_known_by_its_short_name():
    assert LAUNCHERS["slurm"] is SlurmLauncher


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cluster": "slrum"}, r"`cluster` must be one of slurm, local, got 'slrum'"),
        ({"timeout_min": 0}, r"`timeout_min` must be at least 1, got 0"),
        ({"max_timeouts": -1}, r"`max_timeouts` must be at least 0, got -1"),
        ({"cpus_per_run": 0}, r"`cpus_per_run` must be at least 1, got 0"),
        ({"gpus_per_run": -1}, r"`gpus_per_run` must be at least 0, got -1"),
        ({"mem_gb": 0.0}, r"`mem_gb` must be positive, got 0.0"),
        ({"max_parallel": 0}, r"`max_parallel` must be at least 1, got 0"),
        ({"cluster": "local", "partition": "gpu"}, r"`partition` must be left out with `cluster` local, got 'gpu'"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        SlurmLauncher(**settings)


def test_without_slurm_the_missing_command_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="`cluster` slurm needs the command sbatch, which is not on the PATH"):
        next(SlurmLauncher().run([stand_in(tmp_path)]))


def test_all_runs_are_one_array_and_a_failure_stops_no_other(tmp_path, slurm):
    jobs = [stand_in(tmp_path, what, seed=n) for n, what in enumerate(("succeed", "fail"))]
    launcher = SlurmLauncher(
        partition="gpu", timeout_min=90, cpus_per_run=2, mem_gb=4, max_parallel=1, additional_parameters={"qos": "low"}
    )
    outcomes = gather(launcher.run(jobs))
    assert outcomes["mcpo/seed_0"].status == "finished"
    assert (outcomes["mcpo/seed_1"].status, outcomes["mcpo/seed_1"].attempts) == ("failed", 1)
    [script] = slurm.glob("*.sh")
    options = [line.removeprefix("#SBATCH --") for line in script.read_text().splitlines() if "#SBATCH" in line]
    expected = {"array=0-1%1", "partition=gpu", "time=90", "cpus-per-task=2", "mem=4GB", "qos=low", "job-name=sweep"}
    assert expected <= {*options}
    assert not any(option.startswith("gpus") for option in options)


def test_a_run_does_not_take_itself_for_a_task_of_srun(tmp_path, slurm, monkeypatch):
    job, other = stand_in(tmp_path), stand_in(tmp_path, seed=1)
    gather(SlurmLauncher(cpus_per_run=3).run([job, other]))
    environment = seen(job)["environment"]
    assert environment["SLURM_ARRAY_JOB_ID"] == "1"
    assert environment["OMP_NUM_THREADS"] == "3"
    monkeypatch.setattr(os, "environ", environment | {"SLURM_NTASKS": "1"})
    assert SLURMEnvironment.detect()
    monkeypatch.setattr(os, "environ", environment)
    with pytest.warns(UserWarning, match="`srun` command is available"):
        assert not SLURMEnvironment.detect()


def test_a_finished_cell_is_not_submitted(tmp_path, slurm):
    job = stand_in(tmp_path)
    job.run()
    [outcome] = SlurmLauncher().run([job])
    assert (outcome.status, outcome.attempts) == ("finished", 0)
    assert not [*slurm.glob("*.sh")]


def test_a_left_array_is_waited_for_by_the_next_command(tmp_path, slurm, capsys):
    jobs = [stand_in(tmp_path, what, seed=n) for n, what in enumerate(("wait", "succeed", "wait"))]
    (slurm / "states").write_text("1_0|RUNNING 1_2|RUNNING")
    with closing(SlurmLauncher().run(jobs)) as outcomes:
        assert next(outcomes).cell == "mcpo/seed_1"
        processes = [seen(jobs[0]), seen(jobs[2])]
    assert capsys.readouterr().err.startswith("2 runs are left to Slurm (job 1): the same command waits for them")
    assert not any(ended(process["pid"]) for process in processes)

    Timer(2, lambda: [(job.path / "go").touch() for job in jobs]).start()
    again = gather(SlurmLauncher().run(jobs))
    assert [again[job.cell.folder].status for job in jobs] == ["finished"] * 3
    assert len([*slurm.glob("*.sh")]) == 1, "nothing was submitted twice"


def test_jobs_that_slurm_knows_nothing_of_are_submitted_again_and_never_run_twice_at_once(tmp_path, slurm):
    jobs = [stand_in(tmp_path, what, seed=n) for n, what in enumerate(("wait", "succeed", "wait"))]
    with closing(SlurmLauncher().run(jobs)) as outcomes:
        assert next(outcomes).cell == "mcpo/seed_1"
        processes = [seen(jobs[0]), seen(jobs[2])]
    again = gather(SlurmLauncher().run(jobs))
    assert [again[job.cell.folder].status for job in jobs] == ["busy", "finished", "busy"]
    assert [seen(jobs[0]), seen(jobs[2])] == processes
    for job in jobs:
        (job.path / "go").touch()


def test_a_preempted_run_ends_its_command_and_is_queued_again(tmp_path, slurm):
    jobs = [stand_in(tmp_path, what, seed=n) for n, what in enumerate(("wait", "succeed"))]
    (slurm / "states").write_text("1_0|RUNNING 1_1|RUNNING")
    outcomes = SlurmLauncher().run(jobs)
    assert next(outcomes).cell == "mcpo/seed_1"
    first = seen(jobs[0])
    (jobs[0].path / "seen.json").unlink()
    os.kill(first["parent"], signal.SIGUSR2)  # what Slurm sends
    second = seen(jobs[0])
    assert ended(first["pid"])
    assert second["environment"]["SLURM_ARRAY_TASK_ID"] == "0"
    (jobs[0].path / "go").touch()
    assert gather(outcomes)["mcpo/seed_0"].status == "finished"


def test_a_run_whose_time_is_up_too_often_is_a_failure_that_says_so(tmp_path, slurm):
    jobs = [stand_in(tmp_path, what, seed=n) for n, what in enumerate(("wait", "succeed"))]
    (slurm / "states").write_text("1_0|RUNNING 1_1|RUNNING")
    outcomes = SlurmLauncher(timeout_min=1, max_timeouts=0).run(jobs)  # submitit: the last 10 minutes are a timeout
    assert next(outcomes).cell == "mcpo/seed_1"
    os.kill(seen(jobs[0])["parent"], signal.SIGUSR2)
    [outcome] = outcomes
    assert outcome.status == "failed"
    assert outcome.message.endswith("Job not requeued because: timed-out too many times.")


def test_a_cancelled_run_is_a_failure_that_says_where_to_look(tmp_path, slurm, monkeypatch):
    monkeypatch.setattr(submitit.SlurmJob, "_results_timeout_s", 0)
    jobs = [stand_in(tmp_path, what, seed=n) for n, what in enumerate(("wait", "succeed"))]
    (slurm / "states").write_text("1_0|RUNNING 1_1|RUNNING")
    outcomes = SlurmLauncher().run(jobs)
    assert next(outcomes).cell == "mcpo/seed_1"
    os.kill(seen(jobs[0])["parent"], signal.SIGKILL)
    (slurm / "states").write_text("1_0|CANCELLED 1_1|COMPLETED")
    submitit.SlurmJob.watcher.clear()  # it would ask sacct again in a while
    [outcome] = outcomes
    assert (outcome.cell, outcome.status) == ("mcpo/seed_0", "failed")
    assert outcome.message == (
        f"job 1_0 ended without an outcome (CANCELLED): see {tmp_path / 'sweep' / 'slurm' / '1_0_0_log.err'}"
    )


def test_a_refusal_of_sbatch_is_told(tmp_path, slurm):
    (slurm / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: gpu' >&2\nexit 1\n")
    with pytest.raises(ValueError, match="sbatch refused the job array: sbatch: error: invalid partition specified"):
        next(SlurmLauncher(partition="gpu").run([stand_in(tmp_path), stand_in(tmp_path, seed=1)]))


def test_a_full_disk_is_a_failure_of_that_cell(tmp_path):
    job = stand_in(tmp_path)
    tmp_path.joinpath("sweep").write_text("in the way")
    outcome = ResumableJob(job=job, environment={})()
    assert (outcome.status, outcome.attempts) == ("failed", 1)
    assert "Not a directory" in outcome.message


def test_what_is_queued_again_is_the_same_job(tmp_path):
    once = ResumableJob(job=stand_in(tmp_path), environment={"A": "b"})
    assert once.checkpoint().function == once


def test_a_closed_local_sweep_ends_its_runs(tmp_path):
    job, fast = stand_in(tmp_path, "wait"), stand_in(tmp_path, seed=1)
    with closing(SlurmLauncher(cluster="local").run([job, fast])) as outcomes:
        assert next(outcomes).cell == "mcpo/seed_1"
        process = seen(job)
    until(lambda: ended(process["pid"]), seconds=20)


@pytest.mark.slow
def test_a_preempted_run_is_queued_again_and_resumes_from_its_checkpoint(tmp_path):
    job = real(tmp_path, max_steps=12)
    outcomes = {}
    launcher = SlurmLauncher(cluster="local")
    thread = Thread(target=lambda: outcomes.update(gather(launcher.run([job]))), daemon=True)
    thread.start()
    process_of(job).parent().send_signal(signal.SIGUSR2)  # what Slurm sends
    thread.join(120)
    assert outcomes["mcpo/seed_0"].status == "finished", outcomes
    assert resumed_once(job)
    assert json.loads((job.path / "cell.json").read_text())["status"] == "finished"
