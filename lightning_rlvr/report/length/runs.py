"""What every analysis of length starts from: weights of samples, means of runs, intervals over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from lightning_rlvr.report.results import SweepResults
from lightning_rlvr.report.statistics import percent, t_interval

Array = npt.NDArray[np.float64]
POINTS = {"difference": "{:+.2f}", "low": "{:+.2f}", "high": "{:+.2f}"}
"""Formats of a paired difference and its interval."""


def weighted(results: SweepResults) -> SweepResults:
    """The same runs with a column `weight` of samples: problems alike inside a set, sets alike; 1 in all for each run.

    Example:
        >>> rows = [("a", 0, "s", "p", 1.0), ("a", 0, "s", "p", 0.0), ("a", 0, "t", "q", 1.0)]
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


def paired_difference(values: pd.DataFrame, first: str, second: str, confidence: float) -> dict[str, float]:
    """Mean difference of two arms (columns) over the seeds that both have (rows), and its t-interval.

    Example:
        >>> paired_difference(pd.DataFrame({"a": [1.0, 1.0], "b": [2.0, None]}), "a", "b", confidence=0.95)
        {'difference': 1.0, 'low': nan, 'high': nan, 'seeds': 1}
    """
    return mean_over_seeds(values[second] - values[first], confidence)


def mean_over_seeds(values: pd.Series[float], confidence: float) -> dict[str, float]:
    """Mean of one value for each seed, NaN left out, and its t-interval; see ``report.statistics.t_interval``.

    Example:
        >>> mean_over_seeds(pd.Series([1.0, None, 1.0]), confidence=0.95)
        {'difference': 1.0, 'low': nan, 'high': nan, 'seeds': 2}
    """
    known = values.dropna()
    low, high = map(float, t_interval(known, confidence))
    return {"difference": float(known.mean()), "low": low, "high": high, "seeds": len(known)}


def compared(results: SweepResults) -> list[str]:
    """The arms, other than the baseline, that share a seed with it."""
    seeds = results.samples.groupby("arm", observed=True)["seed"].agg(set)
    shared = seeds.get(results.baseline, set())
    return [arm for arm in results.arms if arm != results.baseline and shared & seeds.get(arm, set())]


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


def interval_words(confidence: float) -> str:
    """How captions call the interval of a paired difference."""
    return f"{percent(confidence)} t-interval over the seeds that both arms have"
