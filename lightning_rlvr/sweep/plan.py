"""What a sweep is about to run: checked against the real command line, written down, and never mixed with another."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock
from typing_extensions import override

from lightning_rlvr.cli import RLVRCLI
from lightning_rlvr.monitoring.files import replace_text
from lightning_rlvr.sweep.runner import read_json
from lightning_rlvr.sweep.spec import Cell, SweepSpec, baseline


class _ParsedOnly(RLVRCLI):
    """The command line of a subcommand, without doing anything."""

    @override
    def _parse_ckpt_path(self) -> None: ...

    @override
    def before_instantiate_classes(self) -> None: ...

    @override
    def instantiate_classes(self) -> None: ...

    @override
    def _run_subcommand(self, subcommand: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Size:
    """What one run of an arm costs, from its configuration."""

    steps: int
    """Optimizer steps."""
    completions: int
    """Sampled in training."""
    max_tokens: int
    """Of those completions, at most."""


def check(cells: Sequence[Cell]) -> dict[str, Size]:
    """Parse the commands of every arm and make its plug-ins, as the runs will.

    Returns:
        The size of a run by arm.

    Raises:
        ValueError: A setting does not exist or is out of range; the message names the arm.
    """
    sizes: dict[str, Size] = {}
    arms = {cell.arm: cell for cell in cells}.values()
    for number, cell in enumerate(arms):
        try:
            with _quiet():
                sizes[cell.arm] = _size(RLVRCLI(cell.fit[1:], run=False))
                if cell.test is not None and number == 0:  # what it adds is the same for all
                    _ParsedOnly(cell.test)
        except (ValueError, TypeError, OSError, ImportError) as error:
            raise ValueError(f"arm {cell.arm!r}: {error}") from error
    return sizes


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what Lightning says of devices and seeds: no run starts here."""
    loggers = [
        logging.getLogger(f"lightning.{name}") for name in ("pytorch.utilities.rank_zero", "fabric.utilities.seed")
    ]
    former = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, former, strict=True):
            logger.setLevel(level)


def _size(cli: RLVRCLI) -> Size:
    steps, module, prompts = cli.trainer.max_steps, cli.model, cli.datamodule.prompts_per_step
    module.check_sizes(steps, prompts)
    if steps < 1:
        raise ValueError("`trainer.max_steps` must be given, so that all runs have the same length")
    rollouts = steps // module.loss_settings.updates_per_rollout
    completions = rollouts * prompts * module.rollout_settings.num_generations
    return Size(
        steps=steps,
        completions=completions,
        max_tokens=completions * module.rollout_settings.max_completion_length,
    )


def write_plan(folder: Path, spec: SweepSpec, cells: Sequence[Cell]) -> None:
    """Keep what the sweep is in ``sweep.json``; cells of an earlier call that are not asked for now stay in it.

    Raises:
        ValueError: The folder holds a cell of the same name with another command.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        before = read_json(folder / "sweep.json")
        known = {entry["folder"]: entry for entry in before.get("cells", [])}
        planned = {cell.folder: _described(cell) for cell in cells}
        for name in planned.keys() & known.keys():
            if (former := _comparable(known[name]["fit"])) != (now := _comparable(planned[name]["fit"])):
                changed = next(pair for pair in zip([*former, ""], [*now, ""], strict=False) if pair[0] != pair[1])
                raise ValueError(
                    f"{str(folder)!r} holds the cell {name!r} of another sweep ({changed[0]!r} there, {changed[1]!r} "
                    f"here); give this one another `name`, or move that folder away"
                )
        together = [*(known | planned).values()]
        plan = {
            "name": spec.name,
            "baseline": baseline(spec),
            "arms": {entry["arm"]: entry["settings"] for entry in together},
            "seeds": sorted({entry["seed"] for entry in together}),
            "cells": together,
            "spec": asdict(spec),
        }
        replace_text(folder / "sweep.json", json.dumps(plan, indent=2) + "\n")


def _described(cell: Cell) -> dict[str, Any]:
    return {**asdict(cell), "folder": cell.folder}


def _comparable(command: Sequence[str]) -> list[str]:
    """What a command asks for, wherever it is typed: files by name, without the folder of the runs."""
    names = [Path(part).name if part.endswith((".yaml", ".yml")) else part for part in command]
    where = names.index("--runs_dir")
    return names[:where] + names[where + 2 :]


def seconds_of_runs(folder: Path, cells: Sequence[Cell]) -> Mapping[str, list[float]]:
    """Seconds that finished runs took, by arm."""
    spent: dict[str, list[float]] = {}
    for cell in cells:
        kept = read_json(folder / cell.folder / "cell.json")
        if kept.get("status") == "finished":
            spent.setdefault(cell.arm, []).append(kept["seconds"])
    return spent
