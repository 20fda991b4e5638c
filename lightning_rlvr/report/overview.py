"""The first and the last words of a report: what was asked and found, what cannot be concluded, how it was made."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lightning_rlvr import __version__
from lightning_rlvr.report.loading import environments, find_cells, finished_version
from lightning_rlvr.report.paired import points
from lightning_rlvr.report.results import SweepResults
from lightning_rlvr.report.section import Section, Table
from lightning_rlvr.report.statistics import MIN_PAIRS, compare, finding, percent

_SAMPLING = ("step", "engine", "temperature", "top_p", "top_k", "max_completion_length")


def summary(results: SweepResults, confidence: float = 0.95) -> Section:
    """The question in two paragraphs, the verdict in one table.

    Args:
        results: Of the sweep.
        confidence: Of the intervals; an arm is better or worse where its adjusted p is below ``1 - confidence``.
    """
    sizes = results.samples.groupby(["set", "arm", "seed"], observed=True).agg(
        problems=("problem", "nunique"), samples=("sample", "nunique")
    )
    sets = [
        f"`{name}`, {' or '.join(map(str, sorted(set(of_set['problems']))))} problems x "
        f"{' or '.join(map(str, sorted(set(of_set['samples']))))} samples"
        for name, of_set in sizes.groupby("set", observed=True)
    ]
    others, seeds = ", ".join(f"`{arm}`" for arm in results.arms[1:]), ", ".join(map(str, results.seeds))
    conditions = ", ".join(f"`{n}` {results.conditions[n]}" for n in _SAMPLING if n in results.conditions)
    drawn = f" Samples were drawn with {conditions} (only `step` may differ between arms)." if conditions else ""
    one = " One seed has no interval and no test." if len(results.seeds) == 1 else ""
    text = (
        f"**Question.** Is a sample of {others or 'another arm'} correct more often than one of the baseline "
        f"`{results.baseline}`? The second table shows what differs between the arms.",
        f"**Material.** {_count(len(results.seeds), 'data seed')} ({seeds}); every run was evaluated on "
        f"{'; '.join(sets)}. Accuracy is macro avg@n: the mean over benchmarks of the mean over problems of the share "
        f"of correct samples.{drawn}{one}",
        *(["**Notes on the runs.**", "\n".join(f"- {note}" for note in results.notes)] if results.notes else []),
    )
    return Section(title="Summary", text=text, tables=(_verdicts(results, confidence), _settings(results)))


def _verdicts(results: SweepResults, confidence: float) -> Table:
    by_seed = points(results)
    rows = [
        (
            results.baseline,
            by_seed[results.baseline].mean(),
            *[float("nan")] * 4,
            by_seed[results.baseline].count(),
            "baseline",
        )
    ]
    for arm, (found, p_holm) in compare(by_seed, results.baseline, confidence).items():
        word = finding(found, p_holm, confidence)
        rows.append((arm, by_seed[arm].mean(), found.mean, found.low, found.high, p_holm, found.num_pairs, word))
    columns = ["arm", "accuracy", "difference", "low", "high", "p Holm", "pairs", "verdict"]
    return Table(
        name="summary",
        caption=f"Accuracy in percent, mean over the seeds of the arm. Difference to `{results.baseline}` in points, "
        f"paired by seed, with its {percent(confidence)} t-interval over seeds (not adjusted for the number of arms). "
        f"An arm is called better or worse where its Holm-adjusted p is below {1 - confidence:.3g}, by the t "
        f"test alone, and never from fewer than {MIN_PAIRS} pairs; otherwise inconclusive. Too few pairs: two. No "
        "test: fewer than two, or no spread between the pairs, so that no p is defined.",
        frame=pd.DataFrame(rows, columns=columns),
        formats={"accuracy": "{:.2f}", "p Holm": "{:.2g}"} | dict.fromkeys(("difference", "low", "high"), "{:+.2f}"),
    )


def _settings(results: SweepResults) -> Table:
    names = dict.fromkeys(name for settings in results.settings.values() for name in settings)
    rows = []
    for name in names:
        arms: dict[str, list[str]] = {}
        for arm in results.arms:
            if name in results.settings[arm]:
                arms.setdefault(str(results.settings[arm][name]), []).append(arm)
        rows += [(name, value, ", ".join(of_value)) for value, of_value in arms.items()]
    return Table(
        name="settings",
        caption="Settings in which arms differ, as the runs had them (no such setting in an arm that is not named).",
        frame=pd.DataFrame(rows, columns=["setting", "value", "arms"]),
    )


def limits(sections: Sequence[Section]) -> Section:
    """The caveats of all sections in one place.

    Example:
        >>> limits([Section(title="Length", caveats=("It is descriptive.",))]).caveats
        ('**Length.** It is descriptive.',)
    """
    gathered = [f"**{section.title.rstrip('?')}.** {caveat}" for section in sections for caveat in section.caveats]
    return Section(title="What cannot be concluded", caveats=tuple(dict.fromkeys(gathered)))


def origin(results: SweepResults, folder: Path, args: Sequence[str]) -> Section:
    """Commands, versions and commits behind the report.

    Args:
        results: Of the sweep.
        folder: As given to ``load``.
        args: The command line after ``rlvr report``.
    """
    rows, commands = [], []
    ran = set(results.samples.groupby(["arm", "seed"], observed=True).groups)
    for cell in find_cells(folder)[1]:
        version = finished_version(cell)
        if version is None or (cell.arm, cell.seed) not in ran:
            continue
        processes = environments(version)
        first = processes[0]
        row = {"arm": cell.arm, "seed": cell.seed, "run": f"{cell.folder.relative_to(folder)}/{version.name}"}
        row |= {"commit": str(first["git_commit"])[:8] + (" (changed)" if first["git_dirty"] else "")}
        row |= {name: first["packages"].get(name) for name in ("torch", "lightning", "transformers")}
        rows.append(row | {"python": first["python"], "device": first["device"]})
        checkpoint = ["--ckpt_path", f"{version}/checkpoints/last.ckpt"]
        typed = [shlex.join(["rlvr", *process["command"][1:]]) for process in processes]
        commands += [*cell.commands[:1], *(f"{c} {shlex.join(checkpoint)}" for c in cell.commands[1:])] or typed
    return Section(
        title="How this was made",
        text=(
            f"By `{shlex.join(['rlvr', 'report', *args])}` (lightning_rlvr {__version__}) from runs that these "
            "commands made:",
            "\n".join(["```", *commands, "```"]),
        ),
        tables=(Table(name="runs", caption="Runs behind the report.", frame=pd.DataFrame(rows)),),
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
