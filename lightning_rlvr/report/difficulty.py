"""Where a gain comes from: problems binned by the baseline's pass rate, beside what no change at all looks like."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd

from lightning_rlvr.report.plots import axes, style
from lightning_rlvr.report.problems import pass_rates
from lightning_rlvr.report.results import SweepResults
from lightning_rlvr.report.section import Plot, Section, Table
from lightning_rlvr.report.statistics import MIN_PROBLEMS, Array, bootstrap, percent

BINS: Mapping[str, str] = {
    "never": "0",
    "rare": "(0, 0.25]",
    "sometimes": "(0.25, 0.75]",
    "mostly": "(0.75, 1)",
    "always": "1",
}
"""Names and ranges of the baseline's pass rate."""
MIN_SAMPLES = 4
"""Fewer cannot be cut into a half to bin with and two quarters to compare."""
Rates = tuple[pd.Series, pd.Series, pd.Series]
"""Pass rates to bin with, before and after: what ``gain_by_bin`` takes."""
_TITLE = "Gain by difficulty"
_LESS = "less null"
_SAME_RUN = (
    "Bins come from the run that gains start from: a gain in hard bins beside a loss in easy ones is what training "
    "the baseline again would show too."
)


def bins(pass_rate: pd.Series) -> pd.Series:
    """The bin of each pass rate, as an ordered category.

    Example:
        >>> bins(pd.Series([0.0, 0.25, 0.75, 0.99, 1.0])).tolist()
        ['never', 'rare', 'sometimes', 'mostly', 'always']
    """
    return pd.cut(pass_rate, [-1.0, 0.0, 0.25, 0.75, np.nextafter(1.0, 0.0), 1.0], labels=list(BINS))


def part_rates(samples: pd.DataFrame, start: float, stop: float) -> pd.Series:
    """Pass rates from a part of each problem's n samples: those whose number is in ``[start * n, stop * n)``.

    Args:
        samples: Of one arm.
        start: In [0, 1).
        stop: In (0, 1].

    Returns:
        By `seed`, `set` and `problem`.

    Example:
        >>> rows = [(0, "s", "p", number, float(number > 1)) for number in range(4)]
        >>> samples = pd.DataFrame(rows, columns=["seed", "set", "problem", "sample", "correct"])
        >>> part_rates(samples, 0, 0.5).tolist(), part_rates(samples, 0.5, 1).tolist()
        ([0.0], [1.0])
    """
    n = samples.groupby(["seed", "set", "problem"], observed=True)["sample"].transform("size")
    return pass_rates(samples[(samples["sample"] >= start * n) & (samples["sample"] < stop * n)])


def gain_by_bin(known: pd.Series, before: pd.Series, after: pd.Series, confidence: float = 0.95) -> pd.DataFrame:
    """Mean gain in each bin, in points, with a bootstrap interval (percentile) over problems.

    Where ``known`` shares no run with the other two, a bin is expected to gain nothing if ``after`` is ``before``
    trained again; where it shares the run but no sample, if ``after`` is the same run sampled again.

    Args:
        known: Pass rates to bin with, by `seed`, `set`, `problem`.
        before: Pass rates of what is compared with.
        after: Pass rates of what is compared.
        confidence: Of the interval.

    Returns:
        A row for each bin: `bin`, `pass rate`, `problems` (clusters: a problem that occurs in several seeds is one),
        `entries` (problem and seed), `before`, `after`, `gain`, `low`, `high`; no interval below five problems.

    Example:
        >>> index = pd.MultiIndex.from_product([[0], ["s"], range(5)], names=["seed", "set", "problem"])
        >>> known, after = pd.Series(0.0, index), pd.Series([0.0, 0.0, 0.0, 0.0, 0.5], index)
        >>> gain_by_bin(known, known, after).loc[0, ["before", "after", "gain"]].astype(float).tolist()
        [0.0, 10.0, 10.0]
    """
    frame = pd.DataFrame({"bin": bins(known), "before": before, "after": after}).dropna()
    frame["gain"] = frame["after"] - frame["before"]
    rows = []
    for name, scope in BINS.items():
        of_bin = frame[frame["bin"] == name]
        clusters = of_bin.groupby(["set", "problem"], observed=True)["gain"].agg(["sum", "size"])
        low, high = _interval(clusters, confidence) if len(clusters) >= MIN_PROBLEMS else (math.nan, math.nan)
        means = 100 * of_bin[["before", "after", "gain"]].mean()
        rows.append((name, scope, len(clusters), len(of_bin), *means, 100 * low, 100 * high))
    columns = ["bin", "pass rate", "problems", "entries", "before", "after", "gain", "low", "high"]
    return pd.DataFrame(rows, columns=columns)


def _interval(clusters: pd.DataFrame, confidence: float) -> tuple[float, float]:
    def mean(total: Array, size: Array, axis: int) -> Any:
        return total.sum(axis=axis) / size.sum(axis=axis)

    return bootstrap([clusters[name].to_numpy(np.float64) for name in ("sum", "size")], mean, confidence, paired=True)


def recurs(rates: pd.Series) -> bool:
    """Whether there are several seeds, and every problem occurs in each of them.

    Example:
        >>> index = pd.MultiIndex.from_product([[0, 1], ["s"], ["p", "q"]], names=["seed", "set", "problem"])
        >>> recurs(pd.Series(0.5, index)), recurs(pd.Series(0.5, index[1:]))
        (True, False)
    """
    seeds = rates.index.get_level_values("seed").nunique()
    return seeds > 1 and bool((rates.groupby(["set", "problem"], observed=True).size() == seeds).all())


def rates_elsewhere(rates: pd.Series[float], without: Mapping[int, Collection[int]]) -> pd.Series[float]:
    """For each seed of ``without``, every problem's mean pass rate in the seeds that are not left out for it.

    Example:
        >>> index = pd.MultiIndex.from_product([[0, 1, 2], ["s"], ["p"]], names=["seed", "set", "problem"])
        >>> rates_elsewhere(pd.Series([0.0, 0.5, 1.0], index), {0: [0], 2: [1, 2]}).to_dict()
        {(0, 's', 'p'): 0.75, (2, 's', 'p'): 0.0}
    """
    means: dict[int, pd.Series[float]] = {
        seed: rates[~rates.index.isin(left_out, level="seed")].groupby(["set", "problem"], observed=True).mean()
        for seed, left_out in without.items()
    }
    return pd.concat(means, names=["seed"])


def arm_rates(own: pd.DataFrame, first: pd.DataFrame, second: pd.DataFrame) -> Rates:
    """What ``gain_by_bin`` takes for an arm.

    Where every problem recurs in every seed, a seed is binned by the baseline's other seeds, and all samples are
    compared. Else it is binned by the first half of the baseline's samples, and second halves are compared.

    Args:
        own: Samples of the baseline, of all its seeds.
        first: Of the baseline, of the seeds that the arm has.
        second: Of the arm.

    Example:
        >>> rows = {"seed": 0, "set": "s", "problem": "p", "sample": range(4), "correct": [1.0, 0.0, 0.0, 1.0]}
        >>> [rates.tolist() for rates in arm_rates(*[pd.DataFrame(rows)] * 3)]
        [[0.5], [0.5], [0.5]]
    """
    if recurs(rates := pass_rates(own)):
        return (
            rates_elsewhere(rates, {seed: [seed] for seed in set(own["seed"])}),
            pass_rates(first),
            pass_rates(second),
        )
    return part_rates(first, 0, 0.5), part_rates(first, 0.5, 1), part_rates(second, 0.5, 1)


def null_pairs(own: pd.DataFrame) -> dict[int, int]:
    """Seeds of the baseline two by two, where problems recur and a third seed is there to bin with; else none.

    No run is in two pairs: their gains would cancel.

    Example:
        >>> rows = [(seed, "s", "p", 0.5) for seed in range(5)]
        >>> null_pairs(pd.DataFrame(rows, columns=["seed", "set", "problem", "correct"]))
        {0: 1, 2: 3}
    """
    seeds = sorted(set(own["seed"]))
    recurring = len(seeds) > 2 and recurs(pass_rates(own))
    return dict(zip(seeds[::2], seeds[1::2], strict=False)) if recurring else {}  # an odd last one has no partner


def null_rates(own: pd.DataFrame) -> Rates:
    """The baseline as if it were an arm: what ``gain_by_bin`` takes.

    The second run of each of ``null_pairs`` plays the arm, binned by the seeds outside the pair. Where there are none,
    the fourth quarter of a run's samples plays it against the third, binned by the first half.

    Args:
        own: Samples of the baseline, at least four for each problem where there are no pairs.

    Example:
        >>> rows = {"seed": 0, "set": "s", "problem": "p", "sample": range(4), "correct": [1.0, 0.0, 0.0, 1.0]}
        >>> [rates.tolist() for rates in null_rates(pd.DataFrame(rows))]
        [[0.5], [0.0], [1.0]]
    """
    if not (pairs := null_pairs(own)):
        return part_rates(own, 0, 0.5), part_rates(own, 0.5, 0.75), part_rates(own, 0.75, 1)
    rates = pass_rates(own)
    before, after = (rates[rates.index.isin(seeds, level="seed")] for seeds in (pairs.keys(), pairs.values()))
    plays_for = {other: seed for seed, other in pairs.items()}
    return (
        rates_elsewhere(rates, {seed: [seed, other] for seed, other in pairs.items()}),
        before,
        after.rename(index=plays_for, level="seed"),
    )


def section(results: SweepResults, confidence: float = 0.95) -> Section:
    """Gain of every arm by the baseline's pass rate, with the baseline against itself beside it."""
    own = results.samples[results.samples["arm"] == results.baseline]
    pairs, elsewhere = null_pairs(own), recurs(pass_rates(own))
    fewest = int(results.samples.groupby(["arm", "seed", "set", "problem"], observed=True).size().min())
    if fewest < MIN_SAMPLES and not pairs:
        return Section(title=_TITLE, text=(_too_few(fewest),))
    known, before, after = null_rates(own)
    null = gain_by_bin(known, before, after, confidence)
    naive = gain_by_bin(before, before, after, confidence)
    arms = {arm: gain_by_bin(*arm_rates(own, *results.pair(arm)), confidence) for arm in results.arms[1:]}
    if pairs:
        arms = {arm: table.assign(**{_LESS: table["gain"] - null["gain"]}) for arm, table in arms.items()}
    tables = arms | {"null": null, "naive null": naive}
    frame = pd.concat([table.assign(arm=name) for name, table in tables.items()])
    level = percent(confidence)
    table = Table(
        name="difficulty",
        caption=f"Pass rates of `{results.baseline}` (before) and of each arm (after) in percent by bin, gains in "
        f"points with {level} percentile bootstrap intervals over problems (clusters), seeds held fixed; means over "
        f"problems and seeds, all benchmarks pooled. No interval below {MIN_PROBLEMS} problems."
        + (f" `{_LESS}` is the gain less that of the null in the same bin, without an interval." if pairs else ""),
        frame=frame[["arm", *frame.columns.drop("arm")]],
        formats=dict.fromkeys(("before", "after"), "{:.1f}")
        | dict.fromkeys(("gain", "low", "high", _LESS), "{:+.1f}"),
    )
    seen = "the other seeds of the baseline" if elsewhere else "half of the samples"
    return Section(
        title=_TITLE,
        text=(
            _bins_text(results.baseline, elsewhere, own["seed"].nunique()),
            _null_text(len(pairs), elsewhere, own["seed"].nunique()),
            _naive_text(naive),
        ),
        tables=(table,),
        plots=(_plot(results, arms, null, level, "other seeds" if elsewhere else "first half of samples"),),
        caveats=(
            "Gains by difficulty are an exploration: intervals cover sampling noise over problems only, seeds held "
            "fixed, and are not adjusted for the number of bins and arms.",
            *(() if elsewhere else (_SAME_RUN,)),
            f"A bin is what {seen} show of a problem: some problems are in a bin that their true pass rate is not in.",
            "An interval of width 0 means that all problems of a bin gained the same, not that the gain is certain.",
        ),
    )


def _too_few(fewest: int) -> str:
    return (
        f"Gain by difficulty cannot be measured: without problems that recur in three or more seeds it takes at least "
        f"{MIN_SAMPLES} samples for each problem, half of them to bin with and the rest to compare, and there are "
        f"problems with {fewest}."
    )


def _no_others(seeds: int) -> str:
    return "there is one seed" if seeds == 1 else "problems do not recur in every seed"


def _bins_text(baseline: str, elsewhere: bool, seeds: int) -> str:
    if elsewhere:
        return (
            f"Problems are binned, for each seed, by the pass rate of `{baseline}` in its other seeds; gains are "
            "measured on all samples of both runs of the seed. The bins have seen neither run, so regression to the "
            f"mean, of sampling as of training, is not in the gains: an arm that is `{baseline}` trained again is "
            "expected to gain about nothing in every bin."
        )
    return (
        f"Problems are binned by the pass rate of `{baseline}` on the first half of its samples, since "
        f"{_no_others(seeds)}; gains are measured on the second half of both arms. This removes the regression to the "
        "mean of sampling only, not that of training: what is peculiar to the run that bins and `before` come from is "
        f"gone in any other run, so hard problems seem to gain and easy ones to lose even in an arm that is "
        f"`{baseline}` trained again."
    )


def _null_text(pairs: int, elsewhere: bool, seeds: int) -> str:
    if pairs:
        return (
            "The null is the baseline against itself: seeds are taken two by two, and the second run of a pair plays "
            "the arm on the same problems, binned by the seeds outside the pair. It shows, from "
            f"{pairs} pair{'s' if pairs > 1 else ''}, what training again and sampling leave in a bin where no method "
            "was changed; with fewer pairs than an arm has seeds its intervals are wider than the arm's."
        )
    why = "a pair of seeds leaves no other to bin with" if elsewhere else _no_others(seeds)
    return (
        f"The null is the baseline against itself: {why}, so the fourth quarter of each run's samples is compared "
        "with the third, binned by the first half. It shows the noise of sampling in a bin, from fewer samples than "
        "the arms have and hence larger than theirs; it cannot show what training again brings."
    )


def _naive_text(naive: pd.DataFrame) -> str:
    filled = naive[naive["entries"] > 0]
    claims = ", ".join(f"{gain:+.1f} ({name})" for name, gain in zip(filled["bin"], filled["gain"], strict=True))
    return (
        "Had the null been binned by the same samples that its gains start from (naive null), it would have shown "
        f"gains of {claims} points though no method was changed. Regression to the mean makes hard problems seem to "
        "gain and easy ones to lose."
    )


def _plot(results: SweepResults, arms: Mapping[str, pd.DataFrame], null: pd.DataFrame, level: str, seen: str) -> Plot:
    figure, panel = axes(xlabel=f"pass rate of {results.baseline} ({seen})", ylabel="gain (points)")
    figure.set_size_inches(7.5, 3.8)
    panel.axhline(0, color="black", linewidth=0.8)
    step = 0.8 / (len(arms) + 1)
    for place, (name, table) in enumerate([*arms.items(), ("null", null)]):
        x = np.arange(len(BINS)) - 0.4 + step * (place + 0.5)
        if name in arms:
            look = style(results.arms.index(name))
            color, marker, fill = look["color"], look["marker"], look["color"]
        else:
            color, marker, fill = "#777777", "o", "none"
        panel.vlines(x, table["low"], table["high"], color=color, linewidth=1.2)
        label = name if name in arms else f"null: {results.baseline} against itself"
        panel.plot(x, table["gain"], linestyle="", marker=marker, color=color, mfc=fill, markersize=5, label=label)
    panel.set_xticks(range(len(BINS)), [f"{name}\n{scope}" for name, scope in BINS.items()])
    panel.legend(fontsize="small", frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    caption = f"Gain by bin with {level} bootstrap intervals over problems, and the baseline against itself."
    return Plot(name="difficulty", caption=caption, figure=figure)
