"""The same training curves against steps, tokens, seconds and FLOPs: who learned more from as much."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lightning_rlvr.report.plots import curve, legend, panels
from lightning_rlvr.report.results import SweepResults
from lightning_rlvr.report.section import Plot, Section, Table
from lightning_rlvr.report.statistics import percent, t_interval

AXES = {
    "step": "optimizer steps",
    "sampled_tokens": "sampled tokens",
    "seconds": "seconds of training",
    "flops": "estimated FLOPs",
}
"""Columns of ``SweepResults.steps`` and what they count."""
_HELD_OUT = "eval/accuracy"
MEASURES = {"reward/mean": "training reward", _HELD_OUT: "held-out accuracy"}
"""Curves that are compared, where runs logged them."""
_NO_HELD_OUT = (
    f"**The runs logged no curve of held-out accuracy (`{_HELD_OUT}`), so this section compares training reward alone "
    "and cannot say which arm was more accurate at equal compute.** `--trainer.val_check_interval N` logs one."
)
_SHARE = 0.05
"""Of a run's logged values: what a curve is averaged over."""
_POINTS = 200


def section(results: SweepResults, confidence: float = 0.95) -> Section:
    """Learning curves against four measures of compute, and what each arm had when the cheapest one ended.

    Args:
        results: With ``steps``.
        confidence: Level of the t-intervals of the paired differences.
    """
    measures = [tag for tag in MEASURES if _is_curve(results, tag)]
    if not measures:
        return Section(title="Equal compute", text=("The runs logged no training curves.",))
    frame = pd.concat([at_equal_compute(results, tag, confidence) for tag in measures], ignore_index=True)
    caption = (
        "At equal compute. Within each seed the budget is what the cheapest arm used in all; `value` is each arm's "
        "smoothed curve at that budget (linear between logged values, the last one after them) and `step` where it "
        "was then, all three as means over seeds. `used` is the whole training, relative to the baseline of the same "
        f"seed. `difference` is paired by seed with the baseline, `low` to `high` its {percent(confidence)} t-interval"
        " over seeds (none from one seed), not adjusted for the number of arms and axes."
    )
    formats = {
        "budget": "{:.4g}", "used": "{:.2f}x", "step": "{:.0f}", "value": "{:.3f}", "difference": "{:+.3f}",
        "low": "{:+.3f}", "high": "{:+.3f}",
    }  # fmt: skip
    return Section(
        title="Equal compute",
        text=(
            "An arm may need more tokens, seconds or FLOPs for a step than another. The curves show the same values "
            "against each of them.",
            *(() if _HELD_OUT in measures else (_NO_HELD_OUT,)),
        ),
        tables=(Table(name="equal_compute", caption=caption, frame=frame, formats=formats),),
        plots=tuple(_plot(results, tag) for tag in measures),
        caveats=(
            "Seconds depend on the machine and on what else ran on it; compare them only if the runs had it alone.",
            "FLOPs are estimated from sizes of model and batch, not measured.",
            "The training reward is that of the problems just sampled, with all that the training adds to it, such as "
            "punishments of length; it does not show how accurate an arm is on problems that it was not trained on.",
        ),
    )


def smoothed(run: pd.DataFrame, tag: str) -> pd.DataFrame:
    """A run's curve: trailing mean over the last 5% of its logged values (at least one value).

    Args:
        run: The rows of one run, in order of steps.
        tag: A column; rows where it is NaN are left out.

    Returns:
        Columns ``value`` and those of ``AXES``.

    Example:
        >>> run = pd.DataFrame({"reward/mean": [0.0, 1.0] * 20}).reindex(columns=[*AXES, "reward/mean"])
        >>> smoothed(run, "reward/mean")["value"].head(3).tolist()
        [0.0, 0.5, 0.5]
    """
    logged = run[run[tag].notna()]
    window = max(1, round(_SHARE * len(logged)))
    return logged[[*AXES]].assign(value=logged[tag].rolling(window, min_periods=1).mean())


def at_equal_compute(results: SweepResults, tag: str, confidence: float = 0.95) -> pd.DataFrame:
    """What each arm had when it had used as much as the cheapest arm of its seed used in all.

    Returns:
        A row for each arm and measure of compute; the columns are explained in the caption of the report.

    Example:
        >>> steps = pd.DataFrame({"arm": ["a", "a", "b", "b"], "seed": 0, "step": [1, 2] * 2, "reward/mean": 0.5})
        >>> steps = steps.assign(sampled_tokens=[10, 20, 5, 10], seconds=steps["step"], flops=steps["step"])
        >>> samples = pd.DataFrame(columns=["arm", "seed", "set", "problem"])
        >>> results = SweepResults(
        ...     name="", baseline="a", arms=("a", "b"), seeds=(0,), samples=samples, steps=steps, settings={}
        ... )
        >>> at_equal_compute(results, "reward/mean")[["axis", "arm", "budget", "step"]].head(2).values.tolist()
        [['sampled tokens', 'a', 10.0, 1.0], ['sampled tokens', 'b', 10.0, 2.0]]
    """
    runs = {run: (frame, smoothed(frame, tag)) for run, frame in results.steps.groupby(["arm", "seed"])}
    rows = []
    for axis in [name for name in AXES if name != "step"]:
        curves = {run: curve.dropna(subset=axis) for run, (_, curve) in runs.items()}
        used = {run: runs[run][0][axis].max() for run, curve in curves.items() if len(curve)}
        found = pd.DataFrame({"used": pd.Series(used, dtype=float)}).rename_axis(["arm", "seed"])
        found["budget"] = found.groupby("seed")["used"].transform("min")
        for name in ("step", "value"):
            found[name] = [
                float(np.interp(budget, curves[run][axis], curves[run][name]))
                for run, budget in zip(used, found["budget"], strict=True)
            ]
        base = found.loc[[results.baseline]].droplevel("arm") if results.baseline in found.index else found[:0]
        for arm in results.arms:
            of_arm = found[found.index.get_level_values("arm") == arm].droplevel("arm")
            means = of_arm[["budget", "step", "value"]].mean()
            row = {"measure": tag, "axis": AXES[axis], "arm": arm, "seeds": len(of_arm), **means}
            row["used"] = (of_arm["used"] / base["used"]).mean()
            if arm != results.baseline:
                differences = (of_arm["value"] - base["value"]).dropna()
                low, high = map(float, t_interval(differences, confidence))
                row |= {"difference": differences.mean(), "low": low, "high": high}
            rows.append(row)
    columns = ["measure", "axis", "arm", "budget", "used", "step", "value", "difference", "low", "high", "seeds"]
    return pd.DataFrame(rows, columns=columns)


def _is_curve(results: SweepResults, tag: str) -> bool:
    """Logged more than once in a run: an evaluation after training alone is no curve."""
    return tag in results.steps and bool((results.steps.groupby(["arm", "seed"])[tag].count() > 1).any())


def _plot(results: SweepResults, tag: str) -> Plot:
    figure, grid = panels(2, rows=2, ylabel=f"{MEASURES[tag]} ({tag})")
    for panel, (axis, label) in zip(grid, AXES.items(), strict=True):
        panel.set_xlabel(label)
        for number, arm in enumerate(results.arms):
            runs = results.steps[results.steps["arm"] == arm].groupby("seed")
            curves = [smoothed(run, tag).dropna(subset=axis) for _, run in runs]
            _draw(panel, [curve for curve in curves if len(curve)], axis, arm, number)
    legend(figure, grid[0])
    caption = (
        f"{MEASURES[tag].capitalize()}: each run's trailing mean over 5% of its logged values; lines are means over "
        "seeds up to where the first run of the arm ends, bands reach from the lowest to the highest seed (no "
        "confidence interval)."
    )
    return Plot(name=f"compute_{tag.replace('/', '_')}", caption=caption, figure=figure)


def _draw(panel: Axes, curves: Sequence[pd.DataFrame], axis: str, label: str, number: int) -> None:
    if not curves:
        return
    grid = np.linspace(max(c[axis].iloc[0] for c in curves), min(c[axis].iloc[-1] for c in curves), _POINTS)
    values = np.array([np.interp(grid, c[axis], c["value"]) for c in curves])
    curve(panel, number, label, grid, values.mean(0), values.min(0), values.max(0))
