"""Accuracy within a budget of tokens, from completions that were sampled with a larger one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from lightning_rlvr.report import plots
from lightning_rlvr.report.length.runs import POINTS, compared, interval_words, paired_difference, run_means
from lightning_rlvr.report.results import SweepResults
from lightning_rlvr.report.section import Plot, Table
from lightning_rlvr.report.statistics import percent, t_interval

NUM_BUDGETS = 64
_ROUNDING = 1e-12  # of sums of weights that are equal


def budget_grid(samples: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Whole numbers of tokens on a log grid, from the shortest completion to the longest; at most 64.

    Example:
        >>> budget_grid(pd.DataFrame({"tokens": [2, 5]}))
        array([2, 3, 4, 5])
    """
    grid = np.geomspace(samples["tokens"].min(), samples["tokens"].max(), NUM_BUDGETS)
    return np.unique(grid.round().astype(np.int64))


def budget_curve(samples: pd.DataFrame, budgets: npt.NDArray[np.int64]) -> pd.DataFrame:
    """Share of completions that are correct within each budget, in every run.

    Args:
        samples: With weights; see ``weighted``.
        budgets: ``[B]`` tokens.

    Returns:
        A row for each (arm, seed), a column for each budget, in [0, 1].

    Example:
        >>> columns = ["arm", "seed", "tokens", "correct", "weight"]
        >>> samples = pd.DataFrame([("a", 0, 3, 1.0, 0.5), ("a", 0, 5, 1.0, 0.5)], columns=columns)
        >>> budget_curve(samples, np.array([2, 3, 4, 5])).loc[("a", 0)].tolist()
        [0.0, 0.5, 0.5, 1.0]
    """
    curves = {}
    for run, own in samples.groupby(["arm", "seed"], observed=True):
        by_length = own.sort_values("tokens")
        won = np.append(0.0, (by_length["weight"] * by_length["correct"]).cumsum())
        curves[run] = won[np.searchsorted(by_length["tokens"], budgets, side="right")]
    index = pd.MultiIndex.from_tuples(list(curves), names=["arm", "seed"])
    return pd.DataFrame(list(curves.values()), index=index, columns=budgets)


def budget_area(samples: pd.DataFrame) -> pd.DataFrame:
    """Area under the budget curve against the logarithm of the budget, over the range of all lengths, in [0, 1].

    It is exact, for a completion that is correct counts for every budget from its own length on:
    ``mean(correct * (log(longest) - log(tokens)) / (log(longest) - log(shortest)))``.

    Args:
        samples: With weights; of all arms, for the range.

    Returns:
        A row for each seed, a column for each arm; NaN if all completions are equally long.

    Example:
        >>> columns = ["arm", "seed", "tokens", "correct", "weight"]
        >>> rows = [("a", 0, 2, 0.0, 0.25), ("a", 0, 4, 1.0, 0.5), ("a", 0, 8, 1.0, 0.25)]
        >>> budget_area(pd.DataFrame(rows, columns=columns)).to_dict()
        {'a': {0: 0.25}}
    """
    logs = np.log(samples["tokens"])
    span = logs.max() - logs.min()
    left = (logs.max() - logs) / span if span > 0 else logs * np.nan
    return run_means(samples, left * samples["correct"])


def crossings(differences: pd.Series[float]) -> list[int]:
    """The budgets at which the difference of two curves has another sign than before; zeros are passed over.

    Args:
        differences: By budget, in ascending order.

    Example:
        >>> crossings(pd.Series([0.0, 0.1, 0.0, -0.1, -0.2], index=[2, 4, 8, 16, 32]))
        [16]
    """
    apart = differences[differences.abs() > _ROUNDING]
    signs = np.sign(apart.to_numpy())
    return [int(budget) for budget in apart.index[1:][signs[1:] != signs[:-1]]]


def table(results: SweepResults, confidence: float) -> Table:
    """Areas, their paired differences, and crossings."""
    samples = results.samples
    area, curve = budget_area(samples), budget_curve(samples, budget_grid(samples))
    arms, rows = compared(results), []
    for arm in [arm for arm in results.arms if arm in area]:
        row: dict[str, object] = {"arm": arm, "area": 100 * float(area[arm].mean())}
        if arm in arms:
            own, base = (curve.loc[[name]].droplevel("arm") for name in (arm, results.baseline))
            change = (own - base).dropna().mean()
            crossed = ", ".join(map(str, crossings(change))) or "none"
            row |= {**paired_difference(100 * area, results.baseline, arm, confidence), "crossings": crossed}
        rows.append(row)
    return Table(
        name="length_budget",
        caption="Area under the budget curve against the logarithm of the budget, from the shortest completion of any "
        f"arm ({samples['tokens'].min()} tokens) to the longest ({samples['tokens'].max()}), as percent of that "
        "range: 100 if every completion were correct and as short as the shortest. `difference`: to the baseline, "
        f"paired by seed, with its {interval_words(confidence)}. `crossings`: budgets of the grid from which on the "
        "mean difference of the curves has the other sign; noise alone makes some where the curves run close. A dash: "
        "all completions are equally long, or there is no interval.",
        frame=pd.DataFrame(rows),
        formats={"area": "{:.2f}", "seeds": "{:.0f}", **POINTS},
    )


def plot(results: SweepResults, confidence: float) -> Plot:
    """Mean budget curves with bands over seeds."""
    grid = budget_grid(results.samples)
    curves = 100 * budget_curve(results.samples, grid)
    figure, panel = plots.axes(xlabel="budget in tokens", ylabel="correct within the budget (%)")
    for index, arm in enumerate(results.arms):
        if arm in curves.index:
            by_seed = curves.loc[arm]
            plots.curve(panel, index, arm, grid, by_seed.mean(), *t_interval(by_seed, confidence))
    plots.log_axis(panel, grid)
    plots.legend(figure, panel)
    return Plot(
        name="length_budget",
        caption="Share of completions that are correct and no longer than the budget: mean over the runs of each arm, "
        f"band: pointwise {percent(confidence)} t-interval over its seeds (none for one, or equal ones). Sets count "
        "alike. The bands are not paired; the paired difference of the areas is in the table.",
        figure=figure,
    )
