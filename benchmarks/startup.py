"""Seconds from `python -m lightning_rlvr fit` to the first rollout, stage by stage, in processes of their own.

A pass is 15 seconds in all on an otherwise idle machine with the model in the cache.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from lightning.pytorch.callbacks import Callback
from rich.table import Table

BAR = 15.0
"""Seconds."""
STAGES = ("torch and lightning", "other imports", "settings", "data", "model", "trainer")
"""In the order in which they end."""


class Clock(Callback):
    """Notes when each stage has ended, and stops the run where its first rollout would begin."""

    marks: list[tuple[float, float]] = []  # noqa: RUF012  # of the process: imports come before there is an object
    """Wall seconds since the process was created, and processor seconds."""

    def __init__(self) -> None:
        self.mark()  # settings are parsed, module and trainer are being made

    @classmethod
    def mark(cls) -> None:
        """A stage has ended."""
        cls.marks.append((time.time() - psutil.Process().create_time(), time.process_time()))

    def setup(self, *_: Any, **__: Any) -> None:  # noqa: D102
        self.mark()  # Lightning sets up data, callbacks and module in this order

    def on_fit_start(self, *_: Any) -> None:  # noqa: D102
        self.mark()

    def on_train_batch_start(self, *_: Any) -> None:  # noqa: D102
        self.mark()
        print(json.dumps(self.marks), flush=True)  # noqa: T201  # read by the process that started this one
        sys.exit(0)


def start(arguments: list[str]) -> None:
    """Run ``rlvr`` in this process, which must be a new one; the last line that it prints holds the marks."""
    Clock.mark()  # what this module imports
    from lightning_rlvr.cli import load_plugins, main

    load_plugins()
    Clock.mark()
    main(arguments)


def stages(marks: list[tuple[float, float]]) -> dict[str, dict[str, float]]:
    """Wall and processor seconds of each stage, and of all together.

    Args:
        marks: Wall and processor seconds since the process began, at the end of each of ``STAGES``.
    """
    before = [(0.0, 0.0), *marks]
    taken = {
        name: {"wall": round(b[0] - a[0], 2), "cpu": round(b[1] - a[1], 2)}
        for name, a, b in zip(STAGES, before, marks, strict=False)
    }
    return taken | {"all": {"wall": round(marks[-1][0], 2), "cpu": round(marks[-1][1], 2)}}


def medians(rounds: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Of each stage and clock over the rounds."""
    return {
        name: {clock: round(median(r[name][clock] for r in rounds), 2) for clock in seconds}
        for name, seconds in rounds[0].items()
    }


def table(title: str, taken: dict[str, dict[str, float]]) -> Table:
    """One row for each stage."""
    result = Table(title=title)
    for name in ("", "s", "CPU s"):
        result.add_column(name, justify="right" if name else "left")
    for name, seconds in taken.items():
        result.add_row(name, f"{seconds['wall']:.1f}", f"{seconds['cpu']:.1f}")
    return result


def main() -> None:
    """Command line."""
    from common import ROOT, command_line, verdict, write

    parser = command_line("startup", __doc__, "config")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rounds = []
    for turn in range(options.rounds + 1):
        with tempfile.TemporaryDirectory() as folder:
            arguments = ["fit", "-c", str(options.config), f"--runs_dir={folder}", "--trainer.max_steps=1"]
            arguments += ["--trainer.enable_progress_bar=false", "--trainer.callbacks+=startup.Clock"]
            run = subprocess.run(
                [sys.executable, "-c", f"import startup; startup.start({arguments!r})"],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(ROOT)])},
            )
        if turn:  # the first fills the file cache
            rounds.append(stages(json.loads(run.stdout.splitlines()[-1])))
            taken = medians(rounds)
            title = f"From the command line to the first rollout, {options.config.stem}: bar of {BAR:.0f} s "
            title += verdict(taken["all"]["wall"], BAR)
            write(options.output, {"title": title, "bar": BAR, "stages": taken}, [table(title, taken)])


if __name__ == "__main__":
    main()
