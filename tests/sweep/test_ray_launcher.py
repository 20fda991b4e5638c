"""Runs as tasks of a real Ray cluster on this machine."""

import os
import signal
from contextlib import closing
from dataclasses import replace
from threading import Thread

import pytest

from launched_jobs import ended, process_of, real, resumed_once, seen, stand_in, until
from lightning_rlvr.sweep.launchers.base import LAUNCHERS
from lightning_rlvr.sweep.launchers.ray import RayLauncher

ray = pytest.importorskip("ray", reason="needs the extra `ray`, which `make test` installs")


@pytest.fixture(scope="module")
def cluster():
    """One of the user's own, that no launcher may end."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    assert ray.is_initialized()
    ray.shutdown()


def run(launcher, jobs):
    """Outcomes by cell, gathered in a thread of its own so that a test can meddle meanwhile."""
    outcomes = {}

    def gather():
        outcomes.update({outcome.cell: outcome for outcome in launcher.run(jobs)})

    thread = Thread(target=gather, daemon=True)
    thread.start()
    return thread, outcomes


def test_it_is_known_by_its_short_name():
    assert LAUNCHERS["ray"] is RayLauncher


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cpus_per_run": 0}, r"`cpus_per_run` must be a share of one or a whole number, got 0"),
        ({"cpus_per_run": 1.5}, r"`cpus_per_run` must be a share of one or a whole number, got 1.5"),
        ({"gpus_per_run": -1}, r"`gpus_per_run` must be 0, a share of one or a whole number, got -1"),
        ({"gpus_per_run": float("nan")}, r"`gpus_per_run` must be 0, a share of one or a whole number, got nan"),
        ({"max_retries": -1}, r"`max_retries` must be at least 0, got -1"),
    ],
)
def test_what_ray_cannot_reserve_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        RayLauncher(**settings)


@pytest.mark.slow
def test_a_closed_sweep_ends_its_runs_and_the_cluster_that_it_started(tmp_path):
    assert not ray.is_initialized(), "this comes before the cluster of the other tests"
    job, fast = stand_in(tmp_path, "wait"), stand_in(tmp_path, seed=1)
    with closing(RayLauncher(cpus_per_run=0.5).run([job, fast])) as outcomes:
        assert next(outcomes).cell == "mcpo/seed_1"
        process = seen(job)
    until(lambda: ended(process["pid"]), seconds=20)
    assert not ray.is_initialized()


def test_outcomes_come_as_runs_end_and_a_failure_stops_no_other(tmp_path, cluster, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "once")
    last, first, failing = (stand_in(tmp_path, what, seed=n) for n, what in enumerate(("wait", "succeed", "fail")))
    broken = replace(first, folder=tmp_path / "cwd" / "lightning_rlvr" / "__main__.py")  # a file
    outcomes = []
    for outcome in RayLauncher(cpus_per_run=0.5).run([last, first, failing, broken]):
        outcomes.append(outcome)
        if len(outcomes) == 3:
            seen(last)  # it may start after the others have ended
            (last.path / "go").touch()
    assert (outcomes[3].cell, outcomes[3].status) == ("mcpo/seed_0", "finished")
    reasons = sorted(outcome.message for outcome in outcomes if outcome.status == "failed")
    assert len(reasons) == 2
    assert reasons[0].startswith("NotADirectoryError: ")
    assert reasons[1].startswith("`rlvr fit` ")
    environment = seen(last)["environment"]
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["HF_HUB_OFFLINE"] == "once"  # set here, after the cluster was started


def test_a_run_that_is_lost_for_good_is_a_failure_with_its_reason(tmp_path, cluster):
    job, other = stand_in(tmp_path, "wait"), stand_in(tmp_path, "succeed", seed=1)
    thread, outcomes = run(RayLauncher(max_retries=0), [job, other])
    process = seen(job)
    os.kill(process["parent"], signal.SIGKILL)
    thread.join(60)
    assert outcomes["mcpo/seed_1"].status == "finished"
    lost = outcomes["mcpo/seed_0"]
    assert (lost.status, lost.attempts) == ("failed", 1)
    assert lost.message.startswith("WorkerCrashedError: ")
    until(lambda: ended(process["pid"]), seconds=20)  # or it would write beside the one started in its place


def test_a_run_that_fits_no_node_is_reported(tmp_path, cluster):
    jobs = [stand_in(tmp_path)]
    with pytest.raises(ValueError, match=r"no node of the Ray cluster has 64 CPUs and 0 GPUs; lower `cpus_per_run`"):
        next(RayLauncher(cpus_per_run=64).run(jobs))
    with pytest.warns(UserWarning, match="has 1 CPUs and 1 GPUs; the runs wait until one joins"):
        assert not list(RayLauncher(address="auto", gpus_per_run=1).run([]))  # that cluster may grow


@pytest.mark.slow
def test_a_run_whose_worker_is_killed_resumes_from_its_checkpoint(tmp_path, cluster):
    job = real(tmp_path, max_steps=12)
    thread, outcomes = run(RayLauncher(), [job])
    process = process_of(job)
    process.parent().send_signal(signal.SIGKILL)
    thread.join(120)
    assert outcomes["mcpo/seed_0"].status == "finished", outcomes
    assert resumed_once(job)
