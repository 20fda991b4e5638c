"""How training went at its end: what tells a better credit from a larger step."""

from __future__ import annotations

import math

import pandas as pd

from lightning_rlvr.report.results import SweepResults
from lightning_rlvr.report.section import Section, Table

TAGS = (
    "reward/mean", "advantage/rms", "advantage/groups_without_signal", "policy/grad_norm", "policy/entropy",
    "loss/kl", "policy/approximate_kl", "policy/clipped_high", "policy/sampler_gap", "completion/length",
    "completion/truncated", "credit/ess", "credit/weight_max",
)  # fmt: skip
"""Rows of the table, where they were logged."""
_TOLERANCE = 0.1
"""Relative difference in advantage RMS that is pointed out."""


def section(results: SweepResults) -> Section:
    """Health of training by arm, and a warning where advantages differ in size."""
    means = at_the_end(results)
    if means.empty:
        return Section(title="Training", text=("The runs logged nothing of their training.",))
    table = Table(
        name="training",
        caption="Scalars of training by TensorBoard tag: means over the last tenth of each run's logged steps, then "
        "over seeds. `advantage/rms` is that of the advantages before credit spreads them over tokens; `credit/ess` "
        "is the effective share of tokens, (sum w)^2 / (T sum w^2), 1 for uniform credit.",
        frame=means.reset_index(names="tag"),
        formats=dict.fromkeys(means.columns, "{:.4g}"),
    )
    return Section(title="Training", text=_sizes(means, results.baseline), tables=(table,))


def at_the_end(results: SweepResults) -> pd.DataFrame:
    """Mean over seeds of the mean over the last tenth of the logged steps.

    Returns:
        A row for each of ``TAGS`` that was logged, a column for each arm.

    Example:
        >>> steps = pd.DataFrame({"arm": "a", "seed": 0, "step": range(20), "reward/mean": [0.0] * 18 + [1.0, 2.0]})
        >>> samples = pd.DataFrame(columns=["arm", "seed", "set", "problem"])
        >>> results = SweepResults(
        ...     name="", baseline="a", arms=("a",), seeds=(0,), samples=samples, steps=steps, settings={}
        ... )
        >>> at_the_end(results)
        arm            a
        reward/mean  1.5
    """
    tags = [tag for tag in TAGS if tag in results.steps]
    trained = results.steps.dropna(subset=tags, how="all") if tags else results.steps[:0]
    ends = {
        run: of_run[tags].tail(math.ceil(len(of_run) / 10)).mean() for run, of_run in trained.groupby(["arm", "seed"])
    }
    by_arm = {
        arm: pd.DataFrame([end for (of, _), end in ends.items() if of == arm], columns=tags).mean()
        for arm in results.arms
    }
    return pd.DataFrame(by_arm).rename_axis(columns="arm").dropna(how="all")


def _sizes(means: pd.DataFrame, baseline: str) -> tuple[str, ...]:
    """What to make of arms whose advantages are larger or smaller than the baseline's."""
    if "advantage/rms" not in means.index:
        return ()
    rms = means.loc["advantage/rms"]
    ratios = {arm: value / rms[baseline] - 1 for arm, value in rms.dropna().items()}
    if baseline not in ratios:
        return ()
    differing = {arm: ratio for arm, ratio in ratios.items() if abs(ratio) > _TOLERANCE}
    if not differing:
        return (
            f"The RMS of the advantages is within {_TOLERANCE:.0%} of the baseline's in every arm that logged it.",
        )
    listed = ", ".join(f"`{arm}` {ratio:+.0%}" for arm, ratio in differing.items())
    return (
        f"**The RMS of the advantages differs from the baseline's by more than {_TOLERANCE:.0%}: {listed}.** Such an "
        "arm scales the gradient and so may differ in its effective learning rate as well as in its method: Adam "
        "cancels a constant factor, but not its interplay with gradient clipping, with a KL or entropy term, or with "
        "other factors in other groups. A gain of such an arm is not shown to be one of credit or calibration until "
        "it is repeated at equal RMS, or with a learning rate tuned for each arm.",
    )
