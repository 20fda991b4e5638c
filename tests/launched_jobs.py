"""Jobs for the launchers: a stand-in command that waits to be let go, and a real run."""

import json
import time

import psutil

from command_line import CONFIGS, SMALL, TINY
from lightning_rlvr.sweep.runner import Job
from lightning_rlvr.sweep.spec import Cell

_STAND_IN = """
import json, os, sys, time
from pathlib import Path

cell, wait = Path(sys.argv[2]), sys.argv[3] == "wait"
seen = {"pid": os.getpid(), "parent": os.getppid(), "environment": dict(os.environ)}
(cell / "new.json").write_text(json.dumps(seen))
(cell / "new.json").rename(cell / "seen.json")
for _ in range(1200 if wait else 0):  # a minute: a failed test leaves none behind for good
    if (cell / "go").exists():
        break
    time.sleep(0.05)
if sys.argv[3] != "fail":
    (cell / "version_0").mkdir(exist_ok=True)
    (cell / "version_0" / "progress.json").write_text(json.dumps({"finished": True}))
"""


def stand_in(folder, what="succeed", arm="mcpo", seed=0):
    """A job whose command is a script beside the working directory's own `lightning_rlvr`."""
    package = folder / "cwd" / "lightning_rlvr"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__main__.py").write_text(_STAND_IN)
    cell = Cell(arm=arm, seed=seed, settings={}, fit=("fit", str(folder / "sweep" / arm / f"seed_{seed}"), what))
    return Job(cell=cell, folder=folder / "sweep", cwd=package.parent, retries=0)


def real(folder, max_steps):
    """A run of the tiny model with a checkpoint after each step."""
    args = [
        "-c",
        str(TINY),
        *SMALL,
        f"--trainer.max_steps={max_steps}",
        "--checkpoint.every_n_steps=1",
        "--runs_dir",
        str(folder / "sweep"),
        "--name",
        "mcpo/seed_0",
    ]
    cell = Cell(arm="mcpo", seed=0, settings={}, fit=("fit", *args))
    return Job(cell=cell, folder=folder / "sweep", cwd=CONFIGS.parent / "tests", retries=0)


def until(claim, seconds=60):
    """What the claim says once that is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := claim():
            return found
        time.sleep(0.02)
    raise TimeoutError(f"not so after {seconds} s: {claim}")


def seen(job):
    """What the stand-in command of a job found: `pid`, `parent`, `environment`."""
    file = job.path / "seen.json"
    until(file.exists)
    return json.loads(file.read_text())


def process_of(job):
    """The process of a real run that has saved a checkpoint."""
    until((job.path / "version_0" / "checkpoints" / "last.ckpt").exists)
    mine = f"{job.folder}"
    [process] = [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] and mine in p.info["cmdline"]]
    return process


def ended(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def resumed_once(job):
    """The run was continued from a checkpoint in the folder that it had, and none was started anew."""
    log = (job.path / "log.txt").read_text()
    commands = [line for line in log.splitlines() if line.startswith("$ rlvr ")]
    assert len(commands) == 2, log
    assert commands[1].endswith("version_0/checkpoints/last.ckpt")
    assert [path.name for path in job.path.glob("version_*")] == ["version_0"]
    return (job.path / "version_0" / "config.resume-1.yaml").exists()
