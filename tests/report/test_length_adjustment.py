"""Matched strata and regressions: what they leave of a difference whose cause is known."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import stats
from scipy.special import expit

from fabricated_results import make_results
from lightning_rlvr.report.length.matching import matched, matched_row
from lightning_rlvr.report.length.regression import (
    NotFittedError,
    adjusted,
    ancova,
    fixed_effects_logit,
    spline,
    tables,
)
from lightning_rlvr.report.length.runs import together, weighted

COLUMNS = ["arm", "seed", "set", "problem", "tokens", "correct"]


def pair(effect=0.0, lengths=(25.0, 25.0), correct=None, **settings):
    """Samples of baseline and arm; ``correct`` draws outcomes from the samples instead."""
    results = make_results(
        (("grpo", 0.0), ("mcpo", effect)), length=(("grpo", lengths[0]), ("mcpo", lengths[1])),
        **{"seeds": range(5), "samples": 32, **settings},
    )  # fmt: skip
    if correct is not None:
        results = replace(results, samples=results.samples.assign(correct=correct(results.samples)))
    return weighted(results).pair("mcpo")


def by_length(samples):
    """Outcomes that depend on problem and length, and on the arm by its length alone."""
    hardness = samples["problem"].str.split("-").str[-1].astype(int) / 6 - 1
    chance = expit(6 * np.log(samples["tokens"] / 27) - hardness)
    return (np.random.default_rng(1).random(len(samples)) < chance).astype(float)


def copy_of(first):
    return first, first.assign(arm="mcpo")


def test_matching_of_a_small_frame():
    # deciles part 5 and 9 tokens. Stratum 5: baseline 1 of 2, arm 1 of 1, weight 1, +1/2; stratum 9: baseline 0 of 2,
    # arm 1 of 4, weight 2, +1/4: (1/2 + 2/4) / 3 = 1/3. Problem q has the baseline alone: overlap 9 of 10.
    first = [(5, 1), (5, 0), (9, 0), (9, 0)]
    second = [(5, 1), (9, 1), (9, 0), (9, 0), (9, 0)]
    rows = [("g", 0, "s", "p", *x) for x in first] + [("m", 0, "s", "p", *x) for x in second]
    frame = pd.DataFrame([*rows, ("g", 0, "s", "q", 5, 1)], columns=COLUMNS)
    result = matched(frame[frame["arm"] == "g"], frame[frame["arm"] == "m"])
    assert result["difference"].tolist() == pytest.approx([1 / 3])
    assert result["overlap"].tolist() == [0.9]


def test_strata_are_of_one_seed_and_one_set_each():
    rows = [("g", 0, "s", "p", 5, 0), ("g", 1, "s", "p", 5, 1), ("g", 0, "t", "p", 5, 1), ("g", 1, "t", "p", 5, 1)]
    first = pd.DataFrame(rows, columns=COLUMNS)
    second = first.assign(arm="m", correct=[1, 1, 1, 0])
    result = matched(first, second)
    assert result["difference"].tolist() == [0.5, -0.5]  # set s: +1, 0; set t: 0, -1; mean of the sets
    assert result["overlap"].tolist() == [1.0, 1.0]


def test_without_overlap_there_is_no_matched_difference():
    first = pd.DataFrame([("g", 0, "s", "p", n, 0.0) for n in range(5, 15)], columns=COLUMNS)
    second = first.assign(arm="m", tokens=first["tokens"] + 50)
    assert matched(first, second)["difference"].isna().all()
    row = matched_row(first.assign(weight=0.1), second.assign(weight=0.1))
    assert (row["overlap"], row["seeds"], row["raw_difference"]) == (0, 0, 0)
    assert np.isnan(row["matched_difference"])


def test_matched_interval_is_the_paired_t_interval_over_seeds():
    samples = pair(0.1)
    row, by_seed = matched_row(*samples), 100 * matched(*samples)["difference"]
    expected = stats.ttest_1samp(by_seed, 0).confidence_interval()
    assert (row["matched_low"], row["matched_high"]) == pytest.approx((expected.low, expected.high))
    assert row["seeds"] == len(by_seed) == 5


def test_a_copy_of_the_baseline_differs_in_nothing():
    samples = copy_of(pair()[0])
    row = matched_row(*samples)
    assert [row[name] for name in ("raw_difference", "matched_difference", "overlap", "seeds")] == [0, 0, 100, 5]
    result = adjusted(*samples)
    assert result["odds_ratio"].tolist() == pytest.approx([1, 1])
    assert result["effect"].tolist() == pytest.approx([0, 0], abs=1e-9)
    assert ancova(*samples)["difference"] == pytest.approx(0, abs=1e-9)


def test_an_effect_that_is_wholly_one_of_length_vanishes():
    samples = pair(lengths=(23.0, 28.0), correct=by_length)
    row, (raw, held) = matched_row(*samples), adjusted(*samples).to_dict("records")
    assert row["raw_low"] > 15, "points"
    assert abs(row["matched_difference"]) < 0.2 * row["raw_difference"], "a rest is left inside the deciles"
    assert raw["low"] > 2
    assert held["low"] < 1 < held["high"]
    assert abs(held["effect"]) < 0.2 * raw["effect"]


def test_an_effect_at_equal_length_is_left_as_it_is():
    samples = pair(0.15)
    row, (raw, held) = matched_row(*samples), adjusted(*samples).to_dict("records")
    assert row["raw_low"] > 5
    assert row["matched_difference"] == pytest.approx(row["raw_difference"], abs=1.5)
    assert held["odds_ratio"] == pytest.approx(raw["odds_ratio"], rel=0.02)
    assert held["effect"] == pytest.approx(raw["effect"], abs=0.3)


def test_logit_is_the_glm_with_a_dummy_for_each_problem():
    samples = pair(0.1, lengths=(23.0, 28.0), correct=by_length, seeds=(0, 1), samples=8)
    both = together(*samples)
    outcomes = both.groupby("problem")["correct"]
    used = both[outcomes.transform("min") < outcomes.transform("max")]
    groups = used["problem"].astype("category").cat.codes.to_numpy().astype(np.int64)
    regressors = np.column_stack([used["treated"], spline(used["tokens"])])
    logit = fixed_effects_logit(used["correct"].to_numpy(), regressors, groups, 0.9)

    design = np.column_stack([regressors, pd.get_dummies(groups).to_numpy(float)])
    glm = sm.GLM(used["correct"], design, sm.families.Binomial()).fit(
        cov_type="cluster", cov_kwds={"groups": groups}, tol=1e-12
    )
    assert logit.coefficients == pytest.approx(glm.params[:4], abs=1e-6)
    assert expit(logit.logits) == pytest.approx(glm.fittedvalues, abs=1e-6)
    # the correction (n - 1) / (n - k) for small samples counts the dummies there and not here
    n, problems = len(used), groups.max() + 1
    errors = glm.bse[:4] * np.sqrt((n - 4 - problems) / (n - 4))
    half = (logit.intervals[:, 1] - logit.intervals[:, 0]) / 2
    assert half == pytest.approx(stats.t.ppf(0.95, problems - 1) * errors.to_numpy(), rel=1e-5)

    row = adjusted(*samples, 0.9).iloc[1]
    assert row["odds_ratio"] == pytest.approx(np.exp(glm.params.iloc[0]), rel=1e-6)
    without, within = design.copy(), design.copy()
    without[:, 0], within[:, 0] = 0, 1
    assert row["effect"] == pytest.approx(100 * (glm.predict(within) - glm.predict(without)).mean(), abs=1e-4)


def test_problems_with_one_outcome_are_dropped_and_counted():
    first, second = pair(problems=8, correct=by_length)
    first.loc[first["problem"] == "sums-0", "correct"] = 0.0
    second.loc[second["problem"] == "sums-0", "correct"] = 0.0
    first.loc[first["problem"] == "sums-1", "correct"] = 0.0
    second.loc[second["problem"] == "sums-1", "correct"] = 1.0  # the arms differ: both outcomes occur
    result = adjusted(first, second)
    assert result["problems"].tolist() == [7, 7]
    assert result["dropped"].tolist() == [1, 1]
    assert result["samples"].tolist() == [2 * 5 * 7 * 32] * 2
    assert result["odds_ratio"].notna().all()


@pytest.mark.parametrize(
    ("correct", "tokens", "notes"),
    [
        # correct if and only if long: the spline separates, though the arm alone does not
        (lambda s: s["tokens"] > 25, None, ["", "no convergence in 25 steps: some outcomes are predicted perfectly"]),
        (lambda s: s["correct"], lambda s: 20 + s["treated"], ["", "within problems, length tells which arm it is"]),
        (lambda s: 1, None, ["fewer than two problems have both outcomes"] * 2),
        (lambda s: s["treated"], None, ["no convergence"] * 2),
    ],
)
def test_what_cannot_be_fitted_is_said_in_words(correct, tokens, notes):
    both = together(*pair(lengths=(23.0, 28.0)))
    both = both.assign(correct=np.asarray(correct(both), float) * np.ones(len(both)))
    both = both if tokens is None else both.assign(tokens=tokens(both))
    result = adjusted(both[both["treated"] == 0], both[both["treated"] == 1])
    for said, note, ratio in zip(result["note"], notes, result["odds_ratio"], strict=True):
        assert said.startswith(note)
        assert (said == "") == (note == "") == np.isfinite(ratio)


def test_few_lengths_are_levels_and_one_is_nothing():
    tokens = pd.Series([3, 9, 5, 3])
    assert spline(tokens).tolist() == [[0, 0], [0, 1], [1, 0], [0, 0]]
    results = make_results()
    samples = weighted(replace(results, samples=results.samples.assign(tokens=20))).pair("mcpo")
    ignored, held = adjusted(*samples).drop(columns="length").to_dict("records")
    assert held == ignored


@pytest.mark.parametrize("lengths", [[3, 4, 5, 6], range(2, 64), [7] * 90 + [8, 9, 10, 64]])
def test_spline_spans_three_dimensions_beside_the_constant(lengths):
    basis = spline(pd.Series(lengths))
    assert np.linalg.matrix_rank(np.column_stack([np.ones(len(basis)), basis])) == 4
    log = np.log(np.asarray(lengths, float))[:, None]  # natural: it holds straight lines
    fit = sm.OLS(log, np.column_stack([np.ones(len(basis)), basis])).fit()
    assert np.abs(fit.resid).max() < 1e-9


def runs(rates, tokens):
    rows = [
        (arm, seed, "s", "p", tokens[arm][seed], rates[arm][seed]) for arm in "gm" for seed in range(len(rates["g"]))
    ]
    frame = pd.DataFrame(rows, columns=COLUMNS).assign(weight=1.0)
    return frame[frame["arm"] == "g"], frame[frame["arm"] == "m"]


def test_ancova_finds_the_difference_at_equal_length():
    # accuracy = 0.1 + 0.05 (arm) + 0.1 log tokens, without noise
    tokens = {"g": [10.0, 12.0, 11.0], "m": [14.0, 13.0, 16.0]}
    rates = {arm: [0.1 + 0.05 * (arm == "m") + 0.1 * np.log(n) for n in tokens[arm]] for arm in tokens}
    row = ancova(*runs(rates, tokens))
    assert (row["runs"], row["note"]) == (6, "")
    assert [row[name] for name in ("difference", "low", "high")] == pytest.approx([5, 5, 5])
    r = np.corrcoef([0, 0, 0, 1, 1, 1], np.log([*tokens["g"], *tokens["m"]]))[0, 1]
    assert row["vif"] == pytest.approx(1 / (1 - r**2))


@pytest.mark.parametrize(
    ("tokens", "note"),
    [
        ({"g": [10.0, 12.0], "m": [14.0, 13.0]}, "fewer than 3 seeds"),
        ({"g": [10.0] * 3, "m": [10.0] * 3}, "all runs have the same mean length"),
        ({"g": [10.0] * 3, "m": [12.0] * 3}, "mean length tells which arm it is"),
    ],
)
def test_an_ancova_that_says_nothing_says_why(tokens, note):
    rates = {arm: [0.5, 0.4, 0.6][: len(tokens[arm])] for arm in tokens}
    row = ancova(*runs(rates, tokens))
    assert row["note"].startswith(note)
    assert np.isnan(row["difference"])


def test_a_regression_that_fails_is_a_row_of_the_table():
    results = make_results((("grpo", 0.0), ("mcpo", 0.1), ("tace", 0.0)), samples=4)
    samples = results.samples
    results = replace(results, samples=samples.assign(correct=samples["correct"].where(samples["arm"] != "mcpo", 1.0)))
    of_samples, of_runs = (table.frame for table in tables(weighted(results), 0.95))
    assert of_samples["arm"].tolist() == ["mcpo", "mcpo", "tace", "tace"]
    assert of_samples[of_samples["arm"] == "tace"]["odds_ratio"].notna().all()
    assert of_runs["arm"].tolist() == ["mcpo", "tace"]


def test_separation_raises_and_never_returns_numbers():
    groups = np.repeat([0, 1], 4)
    arm = np.tile([0.0, 0.0, 1.0, 1.0], 2)
    with pytest.raises(NotFittedError, match="no convergence in 25 steps"):
        fixed_effects_logit(np.tile([0.0, 1.0, 1.0, 1.0], 2), arm[:, None], groups)
