"""Tests and intervals that a report takes from scipy and statsmodels, for paired runs and for problems."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats
from statsmodels.stats.multitest import multipletests

from lightning_rlvr.checks import require

Array = NDArray[np.float64]
POWER = 0.8
"""Probability with which the minimum detectable effect is found."""
MIN_PAIRS = 3
"""Below it a t test decides nothing, whatever its p."""
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


def paired_result(differences: ArrayLike, confidence: float = 0.95) -> PairedResult:
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
    low, high = map(float, t_interval(values, confidence))
    return PairedResult(
        num_pairs=n, wins=wins, mean=mean, sd=sd, low=low, high=high, t=t, p_t=p_t, p_sign=p_sign,
        p_permutation=p_permutation, effect_size=effect_size, minimum_detectable_effect=detectable,
    )  # fmt: skip


def t_interval(values: ArrayLike, confidence: float = 0.95) -> tuple[Array, Array]:
    """Two-sided t-intervals of means over the first axis.

    Args:
        values: ``[S, ...]``, one for each seed, or whatever the unit is; rounded to 12 decimals.
        confidence: Of the interval.

    Returns:
        Lower and upper ends, each ``[...]``: NaN for fewer than two values, where all are equal, and where one is NaN.

    Example:
        >>> [round(float(end), 3) for end in t_interval([1.0, 2.0, 3.0])]
        [-0.484, 4.484]
        >>> t_interval([[1.0, 1.0], [2.0, 1.0], [3.0, 1.0]])[0].round(3).tolist()
        [-0.484, nan]
    """
    rounded = np.asarray(values, dtype=np.float64).round(_DECIMALS)
    if len(rounded) < 2:
        return np.full(rounded.shape[1:], np.nan), np.full(rounded.shape[1:], np.nan)
    mean, error = rounded.mean(axis=0), np.where(np.ptp(rounded, axis=0) > 0, stats.sem(rounded), np.nan)
    half = stats.t.isf((1 - confidence) / 2, len(rounded) - 1) * error
    return mean - half, mean + half


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


def adjusted(differences: pd.DataFrame, confidence: float = 0.95) -> dict[str, tuple[PairedResult, float]]:
    """Every column of paired differences, with its p-value of the t test after Holm over all columns.

    Args:
        differences: A row for each pair; NaN where there is none.
        confidence: Of the intervals.

    Example:
        >>> result, p_holm = adjusted(pd.DataFrame({"mcpo": [1.0, 2.0, float("nan")]}))["mcpo"]
        >>> result.num_pairs, result.mean, round(p_holm, 3)
        (2, 1.5, 0.205)
    """
    results = {
        str(name): paired_result(column.dropna().to_numpy(), confidence) for name, column in differences.items()
    }
    p_values = holm([result.p_t for result in results.values()])
    return {name: (result, p) for (name, result), p in zip(results.items(), p_values, strict=True)}


def compare(by_seed: pd.DataFrame, baseline: str, confidence: float = 0.95) -> dict[str, tuple[PairedResult, float]]:
    """Every other column against the baseline's, as ``adjusted`` does.

    Args:
        by_seed: A row for each seed, a column for each arm (as ``accuracy`` gives); seeds that lack one are left out.
        baseline: Name of a column.
        confidence: Of the intervals.

    Example:
        >>> compare(pd.DataFrame({"grpo": [1.0, 2.0], "mcpo": [2.0, 4.0]}), "grpo")["mcpo"][0].mean
        1.5
    """
    return adjusted(by_seed.drop(columns=baseline).sub(by_seed[baseline], axis=0), confidence)


def finding(result: PairedResult, p_holm: float, confidence: float = 0.95) -> str:
    """What the t test decides, in a word or two: the only rule by which a report calls something better or worse.

    Args:
        result: Of the differences.
        p_holm: Adjusted for all that was compared; better or worse is where it is below ``1 - confidence``.
        confidence: As given to ``paired_result``.

    Returns:
        better, worse, inconclusive, "too few pairs" (two) or "no test" (fewer, or no spread between the pairs).

    Example:
        >>> finding(paired_result([2.0, 2.05]), 0.008), finding(paired_result([2.0, 2.05, 2.1]), 0.0002)
        ('too few pairs', 'better')
    """
    if math.isnan(p_holm):
        return "no test"
    if result.num_pairs < MIN_PAIRS:
        return "too few pairs"
    if p_holm < 1 - confidence:
        return "better" if result.mean > 0 else "worse"
    return "inconclusive"


def bootstrap(
    samples: Sequence[Array], statistic: Callable[..., Any], confidence: float, *, paired: bool = False
) -> tuple[float, float]:
    """Percentile interval of a statistic (vectorised: ``axis``) of samples, resampled together if ``paired``.

    Example:
        >>> bootstrap([np.array([0.0, 0.0, 0.5, 1.0, 1.0])], np.mean, confidence=0.9)
        (0.2, 0.8)
    """
    found = stats.bootstrap(
        samples, statistic, paired=paired, n_resamples=NUM_RESAMPLES, batch=200, vectorized=True,
        confidence_level=confidence, method="percentile", rng=0,
    ).confidence_interval  # fmt: skip
    return float(found.low), float(found.high)


def percent(confidence: float) -> str:
    """As texts name it.

    Example:
        >>> percent(0.95), percent(0.999)
        ('95%', '99.9%')
    """
    return f"{100 * confidence:g}%"
