"""Did an arm win? Differences between runs that share a data seed, with what the runs can and cannot show."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from lightning_rlvr.report.interaction import contrasts
from lightning_rlvr.report.plots import axes, style
from lightning_rlvr.report.problems import bootstrap_table, set_table
from lightning_rlvr.report.results import SweepResults, accuracy
from lightning_rlvr.report.section import Plot, Section, Table
from lightning_rlvr.report.statistics import POWER, PairedResult, compare, finding, percent


def verdict(arm: str, baseline: str, result: PairedResult, p_holm: float, confidence: float = 0.95) -> str:
    """What may be said of an arm, by the rule of ``finding``.

    Where it is better or worse the interval excludes 0, since the adjusted p is at least that of the t test.

    Args:
        arm: Compared with ``baseline``.
        baseline: The other one.
        result: Of the differences, in points.
        p_holm: Adjusted for all arms that were compared.
        confidence: As given to ``paired_result``.

    Example:
        >>> from lightning_rlvr.report.statistics import paired_result
        >>> verdict("a", "b", paired_result([2.0]), float("nan"))
        '`a` against `b`: +2.00 points in the one seed that both have; one pair has no interval and no test.'
    """
    n, names = result.num_pairs, f"`{arm}` against `{baseline}`"
    if n == 0:
        return f"{names}: no seed has a run of both, so nothing can be said."
    if n == 1:
        return (
            f"{names}: {result.mean:+.2f} points in the one seed that both have; one pair has no interval and no test."
        )
    if result.sd == 0:
        what = "equal accuracy" if result.mean == 0 else f"the same difference of {result.mean:+.2f} points"
        return f"{names}: {what} in all {n} seeds; without spread between seeds there is no t test and no interval."
    numbers = (
        f"{result.mean:+.2f} points, {percent(confidence)} t-interval {result.low:+.2f} to {result.high:+.2f} (not "
        f"adjusted for the number of arms), {n} seeds, p = {result.p_t:.2g}, Holm-adjusted {p_holm:.2g}"
    )
    word = finding(result, p_holm, confidence)
    if word == "too few pairs":
        return f"{names}: two pairs are too few for a verdict: {numbers}."
    if word in ("better", "worse"):
        alone = f" This is by a t test of {n} pairs alone." if n < 5 else ""
        return f"**`{arm}` is {word} than `{baseline}`**: {numbers}.{alone}"
    few = f" {n} seeds are too few to conclude equality." if n < 5 else ""
    return (
        f"{names}: no difference could be shown: {numbers}. A true difference of at least "
        f"{result.minimum_detectable_effect:.2f} points would have been found with probability {POWER} by one "
        f"unadjusted t test if differences spread as they did here, so smaller effects are not excluded.{few}"
    )


def points(results: SweepResults) -> pd.DataFrame:
    """Macro avg@n of every run in percent: a row for each seed, a column for each arm, in the order of the results."""
    return 100 * accuracy(results.samples).reindex(columns=list(results.arms))


def section(results: SweepResults, confidence: float = 0.95) -> Section:
    """Accuracy of every arm against the baseline, paired by seed."""
    by_seed = points(results)
    compared = compare(by_seed, results.baseline, confidence)
    level = percent(confidence)
    table = Table(
        name="paired",
        caption=f"Macro avg@n in percent, means over the seeds that an arm shares with `{results.baseline}`; "
        f"differences in points with {level} t-intervals (unit: the seed). d_z is mean / sd, uncorrected; MDE is the "
        f"smallest true difference that an unadjusted t test of this spread finds with probability {POWER}.",
        frame=pd.DataFrame([_row(by_seed, results.baseline, arm, *found) for arm, found in compared.items()]),
        formats=dict.fromkeys(("baseline", "mean", "d_z", "MDE"), "{:.2f}")
        | dict.fromkeys(("difference", "low", "high"), "{:+.2f}")
        | dict.fromkeys(("p t", "p Holm", "p sign", "p permutation"), "{:.3g}"),
    )
    runs = [_by_seed("by_seed", "Macro avg@n of every run in percent, by seed.", by_seed, "{:.2f}")]
    if compared:
        gains = by_seed[list(compared)].sub(by_seed[results.baseline], axis=0)
        caption = f"Differences to `{results.baseline}` in points of macro avg@n, by seed."
        runs.append(_by_seed("differences_by_seed", caption, gains, "{:+.2f}"))
    if not compared:
        text: tuple[str, ...] = (f"`{results.baseline}` is the only arm: there is nothing to compare it with.",)
        return Section(title="Did an arm win?", text=text, tables=tuple(runs))
    text = (
        "Both runs of a pair share the data seed, hence problems, their order and sampling seeds. The unit of "
        "analysis is the seed: one difference for each, however many samples are behind it.",
        *(verdict(arm, results.baseline, *found, confidence) for arm, found in compared.items()),
    )
    tables = [table, *runs, bootstrap_table(results, confidence)]
    if results.samples["set"].nunique() > 1:  # else it says what `paired` says
        tables.insert(1, set_table(results, confidence))
    if interaction := contrasts(results, by_seed, confidence):
        text += interaction[:1]
        tables.append(interaction[1])
    return Section(
        title="Did an arm win?",
        text=text,
        tables=tuple(tables),
        plots=(_plot(results, by_seed, compared, level),),
        caveats=_caveats([result.num_pairs for result, _ in compared.values()], confidence),
    )


def _by_seed(name: str, caption: str, values: pd.DataFrame, form: str) -> Table:
    """A row for each arm, a column for each seed: arms may be many, and pages are narrow."""
    frame = values.T.rename(columns=str).rename_axis(index="arm", columns=None).reset_index()
    return Table(name=name, caption=caption, frame=frame, formats=dict.fromkeys(frame.columns[1:], form))


def _row(
    by_seed: pd.DataFrame, baseline: str, arm: str, result: PairedResult, p_holm: float
) -> dict[str, str | int | float]:
    means = by_seed[[baseline, arm]].dropna().mean()
    return {
        "arm": arm, "baseline": means[baseline], "mean": means[arm], "difference": result.mean, "low": result.low,
        "high": result.high, "pairs": result.num_pairs, "wins": result.wins, "p t": result.p_t, "p Holm": p_holm,
        "p sign": result.p_sign, "p permutation": result.p_permutation, "d_z": result.effect_size,
        "MDE": result.minimum_detectable_effect,
    }  # fmt: skip


def _caveats(pairs: Sequence[int], confidence: float) -> tuple[str, ...]:
    tested = [n for n in pairs if n > 1]
    caveats = [
        "Intervals are not adjusted for the number of arms; the verdicts are (Holm over the t tests of all arms that "
        "can be tested).",
        "The bootstrap over problems holds the trained policies fixed: it says nothing of other seeds.",
    ]
    if len(tested) < len(pairs):
        caveats.append("An arm with fewer than two pairs has no interval and no test.")
    if tested:
        caveats.append(
            "t-intervals and t tests take the differences between seeds as normal, which few seeds cannot show."
        )
    if tested and (floor := 2 / 2 ** min(tested)) > 1 - confidence:
        caveats.append(
            f"With {min(tested)} pairs the exact sign and permutation tests cannot give less than p = "
            f"2/2^{min(tested)} = {floor:g}, so they cannot reach {1 - confidence:g} whatever the runs say; there the "
            "verdict rests on the t test."
        )
    return tuple(caveats)


def _plot(
    results: SweepResults, by_seed: pd.DataFrame, compared: dict[str, tuple[PairedResult, float]], level: str
) -> Plot:
    figure, panel = axes(xlabel=f"difference to {results.baseline} in macro avg@n (points)")
    figure.set_figheight(1.2 + 0.35 * len(compared))
    panel.grid(axis="y", visible=False)
    panel.axvline(0, color="black", linewidth=0.8)
    for row, (arm, (result, _)) in enumerate(compared.items()):
        differences = (by_seed[arm] - by_seed[results.baseline]).dropna()
        color = style(results.arms.index(arm))["color"]
        panel.plot(differences, [row - 0.15] * len(differences), "o", mfc="none", color="#777777", markersize=4)
        panel.plot([result.low, result.high], [row + 0.1] * 2, "-", color=color, linewidth=1.5)
        panel.plot([result.mean], [row + 0.1], "D", color=color, markersize=5)
    panel.set_yticks(range(len(compared)), list(compared))
    panel.set_ylim(len(compared) - 0.5, -0.5)
    caption = f"Differences by seed (circles), their mean (diamond) and its {level} t-interval (line), by arm."
    return Plot(name="paired", caption=caption, figure=figure)
