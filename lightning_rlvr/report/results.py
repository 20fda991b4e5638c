"""What a report is made from: samples and training curves of paired runs, as data frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pandas as pd

Values = TypeVar("Values", "pd.Series[float]", pd.DataFrame)


@dataclass(frozen=True, kw_only=True, eq=False)
class SweepResults:
    """Paired runs: every arm with the seeds that it finished."""

    name: str
    baseline: str
    """The arm that all others are compared with."""
    arms: tuple[str, ...]
    """The baseline first, then as in the sweep."""
    seeds: tuple[int, ...]
    """Data seeds of any arm, sorted; arm and seed make a run, and not every arm must have every seed."""
    samples: pd.DataFrame
    """A row for each evaluated completion: `arm`, `seed`, `set` (benchmark), `problem` (hash of what was shown: equal
    in all arms, and in all seeds where the benchmark is the same), `sample` (its number, 0 to n - 1), `correct` (0.0
    or 1.0; what could not be scored is not correct), `reward` (NaN = unscored), `tokens`, `truncated`, `status`."""
    steps: pd.DataFrame
    """A row for each optimizer step of each run: `arm`, `seed`, `step`, then `rollouts`, `sampled_tokens`, `seconds`,
    `flops` consumed so far, and every scalar of training by its TensorBoard tag (`reward/mean`,
    `completion/length`, ...); NaN where a tag was not logged."""
    settings: Mapping[str, Mapping[str, str | float]]
    """By arm, the settings in which arms differ, by dotted name."""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    """Of the baseline's evaluation by name (`temperature`, `top_p`, `max_completion_length`, `step`, `engine`, ...);
    where benchmarks differ, a text that names them."""
    notes: tuple[str, ...] = ()
    """What a reader must know of the runs: cells that are missing, code that differs between them."""

    def __post_init__(self) -> None:
        check_paired(self.samples)

    def pair(self, arm: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Samples of the baseline and of an arm, of the seeds that both have."""
        first, second = (self.samples[self.samples["arm"] == name] for name in (self.baseline, arm))
        shared = set(first["seed"]) & set(second["seed"])
        return first[first["seed"].isin(shared)], second[second["seed"].isin(shared)]


def macro(rates: Values) -> Values:
    """Mean over sets of the mean over problems of every run: sets count alike, and so do the problems of a set.

    Args:
        rates: By `set`, `problem` and what tells the runs apart (`arm`, `seed`, or one of them); columns are kept.

    Example:
        >>> keys = [("a", "s", "p"), ("a", "l", "q"), ("a", "l", "r")]
        >>> index = pd.MultiIndex.from_tuples(keys, names=["arm", "set", "problem"])
        >>> macro(pd.Series([60.0, 10.0, 30.0], index)).to_dict()
        {'a': 40.0}
    """
    run: list[str] = [str(name) for name in rates.index.names if name not in ("set", "problem")]
    by_set: Values = rates.groupby([*run, "set"], observed=True).mean()
    return by_set.groupby(run, observed=True).mean()


def accuracy(samples: pd.DataFrame) -> pd.DataFrame:
    """Macro avg@n of every run: the ``macro`` mean of the share of correct samples.

    Returns:
        A row for each seed, a column for each arm, in [0, 1]; NaN where there is no such run.

    Example:
        >>> rows = [("a", 0, "s", "p", 0, 1.0), ("a", 0, "s", "p", 1, 0.0), ("b", 0, "s", "p", 0, 1.0)]
        >>> accuracy(pd.DataFrame(rows, columns=["arm", "seed", "set", "problem", "sample", "correct"])).to_dict()
        {'a': {0: 0.5}, 'b': {0: 1.0}}
    """
    return macro(samples.groupby(["seed", "arm", "set", "problem"], observed=True)["correct"].mean()).unstack("arm")


def check_paired(samples: pd.DataFrame) -> None:
    """Refuse samples that cannot be compared run by run.

    Raises:
        ValueError: Problems of a benchmark have unequal numbers of samples, or runs of one seed other problems.

    Example:
        >>> rows = [("a", 0, "s", "p"), ("a", 0, "s", "q"), ("b", 0, "s", "p")]
        >>> check_paired(pd.DataFrame(rows, columns=["arm", "seed", "set", "problem"]))
        Traceback (most recent call last):
            ...
        ValueError: runs of one seed must be evaluated on the same problems: `b` of seed 0 lacks problem 'q' of `s`
    """
    sizes = samples.groupby(["set", "seed", "arm", "problem"], observed=True).size()
    for name, of_set in sizes.groupby("set", observed=True):
        if of_set.nunique() > 1:
            few, many = of_set.index[int(of_set.argmin())], of_set.index[int(of_set.argmax())]
            raise ValueError(
                f"problems of `{name}` must have equally many samples in all runs, got {of_set[few]} ({_run(*few)}) "
                f"and {of_set[many]} ({_run(*many)})"
            )
    for seed, of_seed in sizes.groupby("seed", observed=True):
        by_arm = of_seed.unstack("arm")
        for row, column in np.argwhere(by_arm.isna().to_numpy())[:1]:
            (name, _, problem), arm = by_arm.index[int(row)], by_arm.columns[int(column)]
            raise ValueError(
                f"runs of one seed must be evaluated on the same problems: `{arm}` of seed {seed} lacks problem "
                f"{problem!r} of `{name}`"
            )


def _run(_: str, seed: int, arm: str, problem: str) -> str:
    return f"`{arm}`, seed {seed}, problem {problem!r}"
