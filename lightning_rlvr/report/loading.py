"""Runs on disk as results of a sweep: found, checked to be paired, and read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

from lightning_rlvr.checks import require_choice
from lightning_rlvr.json_rows import read_json_rows
from lightning_rlvr.monitoring.files import PROGRESS_FILE, ROLLOUTS_FILE, flat_settings, read_json, read_yaml
from lightning_rlvr.report.results import SweepResults
from lightning_rlvr.verify.base import STATUSES

COMPUTE = {
    "rollouts": "time/total_rollouts",
    "sampled_tokens": "time/total_sampled_tokens",
    "seconds": "time/total_seconds",
    "flops": "time/total_flops",
}
"""Columns of ``SweepResults.steps`` and the tags that they come from."""
_NO_RUN = "no run"
_OF_ONE_RUN = {"name", "runs_dir", "seed_everything", "data.data_seed", "model.rollout.sample_seed", "ckpt_path"}
_KEY = ["set", "problem", "sample"]
_NAMES = ["arm", "set", "problem", "status"]
_COLUMNS = ["problem_hash", "sample", "seed", "reward", "tokens", "truncated", "status"]
_ENVIRONMENT = ("git_commit", "git_dirty", "packages", "python", "device", "command")
_REWARD = "reward/mean"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Where the runs of one arm and seed are."""

    arm: str
    seed: int
    folder: Path
    commands: tuple[str, ...] = ()
    """What the sweep ran; none where runs were laid out by hand."""

    @property
    def name(self) -> str:
        """For people: arm and seed."""
        return f"{self.arm}/seed_{self.seed}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A finished run, as its folder has it."""

    cell: Cell
    folder: Path
    step: int
    """Optimizer steps when it ended."""
    settings: Mapping[str, str | float]
    """By dotted name."""
    environments: tuple[Mapping[str, Any], ...]
    """Of the training first, then of what resumed or evaluated it."""
    problems: Mapping[str, Any]
    num_rollouts: int
    rollouts: tuple[Mapping[str, Any], ...]
    """Problems and seeds of each batch that was recorded."""


def find_cells(folder: Path) -> tuple[Mapping[str, Any], list[Cell]]:
    """What ``sweep.json`` says (nothing if there is none), and the cells, in the order of the sweep.

    Args:
        folder: Folder of a sweep, or of runs as ``<arm>/seed_<data seed>/version_<N>``.

    Raises:
        FileNotFoundError: There are no such runs.
        ValueError: A key is missing in ``sweep.json``, or two folders are of one arm and seed.
    """
    if (file := folder / "sweep.json").exists():
        sweep = _read(file, "cells")
        for cell in sweep["cells"]:
            _require_keys(repr(str(file)), cell, ("arm", "seed", "folder", "fit", "test"))
        return sweep, [
            Cell(
                arm=cell["arm"],
                seed=cell["seed"],
                folder=folder / cell["folder"],
                commands=tuple(shlex.join(["rlvr", *args]) for args in (cell["fit"], cell["test"]) if args),
            )
            for cell in sweep["cells"]
        ]
    found = [(path, re.fullmatch(r"seed_(\d+)", path.name)) for path in folder.glob("*/seed_*")]
    cells = [Cell(arm=path.parent.name, seed=int(seed[1]), folder=path) for path, seed in found if seed]
    if not cells:
        if (folder / "config.yaml").exists() or any(folder.glob("version_*")):
            found_instead = "it is a single run"
        elif any(folder.glob("seed_*/version_*")):
            found_instead = f"it is a single arm, of {str(folder.resolve().parent)!r}"
        else:
            found_instead = "it has neither" if folder.is_dir() else "there is no such folder"
        raise FileNotFoundError(
            f"{str(folder)!r} must be the folder of a sweep, with sweep.json or with runs in "
            f"<arm>/seed_<data seed>/version_<N>; {found_instead}"
        )
    cells.sort(key=lambda cell: (cell.arm, cell.seed, cell.folder.name))
    for one, other in pairwise(cells):
        if one.name == other.name:
            raise ValueError(f"{str(one.folder)!r} and {str(other.folder)!r} are of one arm and seed; move one away")
    return {}, cells


def load(folder: Path, baseline: str | None = None, arms: Sequence[str] | None = None) -> SweepResults:
    """The newest finished run of each cell, once it is certain that runs of the same seed are paired.

    Args:
        folder: As ``find_cells`` takes it.
        baseline: The arm to compare with; by default the sweep's own, or the arm called grpo or baseline.
        arms: Other arms to report on; by default all.

    Raises:
        ValueError: An arm is unknown, the baseline has no finished run, nothing was evaluated, runs of an arm differ
            in length, runs of one seed differ in problems, order, sampling seeds or conditions of the evaluation, or
            a file is damaged.
    """
    sweep, cells = find_cells(folder)
    known = tuple(dict.fromkeys(cell.arm for cell in cells))
    named = [name for name in (sweep.get("baseline"), "grpo", "baseline") if name in known]
    if baseline is None and not named:
        raise ValueError(f"`--baseline` must name one of the arms {', '.join(known)}")
    first = named[0] if baseline is None else baseline
    require_choice("--baseline", known, first)
    for arm in arms or ():
        require_choice("--arms", known, arm)
    wanted = tuple(dict.fromkeys([first, *(arm for arm in known if arm in (arms or known))]))

    notes: list[str] = []
    runs: list[tuple[Run, pd.DataFrame]] = []
    unevaluated: list[Run] = []
    without: list[str] = []
    for cell in sorted((cell for cell in cells if cell.arm in wanted), key=lambda cell: wanted.index(cell.arm)):
        finished, note = _finished(cell)
        if note == _NO_RUN:
            without.append(f"`{cell.name}`")
        elif note:
            notes.append(note)
        if finished is None:
            continue
        run = _read_run(cell, finished)
        samples = _samples(run)
        if samples.empty:
            unevaluated.append(run)
            notes.append(f"`{cell.name}` is left out: it has no evaluation at its last step, {run.step}.")
        else:
            runs.append((run, samples))
    if without:
        notes.append(f"Left out, for there is no run: {', '.join(without)}.")
    _check_not_empty(first, runs, unevaluated, notes)
    present = tuple(arm for arm in wanted if any(run.cell.arm == arm for run, _ in runs))
    notes += [f"The arm `{arm}` is left out: it has no finished run." for arm in wanted if arm not in present]

    only_runs = [run for run, _ in runs]
    notes += [*_check_lengths(only_runs), *_check_pairs(runs), *_differing_code(only_runs)]
    settings, within = _settings(only_runs, present)
    samples = pd.concat([samples for _, samples in runs], ignore_index=True)
    steps = [_steps(run) for run in only_runs]
    notes += [*_without_pair(only_runs, first), *_without_curve(only_runs, steps)]
    notes += [*_left_out(known, wanted, present), *_unscored(samples, present)]
    return SweepResults(
        name=sweep.get("name") or folder.resolve().name,
        baseline=first,
        arms=present,
        seeds=tuple(sorted({run.cell.seed for run in only_runs})),
        samples=samples.drop(columns="sample_seed").astype(dict.fromkeys(_NAMES, "category")),
        steps=pd.concat(steps, ignore_index=True),
        settings=settings,
        conditions=_conditions(runs[0][1].attrs["conditions"]),
        notes=(*notes, *within),
    )


def environments(folder: Path) -> tuple[Mapping[str, Any], ...]:
    """Versions, commit and device of every process that wrote into the folder of a run, that of the training first."""
    later = sorted(folder.glob("environment.*.json"))
    return tuple(_read(file, *_ENVIRONMENT) for file in [folder / "environment.json", *later])


def finished_version(cell: Cell) -> Path | None:
    """The folder of the newest run of the cell that got to its end."""
    return next((path for path in reversed(_versions(cell)) if _progress(path).get("finished")), None)


def _versions(cell: Cell) -> list[Path]:
    """From the oldest to the newest; copies under other names are none."""
    versions = [path for path in cell.folder.glob("version_*") if path.name[8:].isdigit()]
    return sorted(versions, key=lambda path: int(path.name[8:]))


def _finished(cell: Cell) -> tuple[Path | None, str]:
    """The run that counts, if there is one, and what there is to say about it."""
    newest = finished_version(cell)
    status = read_json(cell.folder / "cell.json")
    if status.get("status") == "failed":
        return None, f"`{cell.name}` is left out: it failed ({status.get('message') or 'no message'})."
    versions = _versions(cell)
    if newest is None:
        steps = [f"step {p.get('step', 0)} of {p.get('max_steps', '?')}" for p in map(_progress, versions) if p]
        return None, f"`{cell.name}` is left out: unfinished, at {steps[-1]}." if steps else _NO_RUN
    others = [path.name for path in versions if path != newest and _progress(path).get("finished")]
    return newest, f"`{cell.name}` ran to its end more than once; {newest.name} counts." if others else ""


def _progress(version: Path) -> Mapping[str, Any]:
    return read_json(version / PROGRESS_FILE)


def _read_run(cell: Cell, folder: Path) -> Run:
    progress, rollouts = _read(folder / PROGRESS_FILE, "step", "rollouts"), []
    if (file := folder / ROLLOUTS_FILE).is_file():
        for place, row in read_json_rows(file):
            rollouts.append(_require_keys(place, row, ("problems", "seeds")))
    return Run(
        cell=cell,
        folder=folder,
        step=progress["step"],
        settings=flat_settings(read_yaml(folder / "config.yaml")),
        environments=environments(folder),
        problems=_read(folder / "problems.json", "data_seed", "data_hash"),
        num_rollouts=progress["rollouts"],
        rollouts=tuple(rollouts),
    )


def _read(file: Path, *keys: str) -> Mapping[str, Any]:
    """The object in a file that must exist and have these keys."""
    if not file.is_file():
        raise ValueError(f"{str(file)!r} is missing")
    return _require_keys(repr(str(file)), read_json(file), keys)


def _require_keys(place: str, content: Mapping[str, Any], keys: Iterable[str]) -> Mapping[str, Any]:
    for key in keys:
        if key not in content:
            raise ValueError(f"{place} lacks {key!r}")
    return content


def _samples(run: Run) -> pd.DataFrame:
    """Rows of ``SweepResults.samples``, with the seed of each sample; conditions in ``attrs``."""
    frames: list[pd.DataFrame] = []
    conditions: dict[str, Mapping[str, Any]] = {}
    for file in sorted(run.folder.glob("eval/*/settings.json")):
        settings = _read(file, "name", "conditions")
        name, used = settings["name"], settings["conditions"]
        result = file.with_name("per_problem.parquet")
        if used.get("step") != run.step or not result.is_file():
            continue
        if name in conditions:
            raise ValueError(
                f"{str(run.folder)!r} has two evaluations of {name!r} at step {run.step}, which differ in "
                f"{_differences(conditions[name], used)}; move one out of its folder eval"
            )
        conditions[name] = used
        frame = _judged(result).rename(columns={"problem_hash": "problem", "seed": "sample_seed"})
        frames.append(frame.assign(set=name, correct=(frame["status"] == "correct").astype(float)))
    if not frames:
        return pd.DataFrame()
    samples = pd.concat(frames, ignore_index=True).assign(arm=run.cell.arm, seed=run.cell.seed)
    samples.attrs["conditions"] = conditions
    first = ["arm", "seed", *_KEY, "correct", "reward", "tokens", "truncated", "status", "sample_seed"]
    return samples[first]


def _judged(file: Path) -> pd.DataFrame:
    """Samples as they were stored, once every one has tokens and a status."""
    try:
        _require_keys(repr(str(file)), dict.fromkeys(pq.read_schema(file).names), _COLUMNS)
        frame = pd.read_parquet(file, columns=_COLUMNS)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{str(file)!r} cannot be read as Parquet ({str(error).splitlines()[0]})") from error
    for claim, name, expected in (
        (pd.to_numeric(frame["tokens"], errors="coerce") >= 1, "tokens", "at least 1"),
        (frame["status"].isin(STATUSES), "status", f"one of {', '.join(STATUSES)}"),
    ):
        if not claim.all():
            row = int(claim.argmin())
            raise ValueError(f"row {row} of {str(file)!r} must have {name} {expected}, got {frame[name].iloc[row]}")
    return frame


def _conditions(by_set: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Of an evaluation, without what tells one run from another; each set's own where sets differ."""
    names = dict.fromkeys(name for of_set in by_set.values() for name in of_set)
    found = {}
    for name in [name for name in names if name not in ("weights", "sample_seed")]:
        values = [of_set.get(name) for of_set in by_set.values()]
        each = ", ".join(f"{value} ({of})" for of, value in zip(by_set, values, strict=True))
        found[name] = values[0] if all(value == values[0] for value in values) else each
    return found


def _steps(run: Run) -> pd.DataFrame:
    """Rows of ``SweepResults.steps``; what a resumed run took back is not among them."""
    events = EventAccumulator(str(run.folder), size_guidance={SCALARS: 0})
    events.Reload()
    scalars = {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in events.Tags()[SCALARS]}
    columns = {tag: pd.Series(values, dtype=float) for tag, values in scalars.items()}
    frame = pd.DataFrame({name: columns.pop(tag, pd.Series(dtype=float)) for name, tag in COMPUTE.items()} | columns)
    frame = frame.sort_index().rename_axis("step").reset_index()
    return frame.assign(arm=run.cell.arm, seed=run.cell.seed)[["arm", "seed", *frame.columns]]


def _without_pair(runs: Sequence[Run], baseline: str) -> Iterator[str]:
    seeds = {run.cell.seed for run in runs if run.cell.arm == baseline}
    if names := [f"`{run.cell.name}`" for run in runs if run.cell.seed not in seeds]:
        yield f"Part of no difference, for `{baseline}` has no run of this seed: {', '.join(names)}."


def _without_curve(runs: Sequence[Run], steps: Sequence[pd.DataFrame]) -> Iterator[str]:
    logged = [_REWARD in frame and bool(frame[_REWARD].notna().any()) for frame in steps]
    if names := [f"`{run.cell.name}`" for run, found in zip(runs, logged, strict=True) if not found]:
        yield f"No training reward (`{_REWARD}`) was logged, or only NaN, so there is no curve: {', '.join(names)}."


def _left_out(known: Sequence[str], wanted: Sequence[str], present: Sequence[str]) -> Iterator[str]:
    if len(wanted) < len(known):
        yield (
            f"Shown: {len(present) - 1} of the sweep's {len(known) - 1} arms beside the baseline (`--arms`); p is "
            "adjusted for no others."
        )
    elif len(present) < len(wanted):
        yield "p is adjusted for the arms present only, not for those left out."


def _unscored(samples: pd.DataFrame, arms: Sequence[str]) -> Iterator[str]:
    unscored = samples["reward"].isna().groupby(samples["arm"]).agg(["sum", "size", "mean"]).loc[list(arms)]
    if unscored["sum"].any():
        listed = ", ".join(f"`{arm}` {row['sum']:.0f} of {row['size']:.0f}" for arm, row in unscored.iterrows())
        differ = " Arms differ in this, which by itself makes a difference in accuracy."
        yield (
            f"Samples that could not be scored count as not correct: {listed}."
            + (differ if unscored["mean"].nunique() > 1 else "")
        )


def _check_not_empty(
    baseline: str, runs: Sequence[tuple[Run, pd.DataFrame]], unevaluated: Sequence[Run], notes: Sequence[str]
) -> None:
    if not runs and unevaluated:
        folder = unevaluated[0].folder
        command = ["rlvr", "test", "-c", f"{folder}/config.yaml", "--ckpt_path", f"{folder}/checkpoints/last.ckpt"]
        raise ValueError(
            f"no run was evaluated at its last step; for each type `{shlex.join(command)} --num_samples 64`"
        )
    if all(run.cell.arm != baseline for run, _ in runs):
        raise ValueError(f"the baseline {baseline!r} has no run to compare with: {' '.join(notes)}")


def _check_lengths(runs: Sequence[Run]) -> Iterator[str]:
    lengths: dict[str, dict[int, list[str]]] = {}
    for run in runs:
        lengths.setdefault(run.cell.arm, {}).setdefault(run.step, []).append(run.cell.name)
    for arm, by_step in lengths.items():
        if len(by_step) > 1:
            found = "; ".join(f"{step} steps: {', '.join(names)}" for step, names in sorted(by_step.items()))
            raise ValueError(f"the runs of {arm!r} differ in length ({found}); train the shorter ones on")
    if len({step for by_step in lengths.values() for step in by_step}) > 1:
        listed = ", ".join(f"`{arm}` {next(iter(by_step))}" for arm, by_step in lengths.items())
        yield f"Arms differ in length, in optimizer steps: {listed}."


def _check_pairs(runs: Sequence[tuple[Run, pd.DataFrame]]) -> Iterator[str]:
    """Refuse runs that do not share what runs of a seed must; say where that cannot be known."""
    leaders: dict[int, tuple[Run, pd.DataFrame]] = {}
    by_seed: dict[int, list[Run]] = {}
    for run, samples in runs:
        if (found := run.problems["data_seed"]) != run.cell.seed:
            raise ValueError(f"{str(run.folder)!r} has data_seed {found}, not {run.cell.seed}")
        by_seed.setdefault(run.cell.seed, []).append(run)
        leader = leaders.setdefault(run.cell.seed, (run, samples))
        _check_conditions(runs[0], (run, samples), ignored=("weights", "step", "sample_seed"))
        _check_conditions(leader, (run, samples), ignored=("weights", "step"))
        _check_sample_seeds(leader, (run, samples))
    for of_seed in by_seed.values():
        _check_rollouts(of_seed)
    if unrecorded := [
        f"`{run.cell.name}` ({len(run.rollouts)} of {run.num_rollouts})"
        for of_seed in by_seed.values() for run in of_seed
        if len(of_seed) > 1 and len(run.rollouts) != run.num_rollouts
    ]:  # fmt: skip
        yield (
            "Order of the problems and sampling seeds in training could not be checked throughout, for "
            f"{ROLLOUTS_FILE} does not hold every batch: {', '.join(unrecorded)}."
        )


def _check_rollouts(runs: Sequence[Run]) -> None:
    """Compare the batches of runs of one seed with those of the longest record, as far as each goes."""
    longest = max(runs, key=lambda run: len(run.rollouts))
    for run in runs:
        if runs[0].problems["data_hash"] != run.problems["data_hash"]:
            raise _unpaired(runs[0], run, "they trained on other problems (data_hash)")
        one, other = (longest, run) if runs.index(longest) < runs.index(run) else (run, longest)
        for number, (first, second) in enumerate(zip(one.rollouts, other.rollouts, strict=False), start=1):
            for name in ("problems", "seeds"):
                if first[name] != second[name]:
                    what = "other problems" if name == "problems" else "the same problems with other sampling seeds"
                    raise _unpaired(one, other, f"rollout batch {number} drew {what}")


def _check_conditions(
    first: tuple[Run, pd.DataFrame], other: tuple[Run, pd.DataFrame], ignored: Iterable[str]
) -> None:
    one, two = first[1].attrs["conditions"], other[1].attrs["conditions"]
    if one.keys() != two.keys():
        raise _unpaired(first[0], other[0], f"evaluated on {', '.join(one)} against {', '.join(two)}")
    for name in one:
        if found := _differences(one[name], two[name], ignored):
            raise _unpaired(first[0], other[0], f"evaluations of {name!r} differ in {found}")


def _check_sample_seeds(first: tuple[Run, pd.DataFrame], other: tuple[Run, pd.DataFrame]) -> None:
    """Of the samples that both have; that both have all is checked by ``SweepResults``."""
    one, two = first[1].set_index(_KEY)["sample_seed"].align(other[1].set_index(_KEY)["sample_seed"], join="inner")
    if not one.equals(two):
        raise _unpaired(first[0], other[0], f"{int((one != two).sum())} of {len(one)} samples have another seed")


def _unpaired(first: Run, other: Run, reason: str) -> ValueError:
    return ValueError(f"{first.cell.name} and {other.cell.name} cannot be compared: {reason}")


def _differences(one: Mapping[str, Any], other: Mapping[str, Any], ignored: Iterable[str] = ()) -> str:
    names = [
        name for name in dict.fromkeys([*one, *other]) if name not in ignored and one.get(name) != other.get(name)
    ]
    return ", ".join(f"{name} ({one.get(name)} against {other.get(name)})" for name in names)


def _differing_code(runs: Sequence[Run]) -> Iterator[str]:
    found = [environment for run in runs for environment in run.environments]
    commits = {str(environment["git_commit"])[:8] for environment in found}
    if len(commits) > 1:
        yield f"Runs were made with different commits: {', '.join(sorted(commits))}."
    if any(environment["git_dirty"] for environment in found):
        yield "Some runs were made with code that was not committed."
    for name in dict.fromkeys(name for environment in found for name in environment["packages"]):
        versions = {str(environment["packages"].get(name)) for environment in found}
        if len(versions) > 1:
            yield f"Runs were made with different versions of {name}: {', '.join(sorted(versions))}."


def _settings(runs: Sequence[Run], arms: Sequence[str]) -> tuple[dict[str, dict[str, str | float]], list[str]]:
    """By arm the settings in which arms differ, and notes on arms whose runs do not share their settings."""
    of_arm = {arm: [run.settings for run in runs if run.cell.arm == arm] for arm in arms}
    names = dict.fromkeys(name for run in runs for name in run.settings if name not in _OF_ONE_RUN)
    notes, differing = [], []
    for name in names:
        values = {arm: {settings.get(name) for settings in of_arm[arm]} for arm in arms}
        notes += [f"The runs of `{arm}` differ in `{name}`." for arm in arms if len(values[arm]) > 1]
        if len({value for of_one in values.values() for value in of_one}) > 1:
            differing.append(name)
    return {arm: {n: of_arm[arm][0][n] for n in differing if n in of_arm[arm][0]} for arm in arms}, notes
