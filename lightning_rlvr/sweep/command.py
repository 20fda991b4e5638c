"""`rlvr sweep`: runs every cell of a sweep that is not finished yet."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
import time
from argparse import RawDescriptionHelpFormatter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from jsonargparse import DefaultHelpFormatter
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from lightning_rlvr.checks import require
from lightning_rlvr.messages import ExplainedErrors
from lightning_rlvr.monitoring.files import PROGRESS_FILE, read_json
from lightning_rlvr.sweep.launchers.base import LAUNCHERS, Launcher
from lightning_rlvr.sweep.runner import Job, Outcome, newest_run
from lightning_rlvr.sweep.spec import expand, read_spec

if TYPE_CHECKING:
    from lightning_rlvr.sweep.plan import Arm

_SECONDS_BETWEEN_LOOKS = 10
"""At cells that another sweep runs."""

_DESCRIPTION = """Runs every cell of a sweep, an arm with a data seed, as `rlvr fit` and then `rlvr test`.

    rlvr sweep sweeps/credit_by_calibrator.yaml --dry-run
    rlvr sweep sweeps/credit_by_calibrator.yaml --slots 2
    rlvr sweep sweeps/credit_by_calibrator.yaml --launcher ray --address auto
    rlvr sweep sweeps/credit_by_calibrator.yaml --launcher slurm --partition gpu
    rlvr report runs/credit_by_calibrator

The same command again goes on: finished cells are not run again, half-finished ones resume from their checkpoint. A
cell that fails is tried again, then reported; it does not stop the others. `rlvr sweep --launcher NAME --help` shows
the flags of a launcher; sweeps/README.md says what a file may hold.
"""


class _Formatter(RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Keeps the line breaks of the examples."""


def sweep_command(args: Sequence[str]) -> None:
    """Run a sweep, or show what it would run.

    Args:
        args: The command line after ``rlvr sweep``.

    Raises:
        ValueError: Bad arguments, file or settings; nothing has been run then.
        SystemExit: A cell failed; the status is 1.
    """
    options, launcher = _parsed(args)
    from lightning_rlvr.cli import quiet_console  # torch and lightning take seconds: `--help` needs none of them
    from lightning_rlvr.sweep.plan import check, check_runs, write_plan

    spec = read_spec(options.spec)
    if options.seeds is not None:
        spec = replace(spec, seeds=tuple(options.seeds))
    cells = expand(spec, options.runs_dir)
    folder = Path(options.runs_dir) / spec.name
    console = Console(markup=False, highlight=False)
    quiet_console()
    arms = check(cells)
    check_runs(folder, cells, arms)
    jobs = [Job(cell=cell, folder=folder.resolve(), cwd=Path.cwd(), retries=options.retries) for cell in cells]
    if options.dry_run:
        _show(console, jobs, arms, folder, launcher)
        return
    write_plan(folder, spec, cells)
    with _terminated_as_interrupted():
        outcomes = _watched(console, launcher, jobs, {name: arm.steps for name, arm in arms.items()})
    _close(console, outcomes, jobs, folder)


def _parsed(args: Sequence[str]) -> tuple[Any, Launcher]:
    parser = ExplainedErrors(prog="rlvr sweep", description=_DESCRIPTION, formatter_class=_Formatter)
    name = _launcher_name(args)
    parser.add_argument("spec", type=str, help="YAML file of the sweep.")
    parser.add_argument("--runs_dir", type=str, default="runs", help="Folder of all runs.")
    parser.add_argument("--dry-run", action="store_true", help="Show the cells and their cost; run nothing.")
    parser.add_argument("--seeds", type=int, nargs="+", default=None, help="Data seeds in place of the file's.")
    parser.add_argument("--retries", type=int, default=1, help="How often a cell that failed is tried again.")
    parser.add_argument("--launcher", type=str, default="local", help=f"One of {', '.join(LAUNCHERS)}.")
    flags = parser.add_class_arguments(LAUNCHERS[name], None)
    options = parser.parse_args([*args])
    require(options.retries >= 0, "retries", "at least 0", options.retries)
    return options, LAUNCHERS[name](**{flag: options[flag] for flag in flags})


def _launcher_name(args: Sequence[str]) -> str:
    for place, arg in enumerate(args):
        flag, equals, value = arg.partition("=")
        if flag == "--launcher":
            return value if equals else next(iter(args[place + 1 :]), "")
    return "local"


def _show(console: Console, jobs: Sequence[Job], arms: Mapping[str, Arm], folder: Path, launcher: Launcher) -> None:
    cells = [job.cell for job in jobs]
    for cell in cells:
        for command in filter(None, (cell.fit, cell.test)):
            last = ["--ckpt_path", f"{folder / cell.folder}/version_0/checkpoints/last.ckpt"]
            console.print(f"rlvr {shlex.join([*command, *(last if command[0] == 'test' else [])])}", soft_wrap=True)
    spent: dict[str, list[float]] = {}
    for job in jobs:
        if job.finished:
            spent.setdefault(job.cell.arm, []).append(job.seconds)
    table = Table(
        "arm",
        "runs",
        "done",
        "steps a run",
        "completions",
        "max tokens",
        "minutes a run",
        title=str(folder),
        box=SIMPLE,
    )
    for name, arm in arms.items():
        runs, known = sum(cell.arm == name for cell in cells), spent.get(name, [])
        minutes = f"{sum(known) / len(known) / 60:.1f}" if known else "-"
        numbers = (arm.steps, arm.completions * runs, arm.max_tokens * runs)
        table.add_row(name, str(runs), str(len(known)), *(f"{number:,}" for number in numbers), minutes)
    console.print(table)
    left = {name: sum(cell.arm == name for cell in cells) - len(spent.get(name, [])) for name in arms}
    tokens = sum(arms[name].max_tokens * count for name, count in left.items())
    head = f"{len(cells)} runs, {sum(left.values())} to do, at most {tokens:,} sampled tokens in training"
    console.print(f"{head}; {_hours(left, spent, launcher.slots)}", soft_wrap=True)


def _hours(left: Mapping[str, int], spent: Mapping[str, Sequence[float]], slots: int | None) -> str:
    """Time for the runs that are left, by those that are finished; an arm without any is taken to be like the others.

    Example:
        >>> _hours({"grpo": 2, "mcpo": 4}, {"grpo": [3600.0, 7200.0]}, slots=2)
        'about 9.0 run-hours, 4.5 hours with 2 at a time'
    """
    measured = [seconds for known in spent.values() for seconds in known]
    if not measured:
        return "hours are estimated once a run has finished"
    means = {name: fmean(spent.get(name, measured)) for name in left}
    hours = sum(count * means[name] for name, count in left.items()) / 3600
    return f"about {hours:.1f} run-hours" + (f", {hours / slots:.1f} hours with {slots} at a time" if slots else "")


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends the sweep as Ctrl-C does: its runs end with it, and the same command goes on."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _watched(console: Console, launcher: Launcher, jobs: Sequence[Job], steps: Mapping[str, int]) -> list[Outcome]:
    """Outcomes of all jobs; meanwhile a bar for the sweep and one for each run."""
    bars = Progress(
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console, disable=not console.is_terminal,
    )  # fmt: skip
    outcomes: list[Outcome] = []
    done = threading.Event()
    with bars:
        whole = bars.add_task("cells", total=len(jobs))
        watcher = threading.Thread(target=_watch, args=(bars, jobs, steps, done), daemon=True)
        watcher.start()
        try:
            for outcome in _outcomes(console, launcher, jobs):
                outcomes.append(outcome)
                bars.update(whole, advance=1)
                console.print(_line(outcome, len(outcomes), len(jobs)), soft_wrap=True)
        except KeyboardInterrupt:
            console.print("interrupted; the same command goes on")
            raise
        finally:
            done.set()
            watcher.join()
    return outcomes


def _outcomes(console: Console, launcher: Launcher, jobs: Sequence[Job]) -> Iterator[Outcome]:
    """One for each job; cells that another sweep runs are looked at again until it has done with them."""
    told: list[str] = []
    while jobs:
        busy: list[str] = []
        with closing(launcher.run(jobs)) as running:
            for outcome in running:
                if outcome.status == "busy":
                    busy.append(outcome.cell)
                else:
                    yield outcome
        jobs = [job for job in jobs if job.cell.folder in busy]
        if busy and busy != told:
            console.print(f"waiting for cells that another sweep runs: {', '.join(busy)}", soft_wrap=True)
            told = busy
        if jobs:
            time.sleep(_SECONDS_BETWEEN_LOOKS)


def _line(outcome: Outcome, number: int, total: int) -> str:
    again = f", {outcome.attempts} attempts" if outcome.attempts > 1 else ""
    took = "before" if outcome.status == "finished" and not outcome.attempts else f"{outcome.seconds:.0f} s{again}"
    told = f": {outcome.message}" if outcome.message else ""
    return f"{number}/{total} {outcome.cell} {outcome.status} ({took}){told}"


def _watch(bars: Progress, jobs: Sequence[Job], steps: Mapping[str, int], done: threading.Event) -> None:
    """Keep a bar for each running cell, from the files that its run writes."""
    shown: dict[str, TaskID] = {}
    while not done.wait(0.5):
        for job in jobs:
            with suppress(ValueError, OSError):  # a damaged file is the job's to report
                name, running = job.cell.folder, read_json(job.path / "cell.json").get("status") == "running"
                if running and name not in shown:
                    shown[name] = bars.add_task(name, total=steps[job.cell.arm])
                elif not running and name in shown:
                    bars.remove_task(shown.pop(name))
                if running and (run := newest_run(job.path)) is not None:
                    progress = read_json(run / PROGRESS_FILE)
                    label = f"{name} (test)" if progress.get("finished") else name
                    bars.update(shown[name], completed=progress.get("step", 0), description=label)


def _close(console: Console, outcomes: Sequence[Outcome], jobs: Sequence[Job], folder: Path) -> None:
    missing = {job.cell.folder for job in jobs} - {outcome.cell for outcome in outcomes}
    bad = [outcome for outcome in outcomes if outcome.status != "finished"]
    console.print(f"{len(outcomes) - len(bad)} of {len(jobs)} cells are finished in {folder}", soft_wrap=True)
    for outcome in bad:
        log = folder / outcome.cell / "log.txt"
        console.print(f"{outcome.status}: {outcome.cell}: {outcome.message} (log: {log})", soft_wrap=True)
    for name in sorted(missing):
        console.print(f"not run: {name}")
    if bad or missing:
        sys.exit(1)
    console.print(f"next: rlvr report {folder}", soft_wrap=True)
