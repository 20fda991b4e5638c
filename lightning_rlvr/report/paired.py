"""Did an arm win? Differences between runs that share a data seed, with what the runs can and cannot show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special, stats
from statsmodels.stats.multitest import multipletests

from lightning_rlvr.checks import require
from lightning_rlvr.report.plots import axes, style
from lightning_rlvr.report.results import SweepResults, accuracy
from lightning_rlvr.report.section import Plot, Section, Table

POWER = 0.8
"""Probability with which the minimum detectable effect is found."""
MIN_PROBLEMS = 5
"""Below it a bootstrap over problems says nothing, and no interval is given."""
NUM_RESAMPLES = 2000
_DECIMALS = 12  # equal rates that were added up in another order are equal


@dataclass(frozen=True, kw_only=True)
class PairedResult:
    """What paired differences say of their mean, in their unit; NaN where nothing can be said."""

    num_pairs: int
    wins: int
    """Differences above 0."""
    mean: float
    sd: float
    """ddof 1; 0 = all differences are equal, and then no t statistic is defined."""
    low: float
    high: float
    """Two-sided t-interval of the mean."""
    t: float
    p_t: float
    p_sign: float
    """Exact two-sided sign test, zeros left out."""
    p_permutation: float
    """Two-sided test of the mean by flips of signs: all of them up to 13 pairs, then 9,999 random ones."""
    effect_size: float
    """d_z = mean / sd, without a correction for small samples."""
    minimum_detectable_effect: float
    """Smallest true mean that a two-sided t test with this sd and number of pairs finds with probability 0.8."""


def paired_result(differences: Sequence[float] | NDArray[np.float64], confidence: float = 0.95) -> PairedResult:
    """Tests and interval of the mean of paired differences.

    Args:
        differences: One for each pair, in any unit; rounded to 12 decimals.
        confidence: Of the interval; the tests behind ``minimum_detectable_effect`` have level ``1 - confidence``.

    Raises:
        ValueError: ``confidence`` is out of range, or a difference is not finite.

    Example:
        >>> result = paired_result([4.2, 5.4, 6.4, 7.5, 9.25])
        >>> f"{result.mean:.2f} [{result.low:.2f}, {result.high:.2f}], {result.p_t:.4f}, {result.p_sign:.4f}"
        '6.55 [4.14, 8.96], 0.0017, 0.0625'
    """
    require(0 < confidence < 1, "confidence", "between 0 and 1", confidence)
    values = np.asarray(differences, dtype=np.float64).round(_DECIMALS)
    require(bool(np.isfinite(values).all()), "differences", "finite", values.tolist())
    n, nan = len(values), math.nan
    wins = int((values > 0).sum())
    mean = float(values.mean()) if n else nan
    p_sign = p_permutation = sd = t = p_t = effect_size = detectable = nan
    if n > 1:
        nonzero = int((values != 0).sum())
        p_sign = float(stats.binomtest(wins, nonzero).pvalue) if nonzero else 1.0
        flips = stats.permutation_test((values,), np.mean, permutation_type="samples", rng=0)
        p_permutation = float(flips.pvalue)
        sd = 0.0 if np.ptp(values) == 0 else float(values.std(ddof=1))
    if n > 1 and sd > 0:
        test = stats.ttest_1samp(values, 0.0)
        t, p_t, effect_size = float(test.statistic), float(test.pvalue), mean / sd
        critical = stats.t.isf((1 - confidence) / 2, n - 1)
        # The other tail adds less than 1e-5 to the power, so the noncentral t is inverted at this one alone.
        detectable = sd * float(special.nctdtrinc(n - 1, 1 - POWER, critical)) / math.sqrt(n)
    low, high = t_interval(values, confidence)
    return PairedResult(
        num_pairs=n, wins=wins, mean=mean, sd=sd, low=low, high=high, t=t, p_t=p_t, p_sign=p_sign,
        p_permutation=p_permutation, effect_size=effect_size, minimum_detectable_effect=detectable,
    )  # fmt: skip


def t_interval(values: Sequence[float] | NDArray[np.float64], confidence: float = 0.95) -> tuple[float, float]:
    """Two-sided t-interval of a mean; NaN for fewer than two values, and where all are equal.

    Example:
        >>> low, high = t_interval([1.0, 2.0, 3.0])
        >>> round(low, 3), round(high, 3), t_interval([1.0, 1.0])
        (-0.484, 4.484, (nan, nan))
    """
    rounded = np.asarray(values, dtype=np.float64).round(_DECIMALS)
    if len(rounded) < 2 or np.ptp(rounded) == 0:
        return math.nan, math.nan
    interval = stats.ttest_1samp(rounded, 0.0).confidence_interval(confidence)
    return float(interval.low), float(interval.high)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm-adjusted p-values in the order given; NaN stays NaN and does not count as a test.

    Example:
        >>> holm([0.01, float("nan"), 0.04])
        [0.02, nan, 0.04]
    """
    adjusted = np.asarray(p_values, dtype=np.float64).copy()
    known = ~np.isnan(adjusted)
    if known.any():
        adjusted[known] = multipletests(adjusted[known], method="holm")[1]
    return [float(p) for p in adjusted]


def compare(by_seed: pd.DataFrame, baseline: str, confidence: float = 0.95) -> dict[str, tuple[PairedResult, float]]:
    """Every column against the baseline's, with its p-value of the t test after Holm over all columns.

    Args:
        by_seed: A row for each seed, a column for each arm (as ``accuracy`` gives); seeds that lack one are left out.
        baseline: Name of a column.
        confidence: Of the intervals.

    Example:
        >>> frame = pd.DataFrame({"grpo": [1.0, 2.0, 3.0], "mcpo": [2.0, 4.0, float("nan")]})
        >>> result, p_holm = compare(frame, "grpo")["mcpo"]
        >>> result.num_pairs, result.mean, round(p_holm, 3)
        (2, 1.5, 0.205)
    """
    differences = by_seed.drop(columns=baseline).sub(by_seed[baseline], axis=0)
    results = {str(arm): paired_result(column.dropna().to_numpy(), confidence) for arm, column in differences.items()}
    adjusted = holm([result.p_t for result in results.values()])
    return {arm: (result, p) for (arm, result), p in zip(results.items(), adjusted, strict=True)}


def verdict(arm: str, baseline: str, result: PairedResult, p_holm: float, confidence: float = 0.95) -> str:
    """What may be said of an arm, by rule: better or worse only where the adjusted p is below ``1 - confidence``.

    The interval then excludes 0, since the adjusted p is at least that of the t test.

    Args:
        arm: Compared with ``baseline``.
        baseline: The other one.
        result: Of the differences, in points.
        p_holm: Adjusted for all arms that were compared.
        confidence: As given to ``paired_result``.

    Example:
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
    if p_holm < 1 - confidence:
        return f"**`{arm}` is {'better' if result.mean > 0 else 'worse'} than `{baseline}`**: {numbers}."
    few = f" {n} seeds are too few to conclude equality." if n < 5 else ""
    return (
        f"{names}: no difference could be shown: {numbers}. A true difference of at least "
        f"{result.minimum_detectable_effect:.2f} points would have been found with probability {POWER} by one "
        f"unadjusted t test if differences spread as they did here, so smaller effects are not excluded.{few}"
    )


def verdicts(results: SweepResults, confidence: float = 0.95) -> dict[str, str]:
    """The verdict on every arm but the baseline, from macro avg@n in points."""
    compared = compare(points(results), results.baseline, confidence)
    return {
        arm: verdict(arm, results.baseline, result, p_holm, confidence) for arm, (result, p_holm) in compared.items()
    }


def points(results: SweepResults) -> pd.DataFrame:
    """Macro avg@n of every run in percent: a row for each seed, a column for each arm, in the order of the results."""
    return 100 * accuracy(results.samples).reindex(columns=list(results.arms))


def percent(confidence: float) -> str:
    """As texts name it.

    Example:
        >>> percent(0.95), percent(0.999)
        ('95%', '99.9%')
    """
    return f"{100 * confidence:g}%"


def pass_rates(samples: pd.DataFrame) -> pd.Series:
    """Share of correct samples by seed, set and problem, of one arm.

    Example:
        >>> samples = pd.DataFrame({"seed": 0, "set": "s", "problem": ["p", "p"], "correct": [1.0, 0.0]})
        >>> pass_rates(samples).to_dict()
        {(0, 's', 'p'): 0.5}
    """
    return samples.groupby(["seed", "set", "problem"], observed=True)["correct"].mean()


def problem_interval(values: pd.Series, confidence: float = 0.95) -> tuple[float, float]:
    """Bootstrap interval (percentile) of a macro mean: problems resampled, seeds and sets as they are.

    A problem is one cluster over all its seeds. Strata are the problems of one set that occur in the same seeds: the
    set where problems recur in every seed, set and seed where they are others in each. A stratum of one problem adds
    no noise.

    Args:
        values: By `seed`, `set`, `problem`; their mean over problems, sets and seeds, in this order, is estimated.
        confidence: Of the interval.

    Returns:
        NaN for fewer than five problems.

    Example:
        >>> index = pd.MultiIndex.from_product([[0], ["s"], range(5)], names=["seed", "set", "problem"])
        >>> problem_interval(pd.Series([0.0, 0.0, 0.5, 1.0, 1.0], index), confidence=0.9)
        (0.2, 0.8)
    """
    frame = values.rename("value").reset_index()
    problems = frame.groupby(["seed", "set"], observed=True)["value"].transform("size")
    sets = frame.groupby("seed", observed=True)["set"].transform("nunique")
    frame["share"] = frame["value"] / (problems * sets * frame["seed"].nunique())  # the macro mean is their sum
    clusters = frame.groupby(["set", "problem"], observed=True).agg(share=("share", "sum"), seeds=("seed", tuple))
    strata = [of["share"].to_numpy() for _, of in clusters.groupby(["set", "seeds"], observed=True)]
    noisy = [stratum for stratum in strata if len(stratum) > 1]
    if len(clusters) < MIN_PROBLEMS or not noisy:
        return math.nan, math.nan
    fixed = sum(stratum.sum() for stratum in strata if len(stratum) == 1)

    def total(*samples: NDArray[np.float64], axis: int) -> Any:
        return fixed + np.sum([sample.sum(axis=axis) for sample in samples], axis=0)

    found = stats.bootstrap(
        noisy, total, n_resamples=NUM_RESAMPLES, batch=200, vectorized=True, confidence_level=confidence,
        method="percentile", rng=0,
    ).confidence_interval  # fmt: skip
    return float(found.low), float(found.high)


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
    runs = by_seed.rename_axis(columns=None).reset_index()
    for arm in compared:
        runs[f"{arm} - {results.baseline}"] = runs[arm] - runs[results.baseline]
    every_run = Table(
        name="by_seed",
        caption="Macro avg@n of every run in percent, and differences in points.",
        frame=runs,
        formats={str(name): "{:+.2f}" if " - " in str(name) else "{:.2f}" for name in runs.columns[1:]},
    )
    problems = Table(
        name="problem_bootstrap",
        caption=f"The same differences in points with {level} percentile bootstrap intervals over problems "
        f"(clusters; {NUM_RESAMPLES} resamples, stratified by benchmark), seeds held fixed: sampling noise over "
        "problems only, no evidence over seeds.",
        frame=_problem_bootstrap(results, confidence),
        formats=dict.fromkeys(("difference", "low", "high"), "{:+.2f}"),
    )
    if not compared:
        text: tuple[str, ...] = (f"`{results.baseline}` is the only arm: there is nothing to compare it with.",)
        return Section(title="Did an arm win?", text=text, tables=(every_run,))
    text = (
        "Both runs of a pair share the data seed, hence problems, their order and sampling seeds. The unit of "
        "analysis is the seed: one difference for each, however many samples are behind it.",
        *verdicts(results, confidence).values(),
    )
    return Section(
        title="Did an arm win?",
        text=text,
        tables=(table, every_run, problems),
        plots=(_plot(results, by_seed, compared, level),),
        caveats=_caveats([result.num_pairs for result, _ in compared.values()], confidence),
    )


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


def _problem_bootstrap(results: SweepResults, confidence: float) -> pd.DataFrame:
    rows = []
    for arm in results.arms[1:]:
        before, after = map(pass_rates, results.pair(arm))
        gains = 100 * (after - before)
        views = {str(seed): of_seed for seed, of_seed in gains.groupby("seed", observed=True)}
        for seed, view in (views | {"mean of seeds": gains} if len(views) > 1 else views).items():
            low, high = problem_interval(view, confidence)
            mean = view.groupby(["seed", "set"], observed=True).mean().groupby("seed", observed=True).mean().mean()
            count = len(view.reset_index()[["set", "problem"]].drop_duplicates())
            rows.append((arm, seed, mean, low, high, count))
    return pd.DataFrame(rows, columns=["arm", "seed", "difference", "low", "high", "problems"])


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
