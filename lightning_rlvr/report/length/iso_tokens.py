"""Arms at equal numbers of sampled tokens: the one with the shorter completions gets more of them."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import torch

from lightning_rlvr.functional.evaluation import pass_at_k
from lightning_rlvr.report import plots
from lightning_rlvr.report.length.runs import POINTS, compared, interval_words, paired_difference, run_means
from lightning_rlvr.report.pass_at_k import counts, powers
from lightning_rlvr.report.results import SweepResults
from lightning_rlvr.report.section import Plot, Table
from lightning_rlvr.report.statistics import percent, t_interval


def macro_pass_at(problems: pd.DataFrame, k: float) -> float:
    """pass@k of one run, for any k > 0: linear between whole numbers (0 at k = 0), mean over sets of problem means.

    The line between two numbers is what drawing one of them at random, with mean k, would give.

    Args:
        problems: The rows of ``pass_at_k.counts`` of one run.
        k: Samples of each problem.

    Returns:
        In [0, 1]; NaN if a problem has fewer than k samples.

    Example:
        >>> index = pd.MultiIndex.from_tuples([("s", "p"), ("s", "q")], names=["set", "problem"])
        >>> problems = pd.DataFrame({"n": [2, 2], "c": [1, 0]}, index=index)
        >>> [macro_pass_at(problems, k) for k in (0.5, 1, 1.5, 2, 3)]
        [0.125, 0.25, 0.375, 0.5, nan]
    """
    if k > problems["n"].min():
        return math.nan
    n, c = (torch.tensor(problems[name].to_numpy()) for name in ("n", "c"))
    below, above = (
        pass_at_k(n, c, whole) if whole else torch.zeros(len(n)) for whole in (math.floor(k), math.ceil(k))
    )
    by_problem = pd.Series(torch.lerp(below.double(), above.double(), k % 1).numpy(), index=problems.index)
    return float(by_problem.groupby("set", observed=True).mean().mean())


def iso_tokens(first: pd.DataFrame, second: pd.DataFrame, confidence: float = 0.95) -> pd.DataFrame:
    """pass@k of an arm against the baseline with as many tokens: ``k * mean tokens / mean tokens of the baseline``.

    Args:
        first: Samples of the baseline, with weights; see ``weighted``.
        second: Samples of the arm, of the same seeds.
        confidence: Of the interval.

    Returns:
        A row for each k = 1, 2, 4, ...; pass@k in percent, differences in points. Rows for which a run of the baseline
        has too few samples are left out.
    """
    base, arm = first["arm"].iloc[0], second["arm"].iloc[0]
    both = pd.concat([first, second])
    lengths, problems = run_means(both, "tokens"), counts(both)
    rows = []
    for k in powers(int(problems["n"].min())):
        equal = k * lengths[arm] / lengths[base]
        passed = pd.DataFrame(
            {
                "arm": {seed: macro_pass_at(problems.loc[(arm, seed)], k) for seed in lengths.index},
                "same_k": {seed: macro_pass_at(problems.loc[(base, seed)], k) for seed in lengths.index},
                "same_tokens": {
                    seed: macro_pass_at(problems.loc[(base, seed)], equal[seed]) for seed in lengths.index
                },
            }
        )
        if passed.notna().all(axis=None):
            means = 100 * passed.mean()
            rows.append(
                {
                    "k": k,
                    "tokens": k * float(lengths[arm].mean()),
                    "pass": means["arm"],
                    "baseline_same_k": means["same_k"],
                    "baseline_k": float(equal.mean()),
                    "baseline_same_tokens": means["same_tokens"],
                    **paired_difference(100 * passed, "same_tokens", "arm", confidence),
                }
            )
    return pd.DataFrame(rows)


def table(results: SweepResults, confidence: float) -> Table:
    """All arms at equal tokens."""
    frames = {arm: iso_tokens(*results.pair(arm), confidence) for arm in compared(results)}
    rates = dict.fromkeys(("pass", "baseline_same_k", "baseline_same_tokens"), "{:.2f}")
    return Table(
        name="length_iso_tokens",
        caption="At equal sampled tokens: `pass`, pass@k of the arm in percent, which takes `tokens` = k x its mean "
        "length for each problem; the baseline with the same k (`baseline_same_k`), and with as many tokens, which "
        "are `baseline_k` samples (mean over seeds; each seed has its own ratio of mean lengths). pass@k is estimated "
        "without bias at whole k and taken linearly between them. `difference`: `pass` - `baseline_same_tokens` in "
        f"points, paired by seed, with its {interval_words(confidence)}. Rows that need more samples of the baseline "
        "than there are, are left out.",
        frame=pd.concat([frame.assign(arm=arm)[["arm", *frame]] for arm, frame in frames.items()], ignore_index=True),
        formats={"tokens": "{:.0f}", "baseline_k": "{:.2f}", **rates, **POINTS},
    )


def plot(results: SweepResults, confidence: float) -> Plot:
    """pass@k of all arms against the tokens that k completions take."""
    lengths, problems = run_means(results.samples, "tokens"), counts(results.samples)
    ks = powers(int(problems["n"].min()))
    figure, panel = plots.axes(xlabel="mean tokens of k completions", ylabel="pass@k (%)")
    for index, arm in enumerate(results.arms):
        if arm in lengths:
            seeds = lengths[arm].dropna().index
            passed = [[100 * macro_pass_at(problems.loc[(arm, seed)], k) for k in ks] for seed in seeds]
            tokens = float(lengths[arm].mean()) * np.array(ks)
            band = t_interval(passed, confidence)
            plots.curve(panel, index, arm, tokens, np.mean(passed, axis=0), *band, marked=True)
    plots.log_axis(panel, np.outer(np.nanquantile(lengths, [0, 1]), ks))
    plots.legend(figure, panel)
    return Plot(
        name="length_iso_tokens",
        caption="pass@k against k x mean length, k = 1, 2, 4, ...: mean over the runs of each arm, band: pointwise "
        f"{percent(confidence)} t-interval over its seeds (none for one, or equal ones). Sets count "
        "alike. At equal tokens, compare vertically.",
        figure=figure,
    )
