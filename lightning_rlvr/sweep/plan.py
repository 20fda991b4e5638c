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
from lightning_rlvr.monitoring.files import flat_settings, read_json, replace_text
from lightning_rlvr.sweep.spec import Cell, SweepSpec


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
class Arm:
    """What the runs of an arm are, from its resolved configuration."""

    steps: int
    """Optimizer steps of a run."""
    completions: int
    """Sampled in its training."""
    max_tokens: int
    """Of those completions, at most."""
    settings: Mapping[str, str | float]
    """All settings of the run by dotted name, but the data seed."""


def check(cells: Sequence[Cell]) -> dict[str, Arm]:
    """Parse the commands of every arm and make its plug-ins, as the runs will.

    Returns:
        What each arm is, by name.

    Raises:
        ValueError: A setting does not exist or is out of range; the message names the arm.
    """
    found: dict[str, Arm] = {}
    for number, cell in enumerate({cell.arm: cell for cell in cells}.values()):
        try:
            with _quiet():
                found[cell.arm] = _arm(RLVRCLI(cell.fit[1:], run=False))
                if cell.test is not None and number == 0:  # what it adds is the same for all
                    _ParsedOnly(cell.test)
        except (ValueError, TypeError, OSError, ImportError) as error:
            raise ValueError(f"arm {cell.arm!r}: {error}") from error
    return found


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


def _arm(cli: RLVRCLI) -> Arm:
    steps, module, prompts = cli.trainer.max_steps, cli.model, cli.datamodule.prompts_per_step
    module.check_sizes(steps, prompts)
    if steps < 1:
        raise ValueError("`trainer.max_steps` must be given, so that all runs have the same length")
    rollouts = steps // module.loss_settings.updates_per_rollout
    completions = rollouts * prompts * module.rollout_settings.num_generations
    settings = flat_settings(cli.run_settings())
    return Arm(
        steps=steps,
        completions=completions,
        max_tokens=completions * module.rollout_settings.max_completion_length,
        settings={name: value for name, value in settings.items() if name != "data.data_seed"},
    )


def write_plan(folder: Path, spec: SweepSpec, cells: Sequence[Cell], arms: Mapping[str, Arm]) -> None:
    """Keep what the sweep is in ``sweep.json``; cells of an earlier call that are not asked for now stay in it.

    Raises:
        ValueError: The folder holds an arm of the same name with other settings, whether in the sweep or in a file
            that it names.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        before = read_json(folder / "sweep.json")
        known = before.get("arms", {})
        for name, arm in arms.items():
            _check_same(folder, name, known.get(name, arm.settings), arm.settings)
        planned = {cell["folder"]: cell for cell in before.get("cells", [])}
        planned |= {cell.folder: {**asdict(cell), "folder": cell.folder} for cell in cells}
        plan = {
            "name": spec.name,
            "baseline": spec.baseline or cells[0].arm,
            "arms": known | {name: arm.settings for name, arm in arms.items()},
            "cells": [*planned.values()],
        }
        replace_text(folder / "sweep.json", json.dumps(plan, indent=2) + "\n")


def _check_same(folder: Path, name: str, former: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for setting in [*former, *now]:
        there, here = (settings.get(setting, "unset") for settings in (former, now))
        if there != here:
            raise ValueError(
                f"{str(folder)!r} holds the arm {name!r} of another sweep: `{setting}` is {there!r} there and "
                f"{here!r} here; give this one another `name`, or move that folder away"
            )
