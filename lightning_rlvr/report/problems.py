"""Accuracy by problem and by benchmark: what the mean over benchmarks is made from, and its noise over problems."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from lightning_rlvr.report.results import SweepResults, macro
from lightning_rlvr.report.section import Table
from lightning_rlvr.report.statistics import MIN_PROBLEMS, NUM_RESAMPLES, Array, bootstrap, percent, t_interval

_FORMATS = dict.fromkeys(("difference", "low", "high"), "{:+.2f}")


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

    def total(*samples: Array, axis: int) -> Any:
        return fixed + np.sum([sample.sum(axis=axis) for sample in samples], axis=0)

    return bootstrap(noisy, total, confidence)


def rates_by_arm(results: SweepResults) -> pd.Series[float]:
    """Share of correct samples in percent, by `arm`, `seed`, `set` and `problem`."""
    return 100 * results.samples.groupby(["arm", "seed", "set", "problem"], observed=True)["correct"].mean()


def bootstrap_table(results: SweepResults, confidence: float = 0.95) -> Table:
    """Differences to the baseline with their noise over problems: of each seed, and of the mean over seeds."""
    rates, rows = rates_by_arm(results), []
    for arm in results.arms[1:]:
        gains = (rates[rates.index.get_level_values("arm") == arm].droplevel("arm") - rates[results.baseline]).dropna()
        views = {str(seed): of_seed for seed, of_seed in gains.groupby("seed", observed=True)}
        for seed, view in (views | {"mean of seeds": gains} if len(views) > 1 else views).items():
            count = len(view.reset_index()[["set", "problem"]].drop_duplicates())
            rows.append((arm, seed, macro(view).mean(), *problem_interval(view, confidence), count))
    return Table(
        name="problem_bootstrap",
        caption=f"Differences to `{results.baseline}` in macro avg@n in points with {percent(confidence)} percentile "
        f"bootstrap intervals over problems (clusters; {NUM_RESAMPLES} resamples, stratified by benchmark), seeds "
        "held fixed: sampling noise over problems only, no evidence over seeds.",
        frame=pd.DataFrame(rows, columns=["arm", "seed", "difference", "low", "high", "problems"]),
        formats=_FORMATS,
    )


def set_table(results: SweepResults, confidence: float = 0.95) -> Table:
    """Accuracy of every arm on each benchmark, over all problems (micro) and over all benchmarks (macro)."""
    rates = rates_by_arm(results)
    by_set = {str(name): of_set for name, of_set in rates.groupby("set", observed=True)}
    means = {name: of_set.groupby(["seed", "arm"], observed=True).mean() for name, of_set in by_set.items()}
    means |= {"micro": rates.groupby(["seed", "arm"], observed=True).mean(), "macro": macro(rates)}
    rows = []
    for name, values in means.items():
        by_seed = values.unstack("arm").reindex(columns=list(results.arms))
        for arm in results.arms[1:]:
            both = by_seed[[results.baseline, arm]].dropna()
            gains = both[arm] - both[results.baseline]
            rows.append((name, arm, *both.mean(), gains.mean(), *t_interval(gains, confidence), len(both)))
    return Table(
        name="by_set",
        caption="Accuracy (avg@n) in percent by benchmark, over all problems alike (micro) and over all benchmarks "
        f"alike (macro), means over the seeds that an arm shares with `{results.baseline}`; differences in points "
        f"with {percent(confidence)} t-intervals over seeds, not adjusted for the number of benchmarks and arms.",
        frame=pd.DataFrame(rows, columns=["set", "arm", "baseline", "mean", "difference", "low", "high", "pairs"]),
        formats=_FORMATS | dict.fromkeys(("baseline", "mean"), "{:.2f}"),
    )
