"""Budget curves and equal tokens: both read what the arms deliver for their tokens."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fabricated_results import make_results
from lightning_rlvr.report.length import budget, iso_tokens
from lightning_rlvr.report.length.runs import run_means, weighted

RESULTS = weighted(make_results(sets=("sums", "logic"), length=(("grpo", 20.0), ("mcpo", 30.0))))
BASELINE, _ = RESULTS.pair("mcpo")


def copied(**columns):
    """The baseline, and an arm of the same samples with other columns."""
    arm = BASELINE.assign(arm="mcpo").assign(**columns)
    return replace(RESULTS, samples=pd.concat([BASELINE, arm]))


TWICE = copied(tokens=2 * BASELINE["tokens"])


def test_budget_curve_is_the_share_that_is_correct_in_time():
    curve = budget.budget_curve(RESULTS.samples, np.array([1, 18, 25, 64]))
    for at in (18, 25):
        samples = RESULTS.samples.assign(correct=RESULTS.samples["correct"] * (RESULTS.samples["tokens"] <= at))
        assert curve[at].unstack("arm").to_numpy() == pytest.approx(run_means(samples, "correct").to_numpy())


def test_budget_curve_grows_from_nothing_to_the_accuracy():
    grid = budget.budget_grid(RESULTS.samples)
    curve = budget.budget_curve(RESULTS.samples, np.array([grid[0] - 1, *grid]))
    assert (curve.diff(axis=1).iloc[:, 1:] >= 0).all(axis=None)
    assert (curve.iloc[:, 0] == 0).all()
    whole = run_means(RESULTS.samples, "correct").to_numpy()
    assert curve.iloc[:, -1].unstack("arm").to_numpy() == pytest.approx(whole)


def test_area_is_the_integral_of_the_curve_over_log_budget():
    low, high = RESULTS.samples["tokens"].min(), RESULTS.samples["tokens"].max()
    every = np.arange(low, high + 1)
    curve = budget.budget_curve(RESULTS.samples, every).to_numpy()  # constant from each whole number to the next
    integral = (curve[:, :-1] * np.diff(np.log(every))).sum(1) / np.log(high / low)
    area = budget.budget_area(RESULTS.samples).T.stack()
    assert area.to_numpy() == pytest.approx(integral)


def test_area_is_1_if_all_are_correct_and_of_the_shortest_length_but_one():
    columns = ["arm", "seed", "tokens", "correct", "weight"]
    area = budget.budget_area(pd.DataFrame([("a", 0, 3, 1.0, 1.0), ("b", 0, 9, 1.0, 1.0)], columns=columns))
    assert area.loc[0].to_dict() == {"a": 1.0, "b": 0.0}


def test_an_arm_of_the_same_samples_at_twice_the_length_loses_within_every_budget():
    frame = budget.table(TWICE, 0.95).frame.set_index("arm")
    # every completion shifts by log 2 on the axis of log budgets: accuracy * log(2) / range is lost
    low, high = TWICE.samples["tokens"].min(), TWICE.samples["tokens"].max()
    lost = 100 * run_means(BASELINE, "correct")["grpo"].mean() * np.log(2) / np.log(high / low)
    assert frame.loc["mcpo", "difference"] == pytest.approx(-lost)
    assert frame.loc["mcpo", "crossings"] == "none", "at the largest budget the two are equal, which is no crossing"


def test_a_copy_of_the_baseline_differs_in_nothing():
    frame = budget.table(copied(), 0.95).frame.set_index("arm")
    assert frame.loc["mcpo", ["difference", "crossings"]].tolist() == [0, "none"]
    rows = iso_tokens.iso_tokens(*copied().pair("mcpo"))
    assert rows["k"].tolist() == [1, 2, 4, 8]
    assert rows["baseline_k"].tolist() == [1, 2, 4, 8]
    assert (rows["difference"] == 0).all()


def test_an_effect_that_is_wholly_one_of_length_shows_as_a_crossing():
    # correct if and only if longer than 25 tokens: the short arm leads nowhere, the long one above 25 alone
    samples = RESULTS.samples.assign(correct=(RESULTS.samples["tokens"] > 25).astype(float))
    grid = budget.budget_grid(samples)
    means = budget.budget_curve(samples, grid).groupby("arm").mean()
    assert (means.loc[:, grid <= 25] == 0).all(axis=None)
    assert means[grid[-1]].diff()["mcpo"] > 0.5


def test_bands_are_t_intervals_over_seeds_and_none_where_seeds_are_equal():
    grid = budget.budget_grid(RESULTS.samples)
    by_seed = 100 * budget.budget_curve(RESULTS.samples, grid).loc["grpo"]
    expected = stats.ttest_1samp(by_seed, 0).confidence_interval(0.9)
    drawn = budget.plot(RESULTS, 0.9).figure.axes[0].collections[0].get_paths()[0].vertices
    at = grid == 20
    assert np.ptp(by_seed.to_numpy()[:, at]) > 0
    ends = drawn[drawn[:, 0] == 20][:, 1]
    assert (ends.min(), ends.max()) == pytest.approx((expected.low[at][0], expected.high[at][0]))
    equal = replace(RESULTS, samples=BASELINE.assign(tokens=20 + BASELINE["sample"], correct=1.0))
    assert all(not len(band.get_paths()) for band in budget.plot(equal, 0.9).figure.axes[0].collections)


def test_crossings_pass_over_zeros_and_rounding():
    differences = pd.Series([1e-17, 0.2, -1e-17, 0.1, -0.1, 0.0, 0.3], index=[1, 2, 3, 4, 5, 6, 7])
    assert budget.crossings(differences) == [5, 7]
    assert budget.crossings(pd.Series([0.0, 0.0], index=[1, 2])) == []


def test_iso_tokens_of_a_small_frame():
    # lengths 4 and 6: the baseline may have k' = 1.5 k samples. Of 4 samples it has 1 correct:
    # pass@1 = 1/4, pass@2 = 1/2, so pass@1.5 = 3/8; pass@3 = 3/4; k = 4 would need 6 samples.
    # The arm has 2 of 4: pass@1 = 1/2, pass@2 = 1 - C(2,2)/C(4,2) = 5/6.
    columns = ["arm", "seed", "set", "problem", "tokens", "correct", "weight"]
    first = pd.DataFrame([("g", 0, "s", "p", 4, float(i < 1), 0.25) for i in range(4)], columns=columns)
    second = pd.DataFrame([("m", 0, "s", "p", 6, float(i < 2), 0.25) for i in range(4)], columns=columns)
    rows = iso_tokens.iso_tokens(first, second)
    assert rows["k"].tolist() == [1, 2]
    assert rows["tokens"].tolist() == [6, 12]
    assert rows["pass"].tolist() == pytest.approx([50, 500 / 6])
    assert rows["baseline_same_k"].tolist() == pytest.approx([25, 50])
    assert rows["baseline_k"].tolist() == [1.5, 3]
    assert rows["baseline_same_tokens"].tolist() == pytest.approx([37.5, 75])
    assert rows["difference"].tolist() == pytest.approx([12.5, 500 / 6 - 75])
    assert rows[["low", "high"]].isna().all(axis=None)


def test_at_equal_tokens_half_the_length_is_twice_the_samples():
    half = copied(tokens=BASELINE["tokens"] * 0.5)
    rows = iso_tokens.iso_tokens(*half.pair("mcpo"))
    assert rows["baseline_k"].tolist() == [0.5, 1, 2, 4]
    assert rows["pass"].tolist() == rows["baseline_same_k"].tolist()
    assert rows["baseline_same_tokens"].tolist()[1:] == pytest.approx(rows["pass"].tolist()[:-1])
    assert (rows["difference"] > 0).all()


def test_sets_count_alike_at_any_k():
    index = pd.MultiIndex.from_tuples([("s", "p"), ("s", "q"), ("t", "p")], names=["set", "problem"])
    problems = pd.DataFrame({"n": [4, 4, 8], "c": [4, 0, 8]}, index=index)
    assert iso_tokens.macro_pass_at(problems, 2) == 0.75  # (1/2 + 1) / 2
    assert np.isnan(iso_tokens.macro_pass_at(problems, 4.5))
