"""What more samples of a problem are worth: pass@k of every arm and its difference to the baseline."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lightning_rlvr.functional.evaluation import pass_at_k
from lightning_rlvr.report.plots import axes, curve, style
from lightning_rlvr.report.problems import problem_interval
from lightning_rlvr.report.results import SweepResults, macro
from lightning_rlvr.report.section import Plot, Section, Table
from lightning_rlvr.report.statistics import percent, t_interval


def powers(most: int) -> list[int]:
    """1, 2, 4, ... up to ``most``.

    Example:
        >>> powers(9)
        [1, 2, 4, 8]
    """
    return [2**i for i in range(most.bit_length())]


def counts(samples: pd.DataFrame) -> pd.DataFrame:
    """Samples (`n`) and correct samples (`c`), int64, of every problem: rows by `arm`, `seed`, `set`, `problem`."""
    correct = samples.groupby(["arm", "seed", "set", "problem"], observed=True)["correct"]
    return pd.DataFrame({"n": correct.size(), "c": correct.sum()}).astype("int64")


def by_problem(samples: pd.DataFrame) -> pd.DataFrame:
    """Unbiased pass@k of every problem of every run, in percent.

    Args:
        samples: With equally many samples for each problem of a set; k is a power of two or the smallest number.

    Returns:
        Rows by `arm`, `seed`, `set`, `problem`, a column for each k.

    Example:
        >>> rows = [("a", 0, "s", "p", float(number == 0)) for number in range(4)]
        >>> by_problem(pd.DataFrame(rows, columns=["arm", "seed", "set", "problem", "correct"])).values.tolist()
        [[25.0, 50.0, 100.0]]
    """
    problems = counts(samples)
    n, c = (torch.from_numpy(problems[name].to_numpy(copy=True)) for name in ("n", "c"))
    most = int(n.min())
    ks = sorted({*powers(most), most})
    return pd.DataFrame({k: 100 * pass_at_k(n, c, k).numpy() for k in ks}, index=problems.index)


def band(values: pd.DataFrame, confidence: float = 0.95) -> pd.DataFrame:
    """Mean over seeds of a curve, with a t-interval over seeds; of one seed, a bootstrap interval over problems.

    Args:
        values: Rows by `arm` (only one), `seed`, `set`, `problem`, a column for each k.
        confidence: Of the intervals.

    Returns:
        A row for each k: `k`, `mean`, `low`, `high`, `seeds`.

    Example:
        >>> keys = [("a", seed, "s", "p") for seed in range(3)]
        >>> index = pd.MultiIndex.from_tuples(keys, names=["arm", "seed", "set", "problem"])
        >>> band(pd.DataFrame({1: [10.0, 20.0, 30.0]}, index)).round(1).values.tolist()
        [[1.0, 20.0, -4.8, 44.8, 3.0]]
    """
    curves = macro(values)
    rows = []
    for k in values.columns:
        by_seed = curves[k].to_numpy()
        single = len(by_seed) == 1
        interval = (
            problem_interval(values[k].droplevel("arm"), confidence) if single else t_interval(by_seed, confidence)
        )
        rows.append((k, by_seed.mean() if len(by_seed) else float("nan"), *interval, len(by_seed)))
    return pd.DataFrame(rows, columns=["k", "mean", "low", "high", "seeds"])


def section(results: SweepResults, confidence: float = 0.95) -> Section:
    """pass@k of every arm, and its paired difference to the baseline."""
    problems = by_problem(results.samples)
    present = [arm for arm in results.arms if arm in problems.index.get_level_values("arm")]
    curves = {arm: band(problems.loc[[arm]], confidence) for arm in present}
    differences = {arm: band(gains, confidence) for arm, gains in _differences(problems, results.baseline, present)}
    largest, level = int(max(problems.columns)), percent(confidence)
    columns = {"mean": "difference", "low": "difference low", "high": "difference high", "seeds": "pairs"}
    rows = [
        curve.assign(arm=arm).merge(differences[arm].rename(columns=columns), on="k")
        if arm in differences
        else curve.assign(arm=arm)
        for arm, curve in curves.items()
    ]
    frame = pd.concat(rows).reindex(columns=["arm", "k", "mean", "low", "high", "seeds", *columns.values()])
    bands = f"{level} t-intervals over seeds; where there is one seed, {level} bootstrap intervals over problems"
    table = Table(
        name="pass_at_k",
        caption="pass@k in percent (unbiased estimator, macro over benchmarks, mean over seeds) and its difference to "
        f"`{results.baseline}` in points over the seeds that both have, with {bands}.",
        frame=frame.astype({"pairs": "Int64"}),
        formats=dict.fromkeys(("mean", "low", "high"), "{:.2f}")
        | dict.fromkeys(("difference", "difference low", "difference high"), "{:+.2f}"),
    )
    return Section(
        title="pass@k",
        text=(
            "pass@k is the probability that at least one of k samples is correct, estimated without bias from at "
            f"least {largest} samples of each problem; pass@1 is avg@n. A gain at k = 1 that vanishes at large k is "
            "compatible with an arm that finds more often what the baseline finds too, rather than solving other "
            "problems, and equally with a ceiling: where both come near all problems that can be solved no gain is "
            "left to see.",
        ),
        tables=(table,),
        plots=tuple(_plots(results, curves, differences, bands)),
        caveats=(
            f"pass@{largest} from {largest} samples is whether any sample is correct: one Bernoulli draw for each "
            "problem, so the order of arms is noisy there. Draw more samples to compare arms at this k.",
            "Intervals hold for one k and one arm at a time, and neighbouring k share their samples: a curve is not "
            "several pieces of evidence.",
            "t-intervals know no bounds: their ends may lie below 0 or above 100%, where the plot of pass@k is cut.",
            "Where all seeds agree exactly no t-interval is defined, and none is shown.",
        ),
    )


def _differences(problems: pd.DataFrame, baseline: str, arms: list[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    if baseline not in arms:
        return
    own = problems.loc[baseline]
    for arm in arms:
        if arm != baseline:
            gains = (problems.loc[arm] - own).dropna()
            yield arm, pd.concat({arm: gains}, names=["arm"])


def _plots(
    results: SweepResults, curves: dict[str, pd.DataFrame], differences: dict[str, pd.DataFrame], bands: str
) -> Iterator[Plot]:
    figure, panel = axes(xlabel="k", ylabel="pass@k (%)")
    for arm, of_arm in curves.items():
        ends = of_arm["low"], of_arm["high"]
        curve(panel, results.arms.index(arm), arm, of_arm["k"], of_arm["mean"], *ends, marked=True)
    panel.set_ylim(max(0, panel.get_ylim()[0]), min(100.5, panel.get_ylim()[1]))  # bands may leave [0, 100]
    yield Plot(name="pass_at_k", caption=f"pass@k with {bands}.", figure=_finished(figure, panel, curves))
    if not differences:
        return
    figure, panel = axes(xlabel="k", ylabel=f"pass@k minus that of {results.baseline} (points)")
    panel.axhline(0, color="black", linewidth=0.8)
    for place, (arm, gains) in enumerate(differences.items()):
        look = style(results.arms.index(arm))
        x = gains["k"] * 2 ** (0.6 * ((place + 0.5) / len(differences) - 0.5))  # side by side, so that bars stay apart
        panel.vlines(x, gains["low"], gains["high"], color=look["color"], linewidth=1.0)
        panel.plot(x, gains["mean"], label=arm, markersize=4, **look)
    caption = f"Paired differences to `{results.baseline}` with {bands}; arms are set side by side at each k."
    yield Plot(name="pass_at_k_difference", caption=caption, figure=_finished(figure, panel, differences))


def _finished(figure: Figure, panel: Axes, curves: dict[str, pd.DataFrame]) -> Figure:
    ks = next(iter(curves.values()))["k"].tolist()
    panel.set_xscale("log", base=2)
    panel.set_xticks(ks, [str(k) for k in ks])
    panel.minorticks_off()
    panel.legend(fontsize="small", frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
