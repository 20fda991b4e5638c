import json
import threading
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from filelock import FileLock

from lightning_rlvr.credit.uniform import UniformCredit
from lightning_rlvr.sweep.launchers.inline import InlineLauncher
from lightning_rlvr.sweep.launchers.local import LocalLauncher
from lightning_rlvr.sweep.runner import StoppedError, in_process, newest_run, trained
from sweeps import jobs, rollouts


class CrashesOnce(UniformCredit):
    """Uniform credit that raises in its third step, the first time."""

    def assign(self, rollout, advantages):
        global steps
        steps += 1
        if steps == 3:
            raise RuntimeError("out of luck")
        return super().assign(rollout, advantages)


steps = 0


class Called:
    """Runs commands in this process and remembers them."""

    def __init__(self):
        self.commands = []

    def __call__(self, args, *others):
        self.commands.append(list(args))
        return in_process(args, *others)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    cells = jobs(folder)
    assert [outcome.status for outcome in InlineLauncher().run(cells)] == ["finished"] * 4
    return folder, cells


def test_arms_of_a_seed_see_the_same_problems_in_the_same_order_with_the_same_seeds(finished):
    _, cells = finished
    seen = {job.cell.folder: rollouts(newest_run(job.path)) for job in cells}
    assert len(seen["grpo/seed_0"]) == 3
    assert len(seen["grpo/seed_0"][0]["seeds"]) == 8  # two problems with four completions
    for seed in (0, 1):
        assert seen[f"grpo/seed_{seed}"] == seen[f"mcpo/seed_{seed}"]
    assert seen["grpo/seed_0"][0]["problems"] != seen["grpo/seed_1"][0]["problems"]
    assert not set(seen["grpo/seed_0"][0]["seeds"]) & set(seen["grpo/seed_1"][0]["seeds"])


def test_arms_of_a_seed_are_tested_on_the_same_samples_of_other_weights(finished):
    _, cells = finished
    tables = {}
    for job in cells:
        [file] = (newest_run(job.path) / "eval").glob("*/per_problem.parquet")
        tables[job.cell.folder] = pq.read_table(file).select(["problem_hash", "sample", "seed"]).to_pylist()
        conditions = json.loads((file.parent / "settings.json").read_text())["conditions"]
        assert conditions["step"] == 3
    assert tables["grpo/seed_0"] == tables["mcpo/seed_0"] != tables["grpo/seed_1"]


def test_a_finished_cell_is_not_run_again(finished):
    _, [first, *_] = finished
    call = Called()
    outcome = first.run(call=call)
    assert (outcome.status, outcome.attempts, call.commands) == ("finished", 0, [])
    assert outcome.seconds > 0


def test_more_samples_cost_a_test_and_no_training(finished):
    folder, [first, *_] = finished
    [again, *_] = jobs(folder, test={"num_samples": 3})
    call = Called()
    assert again.run(call=call).status == "finished"
    assert [command[0] for command in call.commands] == ["test"]
    [file] = (newest_run(first.path) / "eval").glob("*/per_problem.parquet")
    assert set(pq.read_table(file)["sample"].to_pylist()) == {0, 1, 2}


def test_a_cell_that_crashed_resumes_and_ends_like_one_that_did_not(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.steps", 0)
    [crashing, *_] = jobs(tmp_path, arms={"grpo": {"credit": f"{__name__}.CrashesOnce"}})
    call = Called()
    outcome = crashing.run(call=call)
    assert (outcome.status, outcome.attempts) == ("finished", 2)
    assert [command[0] for command in call.commands] == ["fit", "fit", "test"]
    assert call.commands[1][-1].endswith("version_0/checkpoints/last.ckpt")
    _, [whole, *_] = finished
    assert rollouts(newest_run(crashing.path)) == rollouts(newest_run(whole.path))
    assert "out of luck" in (crashing.path / "log.txt").read_text()


def test_a_failed_cell_is_reported_and_stops_no_other(tmp_path):
    arms = {"bad": {"credit": f"{__name__}.Missing"}, "good": {"credit": "uniform"}}
    bad, good = InlineLauncher().run(jobs(tmp_path, arms=arms, seeds=(0,)))
    assert (bad.status, bad.attempts, good.status) == ("failed", 2, "finished")
    assert bad.message.startswith("`rlvr fit` ended with status 1: ")
    assert "Missing" in bad.message
    kept = json.loads((tmp_path / "small" / "bad" / "seed_0" / "cell.json").read_text())
    assert (kept["status"], kept["message"]) == ("failed", bad.message)


class StopsEarly(UniformCredit):
    """Uniform credit that asks the trainer to stop after a step."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        trainer.should_stop = True


def test_a_run_that_ends_before_its_last_step_is_not_finished(tmp_path):
    [job] = jobs(tmp_path, arms={"grpo": {"credit": f"{__name__}.StopsEarly"}}, seeds=(0,))
    outcome = replace(job, retries=0).run(call=in_process)
    assert outcome.status == "failed"
    assert outcome.message.startswith("`rlvr fit` was stopped before its last step")


@pytest.mark.parametrize("damage", ["", "[]", '{"status": "finished"}', '{"seconds": null}'])
def test_a_damaged_record_costs_nothing_but_itself(tmp_path, damage):
    [job] = jobs(tmp_path, arms={"grpo": {}}, seeds=(0,), test=None)
    job.path.mkdir(parents=True)
    (job.path / "cell.json").write_text(damage)
    if "finished" not in damage:
        assert not job.finished
    assert job.seconds == 0
    (job.path / "cell.json").write_text("{")
    (job.path / "version_0").mkdir()
    (job.path / "version_0" / "progress.json").write_text("")
    assert not trained(job.path / "version_0")


def test_what_fails_in_a_cell_stops_no_other(tmp_path):
    [bad, good] = jobs(tmp_path, seeds=(0,), test=None)
    bad.path.parent.mkdir(parents=True)
    bad.path.write_text("in the way")
    outcomes = list(InlineLauncher().run([bad, good]))
    assert [outcome.status for outcome in outcomes] == ["failed", "finished"]
    assert outcomes[0].message.startswith("FileExistsError")


def test_a_cell_that_another_sweep_runs_is_left_to_it(tmp_path):
    [job, *_] = jobs(tmp_path)
    job.path.mkdir(parents=True)
    with FileLock(job.path / ".lock"):
        outcome = job.run(call=Called())
    assert (outcome.status, list(job.path.glob("version_*"))) == ("busy", [])


def test_a_run_killed_after_its_last_checkpoint_is_not_trained_again(tmp_path):
    [job, *_] = jobs(tmp_path, arms={"grpo": {"credit": "uniform"}}, test=None, seeds=(0,))
    job.run(call=in_process)
    run = newest_run(job.path)
    progress = json.loads((run / "progress.json").read_text())
    (run / "progress.json").write_text(json.dumps(progress | {"finished": False, "step": 2}))
    (job.path / "cell.json").unlink()
    assert trained(run)
    repaired = json.loads((run / "progress.json").read_text())
    assert (repaired["finished"], repaired["step"]) == (True, 3)  # the report reads it
    call = Called()
    assert job.run(call=call).status == "finished"
    assert call.commands == []


@pytest.mark.slow
def test_a_stopped_job_ends_its_process_and_goes_on_later(tmp_path):
    [job] = jobs(tmp_path, arms={"grpo": {}}, seeds=(0,), max_steps=3000)
    stop, failure = threading.Event(), []

    def run():
        try:
            job.run({"PYTHONPATH": str(Path(__file__).parents[1])}, stop)
        except StoppedError as error:
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    checkpoint = job.path / "version_0" / "checkpoints" / "last.ckpt"
    while thread.is_alive() and not checkpoint.exists():
        thread.join(0.1)
    stop.set()
    thread.join(60)
    assert failure, (job.path / "log.txt").read_text()[-2000:]
    steps = len(rollouts(job.path / "version_0"))
    [shorter] = jobs(tmp_path, arms={"grpo": {}}, seeds=(0,), max_steps=steps + 2)
    call = Called()
    assert shorter.run(call=call).status == "finished"
    assert call.commands[0][-2:] == ["--ckpt_path", "small/grpo/seed_0/version_0/checkpoints/last.ckpt"]
    assert [line["step"] for line in rollouts(job.path / "version_0")] == list(range(1, steps + 3))


def test_slots_share_cores_and_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    environments = LocalLauncher(slots=2, threads_per_run=4)._environments
    assert environments == [
        {"OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "3"},
        {"OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "5"},
    ]
    assert len(LocalLauncher()._environments) == 2
    [all_of_them] = LocalLauncher(slots=1)._environments
    assert all_of_them["CUDA_VISIBLE_DEVICES"] == "3,5"
    with pytest.raises(ValueError, match="`slots` must be at least 1, got 0"):
        LocalLauncher(slots=0)
