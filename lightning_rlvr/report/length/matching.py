"""Accuracy of two arms among completions of like length to the same problem."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lightning_rlvr.report.length.runs import (
    POINTS,
    Array,
    by_arm,
    interval_words,
    mean_over_seeds,
    paired_difference,
    run_means,
    together,
)
from lightning_rlvr.report.results import SweepResults
from lightning_rlvr.report.section import Table


def matched(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Difference of accuracy inside strata of (seed, set, problem, decile of length), by ``min(n_first, n_second)``.

    The deciles are those of the lengths of both arms together, over all seeds, in each set.

    Args:
        first: Samples of the baseline.
        second: Samples of the arm, of the same seeds.

    Returns:
        A row for each seed: `difference` in [-1, 1], the mean over sets (NaN if no stratum holds both arms), and
        `overlap`, the share of samples in strata that hold both.

    Example:
        >>> columns = ["arm", "seed", "set", "problem", "tokens", "correct"]
        >>> first = pd.DataFrame([("a", 0, "s", "p", 5, 0.0), ("a", 0, "s", "q", 5, 1.0)], columns=columns)
        >>> second = pd.DataFrame([("b", 0, "s", "p", 5, 1.0), ("b", 0, "s", "q", 9, 1.0)], columns=columns)
        >>> matched(first, second).to_dict("list")
        {'difference': [1.0], 'overlap': [0.5]}
    """
    both = together(first, second)
    both["decile"] = both.groupby("set", observed=True)["tokens"].transform(_deciles)
    cell = ["seed", "set", "problem", "decile", "treated"]
    outcomes = both.groupby(cell, observed=True)["correct"]
    sizes, means = outcomes.size().unstack("treated", fill_value=0), outcomes.mean().unstack("treated")
    strata = pd.DataFrame({"weight": sizes.min(axis=1), "size": sizes.sum(axis=1)})
    strata["gain"] = ((means[1.0] - means[0.0]) * strata["weight"]).fillna(0.0)
    strata["shared"] = strata["size"].where(strata["weight"] > 0, 0)
    by_set = strata.groupby(["seed", "set"], observed=True).sum()
    by_seed = strata.groupby("seed", observed=True).sum()
    difference = (by_set["gain"] / by_set["weight"]).groupby("seed", observed=True).mean()
    return pd.DataFrame({"difference": difference, "overlap": by_seed["shared"] / by_seed["size"]})


def _deciles(tokens: pd.Series[float]) -> Array:
    """The decile of each length, counted from 0; equal lengths share one."""
    return np.searchsorted(np.quantile(tokens, np.arange(1, 10) / 10), tokens).astype(np.float64)


def matched_row(first: pd.DataFrame, second: pd.DataFrame, confidence: float = 0.95) -> dict[str, float]:
    """The difference in points as it is, and among completions of like length, each with its interval over seeds."""
    base, arm = first["arm"].iloc[0], second["arm"].iloc[0]
    accuracy = 100 * run_means(pd.concat([first, second]), "correct")
    by_seed = matched(first, second)
    raw = paired_difference(accuracy, base, arm, confidence)
    held = mean_over_seeds(100 * by_seed["difference"], confidence)
    return {
        **{f"raw_{name}": raw[name] for name in ("difference", "low", "high")},
        **{f"matched_{name}": held[name] for name in ("difference", "low", "high")},
        "overlap": 100 * float(by_seed["overlap"].mean()),
        "seeds": held["seeds"],
    }


def table(results: SweepResults, confidence: float) -> Table:
    """All arms, raw and matched."""
    frame = by_arm(results, lambda first, second: matched_row(first, second, confidence))
    return Table(
        name="length_matched",
        caption="Difference of accuracy to the baseline in points: raw, and inside strata of the same seed, problem "
        "and decile of length (deciles of both arms together, in each set), strata weighted by the smaller of their "
        f"two counts, sets alike. Each is a mean over seeds with its {interval_words(confidence)}; `seeds`: those in "
        "which a stratum holds both arms. `overlap`: percent of the completions of both that are in such strata.",
        frame=frame,
        formats={f"{kind}_{name}": form for kind in ("raw", "matched") for name, form in POINTS.items()}
        | {"overlap": "{:.1f}"},
    )
