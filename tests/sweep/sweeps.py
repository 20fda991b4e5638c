"""Small sweeps: real commands on the untrained tiny model."""

import json
from pathlib import Path

from command_line import SMALL, TINY
from lightning_rlvr.sweep.runner import Job
from lightning_rlvr.sweep.spec import SweepSpec, expand


def small_spec(max_steps=3, **changes):
    """Two arms with two seeds, a few steps each, tested on four problems."""
    fixed = {}
    for flag in SMALL:
        name, _, value = flag.removeprefix("--").partition("=")
        fixed[name] = json.loads(value) if value.startswith("{") else value
    settings = {
        "name": "small",
        "configs": (str(TINY),),
        "fixed": {**fixed, "trainer.max_steps": max_steps, "checkpoint.every_n_steps": 1},
        "arms": {"grpo": {"credit": "uniform"}, "mcpo": {"credit": "margin"}},
        "seeds": (0, 1),
        "test": {"num_samples": 2},
    }
    return SweepSpec(**(settings | changes))


def jobs(folder, **changes):
    """A job for each cell; runs are kept in `folder`/small."""
    cells = expand(small_spec(**changes), str(folder))
    return [Job(cell=cell, folder=Path(folder) / "small", cwd=Path(folder)) for cell in cells]


def rollouts(run):
    """What was sampled in training, line by line."""
    return [json.loads(line) for line in (run / "rollouts.jsonl").read_text().splitlines()]
