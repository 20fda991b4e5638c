"""What every analysis of length starts from: weights of samples, means of runs, intervals over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from scipy import stats

from lightning_rlvr.report.paired import percent, t_interval
from lightning_rlvr.report.results import SweepResults

Array = npt.NDArray[np.float64]
POINTS = {"difference": "{:+.2f}", "low": "{:+.2f}", "high": "{:+.2f}"}
"""Formats of a paired difference and its interval."""


def weighted(results: SweepResults) -> SweepResults:
    """The same runs with a column `weight` of samples: problems alike inside a set, sets alike; 1 in all for each run.

    Example:
        >>> rows = [("a", 0, "s", "p", 1.0), ("a", 0, "s", "p", 0.0), ("a", 0, "s", "q", 1.0)]
        >>> samples = pd.DataFrame(rows, columns=["arm", "seed", "set", "problem", "correct"])
        >>> results = SweepResults(
        ...     name="x", baseline="a", arms=("a",), seeds=(0,), samples=samples, steps=pd.DataFrame(), settings={}
        ... )
        >>> weighted(results).samples["weight"].tolist()
        [0.25, 0.25, 0.5]
    """
    samples = results.samples
    of_problem = samples.groupby(["arm", "seed", "set", "problem"], observed=True)["correct"].transform("size")
    of_set = samples.groupby(["arm", "seed", "set"], observed=True)["problem"].transform("nunique")
    of_run = samples.groupby(["arm", "seed"], observed=True)["set"].transform("nunique")
    return replace(results, samples=samples.assign(weight=1 / (of_problem * of_set * of_run)))


def run_means(samples: pd.DataFrame, values: pd.Series[float] | str) -> pd.DataFrame:
    """The weighted mean of a column, or of values for the same rows, in every run.

    Returns:
        A row for each seed, a column for each arm; NaN where there is no such run.

    Example:
        >>> columns = ["arm", "seed", "tokens", "weight"]
        >>> run_means(pd.DataFrame([("a", 0, 8, 0.25), ("a", 0, 4, 0.75)], columns=columns), "tokens").to_dict()
        {'a': {0: 5.0}}
    """
    values = samples[values] if isinstance(values, str) else values
    products = samples[["arm", "seed"]].assign(value=values * samples["weight"])
    return products.groupby(["seed", "arm"], observed=True)["value"].sum().unstack("arm")


def t_band(values: npt.ArrayLike, confidence: float = 0.95) -> tuple[Array, Array, Array]:
    """Mean over the first axis and the t-interval of the mean, as ``scipy.stats.ttest_1samp`` has it, for curves.

    Args:
        values: ``[S, ...]``, one for each seed.
        confidence: Of the two-sided interval.

    Returns:
        Mean, lower and upper end, each ``[...]``; the ends are NaN where there is one seed only.

    Example:
        >>> [round(float(number), 2) for number in t_band([4.2, 5.4, 6.4, 7.5, 9.25])]
        [6.55, 4.14, 8.96]
    """
    values = np.asarray(values, dtype=np.float64)
    seeds = len(values)
    mean = values.mean(0) if seeds else np.full(values.shape[1:], np.nan)
    half = (
        stats.t.ppf((1 + confidence) / 2, seeds - 1) * stats.sem(values) if seeds > 1 else np.full_like(mean, np.nan)
    )
    return mean, mean - half, mean + half


def paired_difference(values: pd.DataFrame, first: str, second: str, confidence: float) -> dict[str, float]:
    """Mean difference of two arms (columns) over the seeds that both have (rows), and its t-interval.

    Example:
        >>> paired_difference(pd.DataFrame({"a": [1.0, 1.0], "b": [2.0, None]}), "a", "b", confidence=0.95)
        {'difference': 1.0, 'low': nan, 'high': nan, 'seeds': 1}
    """
    return mean_over_seeds(values[second] - values[first], confidence)


def mean_over_seeds(values: pd.Series[float], confidence: float) -> dict[str, float]:
    """Mean of one value for each seed, NaN left out, and its t-interval; see ``report.paired.t_interval``.

    Example:
        >>> mean_over_seeds(pd.Series([1.0, None, 1.0]), confidence=0.95)
        {'difference': 1.0, 'low': nan, 'high': nan, 'seeds': 2}
    """
    known = values.dropna()
    low, high = t_interval(known.tolist(), confidence)
    return {"difference": float(known.mean()), "low": low, "high": high, "seeds": len(known)}


def compared(results: SweepResults) -> list[str]:
    """The arms, other than the baseline, that share a seed with it."""
    return [arm for arm in results.arms if arm != results.baseline and len(results.pair(arm)[1])]


def by_arm(
    results: SweepResults, compare: Callable[[pd.DataFrame, pd.DataFrame], Mapping[str, object]]
) -> pd.DataFrame:
    """A row for each compared arm: what ``compare`` says of the samples of the baseline and of the arm."""
    return pd.DataFrame([{"arm": arm, **compare(*results.pair(arm))} for arm in compared(results)])


def together(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Samples of two arms in one frame, with a column `treated`: 0.0 for the first arm, 1.0 for the second.

    Example:
        >>> together(pd.DataFrame({"tokens": [3]}), pd.DataFrame({"tokens": [4]}))["treated"].tolist()
        [0.0, 1.0]
    """
    return pd.concat([first.assign(treated=0.0), second.assign(treated=1.0)], ignore_index=True)


def log_axis(panel: Axes, tokens: npt.ArrayLike) -> None:
    """A logarithmic x axis with about six whole numbers of tokens on it.

    Example:
        >>> from lightning_rlvr.report import plots
        >>> _, panel = plots.axes()
        >>> log_axis(panel, [1, 32])
        >>> panel.get_xticks().tolist()
        [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    """
    ticks = np.unique(np.geomspace(np.min(tokens), np.max(tokens), 6).round())
    panel.set_xscale("log")
    panel.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
    panel.minorticks_off()


def interval_words(confidence: float) -> str:
    """How captions call the interval of a paired difference."""
    return f"{percent(confidence)} t-interval over the seeds that both arms have"
