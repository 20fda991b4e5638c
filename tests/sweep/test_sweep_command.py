import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml
from filelock import FileLock

from command_line import error
from lightning_rlvr.__main__ import main
from lightning_rlvr.calibration.base import CALIBRATORS
from lightning_rlvr.credit.base import CREDIT_ASSIGNERS
from lightning_rlvr.credit.uniform import UniformCredit
from lightning_rlvr.sweep.plan import check
from lightning_rlvr.sweep.runner import newest_run
from lightning_rlvr.sweep.spec import expand, read_spec
from sweeps import rollouts, small_spec

SWEEPS = Path(__file__).parents[2] / "sweeps"


class FailingCredit(UniformCredit):
    """Uniform credit that always raises."""

    def assign(self, rollout, advantages):
        raise RuntimeError("always [/INST] [a]")


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a sweep into the working directory; returns its name."""
    monkeypatch.chdir(tmp_path)

    def written(**changes):
        spec = dataclasses.asdict(small_spec(**changes))
        spec = {key: list(value) if isinstance(value, tuple) else value for key, value in spec.items()}
        spec.pop("baseline")
        Path("small.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
        return "small.yaml"

    return written


def output(capsys, *args):
    """What a command prints."""
    capsys.readouterr()
    main([*map(str, args)])
    return capsys.readouterr().out


def test_a_dry_run_shows_the_commands_and_leaves_nothing(write, capsys):
    shown = output(capsys, "sweep", write(), "--dry-run")
    assert shown.count("rlvr fit -c ") == shown.count("rlvr test -c ") == 4
    assert "--credit margin" in shown
    assert "--ckpt_path runs/small/mcpo/seed_1/version_0/checkpoints/last.ckpt" in shown
    # 3 steps x 2 problems x 4 completions x at most 8 tokens x 4 runs
    assert "4 runs, 4 to do, at most 768 sampled tokens in training; hours are estimated once" in shown
    assert not Path("runs").exists()


def test_a_sweep_runs_once_and_grows(write, capsys):
    shown = output(capsys, "sweep", write(test=None), "--launcher", "inline")
    assert "4 of 4 cells are finished in runs/small" in shown
    assert "next: rlvr report runs/small" in shown
    times = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("last.ckpt")}
    shown = output(capsys, "sweep", "small.yaml", "--launcher=inline", "--seeds", 0, 1, 2)
    assert shown.count("finished (before)") == 4
    assert "6 of 6 cells" in shown
    assert len(list(Path("runs").rglob("last.ckpt"))) == 6
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    shown = output(capsys, "sweep", "small.yaml", "--dry-run", "--seeds", 0, 1, 2, 3)
    assert "8 runs, 2 to do" in shown
    assert "run-hours" in shown
    plan = json.loads(Path("runs/small/sweep.json").read_text())
    assert plan["baseline"] == "grpo"
    assert {cell["seed"] for cell in plan["cells"]} == {0, 1, 2}
    assert [cell["folder"] for cell in plan["cells"]][::3] == ["grpo/seed_0", "mcpo/seed_1"]


def test_a_cell_with_another_command_is_refused(write, capsys):
    main(["sweep", write(test=None, seeds=(0,)), "--launcher=inline"])
    sentence = error(capsys, "sweep", write(test=None, max_steps=5), "--launcher=inline")
    assert "grpo/seed_0/version_0' is a run of another sweep: `max_steps` is 3 there and 5 here" in sentence
    assert "give this sweep another `name`" in sentence
    Path("runs/small/sweep.json").unlink()
    assert error(capsys, "sweep", "small.yaml", "--dry-run") == sentence
    for damaged in ("", "trainer: {max_steps: 3}", "model: null", "[3]"):
        Path("runs/small/grpo/seed_0/version_0/config.yaml").write_text(damaged)
        assert "seed_0/version_0/config.yaml' " in error(capsys, "sweep", "small.yaml", "--dry-run")


def test_a_changed_file_is_another_command(write, capsys):
    Path("credit.yaml").write_text("class_path: lightning_rlvr.credit.margin.MarginCredit")
    arms = {"mcpo": {"credit": "credit.yaml"}}
    main(["sweep", write(arms=arms, test=None, seeds=(0,)), "--launcher=inline"])
    Path("credit.yaml").write_text("{class_path: lightning_rlvr.credit.margin.MarginCredit, init_args: {lo: 0.1}}")
    sentence = error(capsys, "sweep", "small.yaml", "--launcher=inline")
    assert "is a run of another sweep: `credit.lo` is 0.2 there and 0.1 here" in sentence


def test_a_failed_cell_gives_the_exit_status(write, capsys):
    arms = {"grpo": {"credit": "uniform"}, "bad": {"credit": f"{__name__}.FailingCredit"}}
    with pytest.raises(SystemExit) as end:
        main(["sweep", write(arms=arms, seeds=(0,), test=None), "--launcher=inline", "--retries", "0"])
    assert end.value.code == 1
    shown = capsys.readouterr().out
    assert "1 of 2 cells are finished" in shown
    assert "failed: bad/seed_0: `rlvr fit` ended with status 1: RuntimeError: always [/INST] [a]" in shown
    assert "(log: runs/small/bad/seed_0/log.txt)" in shown


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"fixed": {"trainer.max_step": 3}},
            "arm 'grpo': unknown setting `trainer.max_step`; did you mean trainer.max_",
        ),
        ({"arms": {"a": {"credit": "margn"}}}, "arm 'a': unknown credit assigner 'margn'; choices: entropy, "),
        ({"arms": {"a": {"credit": "margin", "credit.hi": 0.1}}}, "arm 'a': "),
        ({"test": {"num_sample": 4}}, "`test`: unknown setting `num_sample`; did you mean num_samples"),
        ({"test": {"num_samples": 0}}, "`test`: `evaluation.num_samples` must be >= 1, got 0"),
        ({"max_steps": -1}, "arm 'grpo': `trainer.max_steps` must be given"),
    ],
)
def test_what_is_wrong_with_an_arm_is_said_before_anything_runs(write, capsys, changes, message):
    sentence = error(capsys, "sweep", write(**changes))
    assert message in sentence
    assert not Path("runs").exists()


def test_flags_are_those_of_the_launcher(write, capsys):
    name = write()
    assert "unknown setting `address`" in error(capsys, "sweep", name, "--address", "auto", "--dry-run")
    assert "unknown launcher 'rays'; choices: inline, local, ray, slurm" in error(
        capsys, "sweep", name, "--launcher", "rays"
    )
    assert "`retries` must be at least 0, got -1" in error(capsys, "sweep", name, "--retries", "-1")
    with pytest.raises(SystemExit):
        main(["sweep", "--launcher", "local", "--help"])
    assert "--slots" in capsys.readouterr().out


def test_cells_of_another_sweep_are_waited_for(write, capsys, monkeypatch):
    monkeypatch.setattr("lightning_rlvr.sweep.command._SECONDS_BETWEEN_LOOKS", 0.1)
    name = write(test=None, seeds=(0,))
    lock = FileLock("runs/small/mcpo/seed_0/.lock", thread_local=False)
    Path(lock.lock_file).parent.mkdir(parents=True)
    lock.acquire()
    threading.Timer(3, lock.release).start()
    shown = output(capsys, "sweep", name, "--launcher=inline")
    assert shown.count("waiting for cells that another sweep runs: mcpo/seed_0") == 1
    assert "2 of 2 cells are finished" in shown


def test_the_baseline_stays_and_other_tests_need_another_name(write, capsys):
    main(["sweep", write(test={"num_samples": 1}, seeds=(0,)), "--launcher=inline"])
    more = write(test={"num_samples": 2}, seeds=(0,), arms={"other": {"credit": "entropy"}})
    main(["sweep", more, "--launcher=inline"])
    assert json.loads(Path("runs/small/sweep.json").read_text())["baseline"] == "grpo"
    hotter = write(test={"num_samples": 2, "model.evaluation.temperature": 0.5}, seeds=(0,))
    sentence = error(capsys, "sweep", hotter, "--launcher=inline")
    assert "holds tests with `model.evaluation.temperature` 'unset', got 0.5" in sentence


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a process ends with its parent on Linux only")
def test_a_killed_sweep_leaves_no_run_behind_and_goes_on(write, capsys):
    name = write(test=None, seeds=(0,), max_steps=40)
    environment = {"PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "lightning_rlvr", "sweep", name, "--slots", "2"]
    process = subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.DEVNULL)
    checkpoint = Path("runs/small/grpo/seed_0/version_0/checkpoints/last.ckpt")
    while process.poll() is None and not checkpoint.exists():
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(1)
    log = checkpoint.parents[1] / "rollouts.jsonl"
    before = log.stat().st_size
    time.sleep(1)
    assert log.stat().st_size == before
    shown = output(capsys, "sweep", name, "--launcher=inline")
    assert "2 of 2 cells are finished" in shown
    runs = [newest_run(Path("runs/small") / arm / "seed_0") for arm in ("grpo", "mcpo")]
    assert rollouts(runs[0]) == rollouts(runs[1])
    assert [line["step"] for line in rollouts(runs[0])] == list(range(1, 41))


# --- the sweeps that we ship ---


@pytest.mark.parametrize("file", sorted(SWEEPS.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_sweep_of_ours_fits_the_command_line(file, monkeypatch):
    monkeypatch.chdir(SWEEPS.parent)
    cells = expand(read_spec(file))
    classes = {tuple(cell.settings): cell for cell in cells}  # one for each kind of arm
    assert check([*classes.values(), cells[-1]])


def test_the_readme_names_every_sweep():
    text = (SWEEPS / "README.md").read_text()
    assert all(f"`{file.stem}`" in text for file in SWEEPS.glob("*.yaml"))


def chosen_class(registry, value):
    """Name of the class that a short name or a file stands for."""
    if value in registry:
        return registry[value].__name__
    return yaml.safe_load(Path(value).read_text())["class_path"].rpartition(".")[2]


@pytest.mark.slow
def test_every_registered_pair_takes_two_steps(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(SWEEPS.parent)
    cells = expand(read_spec(SWEEPS / "smoke.yaml"))
    parts = (("calibrator", CALIBRATORS), ("credit", CREDIT_ASSIGNERS))
    chosen = {tuple(chosen_class(registry, cell.settings[name]) for name, registry in parts) for cell in cells}
    for calibrator in CALIBRATORS:
        for assigner in CREDIT_ASSIGNERS:
            pair = CALIBRATORS[calibrator].__name__, CREDIT_ASSIGNERS[assigner].__name__
            assert pair in chosen, f"sweeps/smoke.yaml must hold {calibrator} x {assigner}"
    shown = output(capsys, "sweep", "sweeps/smoke.yaml", "--launcher=inline", "--runs_dir", tmp_path)
    assert f"{len(cells)} of {len(cells)} cells are finished" in shown
