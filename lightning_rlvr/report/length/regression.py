"""The difference of two arms with length held fixed by a model, of samples and of runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import patsy
import statsmodels.api as sm
from scipy.special import expit
from statsmodels.stats.outliers_influence import variance_inflation_factor

from lightning_rlvr.report.length.runs import POINTS, Array, by_arm, compared, run_means, together
from lightning_rlvr.report.results import SweepResults
from lightning_rlvr.report.section import Table
from lightning_rlvr.report.statistics import percent

Index = npt.NDArray[np.int64]
MAX_ITERATIONS = 25
_LARGEST_LOGIT = 30.0  # beyond, float64 tells no chance from 1
_TOLERANCE = 1e-8


class NotFittedError(ValueError):
    """What a reader should know of a model that could not be fitted."""


def spline(tokens: pd.Series[float]) -> Array:
    """Natural cubic spline of log tokens, 3 degrees of freedom and no constant; fewer than 4 lengths: a level each.

    Args:
        tokens: ``[N]``.

    Returns:
        ``[N, 3]``, or one column less than there are lengths.

    Example:
        >>> spline(pd.Series(range(5, 25))).shape, spline(pd.Series([3, 5, 3])).tolist(), spline(pd.Series([3])).shape
        ((20, 3), [[0.0], [1.0], [0.0]], (1, 0))
    """
    if tokens.nunique() < 4:
        return pd.get_dummies(tokens, drop_first=True).to_numpy(dtype=np.float64)
    return np.asarray(patsy.dmatrix("cr(log, df=3, constraints='center') - 1", {"log": np.log(tokens.to_numpy())}))


@dataclass(frozen=True, kw_only=True, eq=False)
class Logit:
    """A logistic regression with an intercept for every group."""

    coefficients: Array
    """``[K]``, log odds."""
    intervals: Array
    """``[K, 2]``: clustered by group, t with one degree of freedom less than there are groups."""
    logits: Array
    """``[N]``, fitted, group intercepts included."""


def fixed_effects_logit(correct: Array, regressors: Array, groups: Index, confidence: float = 0.95) -> Logit:
    """Logistic regression with an intercept for every group and intervals that are clustered by group.

    Iteratively reweighted least squares, with the intercepts taken out by weighted demeaning (Frisch, Waugh, Lovell):
    the estimates and the sandwich of a GLM with a dummy for each group, without its matrix, which would take gigabytes
    for 1,500 problems. The coefficients of collinear columns are one solution of many.

    Args:
        correct: ``[N]`` 0 or 1; both occur in every group.
        regressors: ``[N, K]``; constant columns have no effect.
        groups: ``[N]`` int64 in ``[0, G)``.
        confidence: Of the intervals.

    Raises:
        NotFittedError: No convergence, as happens where regressors predict some outcomes perfectly.

    Example:
        >>> correct = np.array([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0] * 2)  # odds 1/3 without, 3 with
        >>> arm = np.repeat([0.0, 1.0, 0.0, 1.0], 4)[:, None]
        >>> np.exp(fixed_effects_logit(correct, arm, np.repeat([0, 1], 8)).coefficients).round(6)
        array([9.])
    """
    logits, former = np.zeros(len(correct)), np.full(regressors.shape[1], np.inf)
    for _ in range(MAX_ITERATIONS):
        chances = expit(np.clip(logits, -_LARGEST_LOGIT, _LARGEST_LOGIT))
        weights = chances * (1 - chances)
        columns = np.column_stack([logits + (correct - chances) / weights, regressors])
        totals = np.column_stack([np.bincount(groups, weights * column) for column in columns.T])
        within = columns - (totals / np.bincount(groups, weights)[:, None])[groups]
        model = sm.WLS(within[:, 0], within[:, 1:], weights=weights)
        fit = model.fit()
        logits = columns[:, 0] - fit.resid
        if np.abs(fit.params - former).max() < _TOLERANCE:
            clustered = model.fit(cov_type="cluster", cov_kwds={"groups": groups}, use_t=True)
            return Logit(coefficients=fit.params, intervals=clustered.conf_int(alpha=1 - confidence), logits=logits)
        former = fit.params
    raise NotFittedError(f"no convergence in {MAX_ITERATIONS} steps: some outcomes are predicted perfectly")


def adjusted(first: pd.DataFrame, second: pd.DataFrame, confidence: float = 0.95) -> pd.DataFrame:
    """Odds of a correct sample within problems, arm against baseline: length ignored, and length held fixed.

    Args:
        first: Samples of the baseline.
        second: Samples of the arm, of the same seeds.
        confidence: Of the interval.

    Returns:
        Two rows: `length`, `odds_ratio` with `low` and `high`, `effect` (mean over the samples used, in points, of the
        fitted chance with the arm minus without it), `problems` used, `dropped` ones (all samples have one outcome),
        `samples` used, `note` (why there is no number, or empty).
    """
    both = together(first, second)
    outcomes = both.groupby(["set", "problem"], observed=True)["correct"]
    informative = outcomes.transform("min") < outcomes.transform("max")
    problems, used = outcomes.ngroups, both[informative]
    groups = used.groupby(["set", "problem"], observed=True).ngroup().to_numpy().astype(np.int64)
    count = int(groups.max()) + 1 if len(groups) else 0
    base = {"problems": count, "dropped": problems - count, "samples": len(used)}
    rows = []
    for length in ("ignored", "held fixed"):
        row: dict[str, object] = {"length": length, **dict.fromkeys(("odds_ratio", "low", "high", "effect"), np.nan)}
        try:
            row |= {**_effect(used, groups, length == "held fixed", confidence), "note": ""}
        except NotFittedError as error:
            row["note"] = str(error)
        rows.append(row | base)
    return pd.DataFrame(rows)


def _effect(used: pd.DataFrame, groups: Index, with_length: bool, confidence: float) -> dict[str, float]:
    if len(np.unique(groups)) < 2:
        raise NotFittedError("fewer than two problems have both outcomes")
    treated = used["treated"].to_numpy()
    others = spline(used["tokens"]) if with_length else np.empty((len(used), 0))
    regressors = np.column_stack([treated, others])
    means = pd.DataFrame(regressors).groupby(groups).transform("mean").to_numpy()
    if np.linalg.matrix_rank(regressors - means) == np.linalg.matrix_rank((regressors - means)[:, 1:]):
        raise NotFittedError("within problems, length tells which arm it is: the two cannot be told apart")
    logit = fixed_effects_logit(used["correct"].to_numpy(), regressors, groups, confidence)
    coefficient = logit.coefficients[0]
    without = logit.logits - coefficient * treated
    low, high = np.exp(logit.intervals[0])
    effect = 100 * (expit(without + coefficient) - expit(without)).mean()
    return {"odds_ratio": float(np.exp(coefficient)), "low": float(low), "high": float(high), "effect": float(effect)}


def ancova(first: pd.DataFrame, second: pd.DataFrame, confidence: float = 0.95) -> dict[str, object]:
    """Least squares over runs: accuracy in percent against the arm and the logarithm of the run's mean tokens.

    Args:
        first: Samples of the baseline, with weights; see ``weighted``.
        second: Samples of the arm, of the same seeds.
        confidence: Of the interval.

    Returns:
        `runs`; `difference` of the arm in points at equal mean length, with `low` and `high` (t, runs - 3 degrees of
        freedom); `vif`, the variance inflation factor of the arm: by how much the correlation of arm and length
        inflates the variance of the difference; `note` (why there is no number, or empty).
    """
    runs = together(first, second)
    rate, tokens = (run_means(runs, column).unstack().dropna() for column in ("correct", "tokens"))
    treated = (rate.index.get_level_values("arm") == second["arm"].iloc[0]).astype(np.float64)
    design = np.column_stack([np.ones(len(rate)), treated, np.log(tokens)])
    row: dict[str, object] = {"runs": len(rate), **dict.fromkeys(("difference", "low", "high", "vif"), np.nan)}
    if len(rate) < 6:
        return row | {"note": "fewer than 3 seeds"}
    if np.ptp(design[:, 2]) < _TOLERANCE:
        return row | {"note": "all runs have the same mean length: nothing to adjust for"}
    if np.linalg.matrix_rank(design) < 3:
        return row | {"note": "mean length tells which arm it is: the two cannot be told apart"}
    fit = sm.OLS(100 * rate.to_numpy(), design).fit()
    low, high = fit.conf_int(alpha=1 - confidence)[1]
    vif = variance_inflation_factor(design, 1)
    numbers = {"difference": fit.params[1], "low": low, "high": high, "vif": vif}
    return row | {name: float(number) for name, number in numbers.items()} | {"note": ""}


def tables(results: SweepResults, confidence: float) -> tuple[Table, Table]:
    """Of samples and of runs."""
    frames = {arm: adjusted(*results.pair(arm), confidence) for arm in compared(results)}
    ratios = dict.fromkeys(("odds_ratio", "low", "high"), "{:.3f}")
    of_samples = Table(
        name="length_regression",
        caption="Logistic regression of a correct sample on the arm (baseline or this one), an intercept for every "
        "problem: `length` ignored, and held fixed by a natural cubic spline of log tokens with 3 degrees of freedom. "
        f"`odds_ratio` of the arm with its {percent(confidence)} interval, clustered by problem (unit: the problem; "
        "the runs are taken as given, so it says nothing of other seeds). `effect`: average marginal effect in points "
        "over the samples used. `dropped`: problems all of whose samples, of both arms and all seeds, have one "
        "outcome; they carry no information on the odds ratio. Samples count alike.",
        frame=pd.concat([frame.assign(arm=arm)[["arm", *frame]] for arm, frame in frames.items()], ignore_index=True),
        formats={**ratios, "effect": "{:+.2f}"},
    )
    of_runs = Table(
        name="length_ancova",
        caption="Least squares over the runs of the baseline and of the arm: accuracy in percent on the arm and the "
        "logarithm of the run's mean tokens. `difference`: of the arm, in points, at equal mean length, with its "
        f"{percent(confidence)} t-interval over runs (not paired; runs - 3 degrees of freedom). `vif`: factor by "
        "which the correlation of arm and mean length inflates the variance of that difference; above about 10 "
        "the two are hardly told apart.",
        frame=by_arm(results, lambda first, second: ancova(first, second, confidence)),
        formats={**POINTS, "vif": "{:.1f}"},
    )
    return of_samples, of_runs
