"""How long the completions of each arm are, and whether that differs from the baseline at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from lightning_rlvr.report.length.runs import POINTS, compared, interval_words, paired_difference, run_means
from lightning_rlvr.report.results import SweepResults
from lightning_rlvr.report.section import Table
from lightning_rlvr.report.statistics import percent
from lightning_rlvr.verify.target_length import TargetLengthVerifier

MARGIN = 0.05
"""Share of the baseline's mean tokens up to which a difference in length counts as none."""


def description(results: SweepResults, confidence: float = 0.95) -> pd.DataFrame:
    """Lengths in tokens by arm, and the paired difference of the means to the baseline.

    Args:
        results: With weights; see ``weighted``.
        confidence: Of the interval.
    """
    samples = results.samples
    tokens, correct, truncated = (run_means(samples, name) for name in ("tokens", "correct", "truncated"))
    spent_on_correct = run_means(samples, samples["tokens"] * samples["correct"])
    arms, rows = compared(results), []
    for arm in [arm for arm in results.arms if arm in tokens]:
        own = samples[samples["arm"] == arm]
        quantiles = np.quantile(
            own["tokens"], [0.1, 0.5, 0.9], weights=own["weight"].to_numpy(), method="inverted_cdf"
        )
        mean, rate, spent = (float(frame[arm].mean()) for frame in (tokens, correct, spent_on_correct))
        row = {
            "arm": arm,
            "runs": int(tokens[arm].count()),
            "mean": mean,
            **dict(zip(("q10", "q50", "q90"), map(float, quantiles), strict=True)),
            "correct": spent / rate if rate else np.nan,
            "wrong": (mean - spent) / (1 - rate) if rate < 1 else np.nan,
            "truncated": 100 * float(truncated[arm].mean()),
            "per_correct": mean / rate if rate else np.nan,
        }
        rows.append(row | (paired_difference(tokens, results.baseline, arm, confidence) if arm in arms else {}))
    return pd.DataFrame(rows)


def table(results: SweepResults, confidence: float) -> Table:
    """The description, with a caption."""
    frame = description(results, confidence)
    tokens = dict.fromkeys(("mean", "correct", "wrong", "per_correct"), "{:.1f}")
    whole = dict.fromkeys(("q10", "q50", "q90", "seeds"), "{:.0f}")
    return Table(
        name="length",
        caption="Tokens of a completion, up to and including its end token. Problems count alike inside a set, sets "
        "alike, runs alike. `mean`; quantiles `q10`, `q50`, `q90`; means over `correct` and over `wrong` completions; "
        "`truncated`: percent without an end token within the budget; `per_correct`: all tokens over the number of "
        "correct completions. `difference`: mean tokens minus those of the baseline, paired by seed, with its "
        f"{interval_words(confidence)} (`seeds`).",
        frame=frame,
        formats={**tokens, **whole, "truncated": "{:.2f}", **POINTS},
    )


def verdict(row: Mapping[Any, Any], baseline: str, baseline_mean: float, confidence: float) -> str:
    """Whether mean lengths differ, in a sentence.

    "Agree" needs an interval inside +-5% of the baseline's mean: one that merely holds 0 shows no equality.

    Args:
        row: Of the description, of a compared arm.
        baseline: Name of the baseline.
        baseline_mean: Mean tokens of the baseline.
        confidence: Of the interval.

    Example:
        >>> row = {"arm": "mcpo", "difference": 0.5, "low": -1.0, "high": 2.0, "seeds": 3}
        >>> verdict(row, "grpo", baseline_mean=20.0, confidence=0.95).partition(". ")[2]
        'Neither a difference in length nor its absence is shown.'
    """
    low, high, seeds = row["low"], row["high"], row["seeds"]
    measured = f"`{row['arm']}` against `{baseline}`: {row['difference']:+.2f} tokens for a completion in the mean"
    if seeds == 1:
        return f"{measured} (one seed, hence no interval); whether that holds beyond this pair of runs is not known."
    if np.isnan(low):
        measured += f" (the same in all {seeds:.0f} seeds)"
        low = high = row["difference"]
    else:
        measured += f" ({percent(confidence)} t-interval [{low:+.2f}, {high:+.2f}], {seeds:.0f} seeds)"
    if max(-low, high) <= MARGIN * baseline_mean:
        return (
            f"{measured}. All of that is within +-{MARGIN:.0%} of the {baseline_mean:.1f} tokens of `{baseline}`: "
            "the mean lengths agree (equal means do not make equal distributions)."
        )
    if low > 0 or high < 0:
        return f"{measured}. The lengths differ, so a difference in accuracy may go with them."
    return f"{measured}. Neither a difference in length nor its absence is shown."


def sentences(results: SweepResults, confidence: float = 0.95) -> Iterator[str]:
    """The verdict on every compared arm, then on every two arms whose reward has a target length, with their accuracy.

    Args:
        results: With weights; see ``weighted``.
        confidence: Of the intervals.
    """
    tokens, rates = run_means(results.samples, "tokens"), 100 * run_means(results.samples, "correct")

    def said(first: str, second: str) -> str:
        row = paired_difference(tokens, first, second, confidence)
        return verdict({"arm": second, **row}, first, float(tokens[first].mean()), confidence)

    yield from (said(results.baseline, arm) for arm in compared(results))
    name = TargetLengthVerifier.__name__
    aimed = [arm for arm in results.arms if arm in tokens and name in results.settings.get(arm, {}).values()]
    for first, second in combinations(aimed, 2):
        gain = paired_difference(rates, first, second, confidence)
        if gain["seeds"]:
            interval = f"{percent(confidence)} t-interval [{gain['low']:+.2f}, {gain['high']:+.2f}]"
            yield (
                f"**Trained to a target length.** {said(first, second)} Accuracy: {gain['difference']:+.2f} points "
                f"({'no interval' if np.isnan(gain['low']) else interval})."
            )
