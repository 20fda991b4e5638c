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

from lightning_rlvr.cli import RLVRCLI, expand_short_names, run_settings
from lightning_rlvr.monitoring.files import flat_settings, read_json, read_yaml, replace_text
from lightning_rlvr.sweep.runner import newest_run
from lightning_rlvr.sweep.spec import Cell, SweepSpec

_SIZES = {"num_samples", "limit", "model.evaluation.num_samples", "data.test_problems"}
"""What a test may change: it goes on with the samples that are there."""


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
        except (ValueError, TypeError, OSError, ImportError) as error:
            raise ValueError(f"arm {cell.arm!r}: {error}") from error
        if cell.test is None or number:  # what a test adds is the same for all arms
            continue
        try:
            with _quiet():
                RLVRCLI(expand_short_names(cell.test)[1:], run=False)
        except (ValueError, TypeError, OSError, ImportError) as error:
            raise ValueError(f"`test`: {error}") from error
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
    return Arm(
        steps=steps,
        completions=completions,
        max_tokens=completions * module.rollout_settings.max_completion_length,
        settings=_comparable(cli.run_settings()),
    )


def _comparable(settings: Mapping[str, Any]) -> dict[str, str | float]:
    flat = flat_settings(settings, whole_paths=True)
    return {name: value for name, value in flat.items() if name != "data.data_seed"}


def check_runs(folder: Path, cells: Sequence[Cell], arms: Mapping[str, Arm]) -> None:
    """Refuse cells whose runs were made with other settings, whether in the sweep or in a file that it names.

    Raises:
        ValueError: A run has another value of a setting, which the message names, or its configuration is damaged.
    """
    for cell in cells:
        run = newest_run(folder / cell.folder)
        if run is None or not (run / "config.yaml").is_file():
            continue
        try:
            former = _comparable(run_settings(read_yaml(run / "config.yaml")))
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{str(run / 'config.yaml')!r} is not the whole configuration of a run; move its folder away"
            ) from error
        now = arms[cell.arm].settings
        for setting in [*former, *now]:
            there, here = (settings.get(setting, "unset") for settings in (former, now))
            if there != here:
                raise ValueError(
                    f"{str(run)!r} is a run of another sweep: `{setting}` is {there!r} there and {here!r} here; give "
                    f"this sweep another `name`, or move that folder away"
                )


def write_plan(folder: Path, spec: SweepSpec, cells: Sequence[Cell]) -> None:
    """Keep what the sweep is in ``sweep.json``; cells of an earlier call that are not asked for now stay in it.

    Raises:
        ValueError: The file is damaged, or the cells were tested otherwise than by more or fewer samples.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "sweep.json"
    with FileLock(folder / ".lock"):
        before = read_json(file)
        try:
            planned = {cell["folder"]: cell for cell in before.get("cells", [])}
        except (TypeError, KeyError) as error:
            raise ValueError(f"{str(file)!r} is damaged; remove it, the runs beside it are kept") from error
        former = before.get("test", spec.test) or {}
        for setting in sorted((former.keys() | (spec.test or {}).keys()) - _SIZES):
            there, here = (settings.get(setting, "unset") for settings in (former, spec.test or {}))
            if former and spec.test and there != here:
                raise ValueError(
                    f"{str(folder)!r} holds tests with `{setting}` {there!r}, got {here!r}; give this sweep another "
                    f"`name`"
                )
        planned |= {cell.folder: {**asdict(cell), "folder": cell.folder} for cell in cells}
        plan = {
            "name": spec.name,
            "baseline": spec.baseline or before.get("baseline") or cells[0].arm,
            "test": spec.test,
            "cells": [*planned.values()],
        }
        replace_text(file, json.dumps(plan, indent=2) + "\n")
