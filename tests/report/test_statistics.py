"""Tests and intervals against scipy and numbers derived by hand."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lightning_rlvr.report.statistics import compare, finding, holm, paired_result, t_interval

ABSTRACT = (4.2, 5.4, 6.4, 7.5, 9.25)


def test_interval_of_five_pairs_is_that_of_the_t_distribution():
    # mean 6.55; squares of deviations 5.5225 + 1.3225 + .0225 + .9025 + 7.29 = 15.06, sd = sqrt(15.06 / 4) = 1.9403;
    # half-width = 2.7764 * 1.9403 / sqrt(5) = 2.4093
    result = paired_result(ABSTRACT)
    assert (result.num_pairs, result.wins) == (5, 5)
    assert result.mean == pytest.approx(6.55)
    assert result.sd == pytest.approx(1.9403, abs=1e-4)
    assert (result.low, result.high) == pytest.approx((6.55 - 2.4093, 6.55 + 2.4093), abs=1e-4)
    assert result.t == pytest.approx(6.55 / (1.9403 / math.sqrt(5)), rel=1e-4)
    assert result.p_t == pytest.approx(2 * stats.t.sf(result.t, 4))
    assert result.effect_size == pytest.approx(6.55 / 1.9403, rel=1e-4)


def test_reported_mean_and_interval_imply_the_spread():
    # half-width 2.45 = 2.7764 * sd / sqrt(5), hence sd = 1.973
    unit = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    result = paired_result(6.55 + 1.9732 * unit / unit.std(ddof=1))
    assert result.sd == pytest.approx(1.9732)
    assert (round(result.low, 1), round(result.high, 1)) == (4.1, 9.0)
    assert result.p_t == pytest.approx(0.0018, abs=1e-4)


def test_exact_tests_of_five_wins_cannot_go_below_a_sixteenth():
    result = paired_result(ABSTRACT)
    assert result.p_sign == result.p_permutation == 2 / 2**5


def test_sign_test_leaves_zeros_out_and_permutation_test_counts_all_flips():
    # 3 of 3 non-zero differences: 2 / 8. Means of the 8 flips of (1, 2, 3) beside the zero: only +++ and --- reach 6.
    result = paired_result([1.0, 0.0, 2.0, 3.0])
    assert result.p_sign == result.p_permutation == 0.25
    # 2 wins of 3; flips of (1, -2, 3) with a sum of at least 2: 6, 4, 2 -> hence 2 * 3 / 8
    assert paired_result([1.0, -2.0, 3.0]).p_permutation == 0.75


def test_rounding_noise_is_no_difference():
    result = paired_result([0.3 - 0.1 - 0.2, 0.0, 0.2 + 0.1 - 0.3])
    assert (result.mean, result.sd, result.wins, result.p_sign) == (0, 0, 0, 1)


def test_many_pairs_are_flipped_at_random_but_reproducibly():
    differences = np.random.default_rng(0).normal(0.3, 1, 40)
    first, second = paired_result(differences), paired_result(differences)
    assert first == second
    assert first.p_permutation == pytest.approx(first.p_t, abs=0.03)


@pytest.mark.parametrize("n", [2, 3, 5, 20])
@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_minimum_detectable_effect_is_found_with_power_0_8(n, confidence):
    differences = np.arange(n, dtype=float)
    result = paired_result(differences, confidence)
    noncentrality = result.minimum_detectable_effect / result.sd * math.sqrt(n)
    critical = stats.t.isf((1 - confidence) / 2, n - 1)
    # T^2 is noncentral F: both tails, unlike the inversion of one
    assert stats.ncf.sf(critical**2, 1, n - 1, noncentrality**2) == pytest.approx(0.8, abs=1e-3)


def test_minimum_detectable_effect_of_five_pairs():
    # 1.682 sd: what statsmodels' TTestPower().solve_power(nobs=5, alpha=0.05, power=0.8) gives
    result = paired_result(ABSTRACT)
    assert result.minimum_detectable_effect == pytest.approx(1.682 * result.sd, rel=1e-4)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("differences", [[], [2.0], [0.0, 0.0, 0.0], [0.1, 0.7 - 0.6, 0.4 - 0.3]])
def test_what_has_no_spread_has_no_t_test(differences):
    result = paired_result(differences)
    undefined = result.low, result.high, result.t, result.p_t, result.effect_size, result.minimum_detectable_effect
    assert all(math.isnan(value) for value in undefined)
    assert len(differences) < 2 or result.sd == 0


@pytest.mark.parametrize(("differences", "confidence"), [([1.0, math.nan], 0.95), ([1.0, 2.0], 95)])
def test_bad_arguments_are_refused(differences, confidence):
    with pytest.raises(ValueError, match=r"`(differences|confidence)` must be .* got"):
        paired_result(differences, confidence)


def test_holm_multiplies_by_the_hypotheses_left_and_is_monotone():
    # sorted .01 * 3, .02 * 2 = .04, .03 * 1 -> running maximum .03, .04, .04
    assert holm([0.02, math.nan, 0.01, 0.03]) == pytest.approx([0.04, math.nan, 0.03, 0.04], nan_ok=True)
    assert math.isnan(holm([math.nan])[0])
    assert holm([]) == []


def test_compare_pairs_by_seed_and_leaves_out_seeds_without_both():
    frame = pd.DataFrame({"base": [1.0, 2.0, 3.0], "a": [2.0, math.nan, 6.0]}, index=[7, 8, 9])
    result, p = compare(frame, "base")["a"]
    assert (result.num_pairs, result.mean) == (2, 2.0)
    assert p == result.p_t


def test_t_interval_is_that_of_scipy_for_each_column():
    values = np.random.default_rng(0).normal(size=(5, 2, 3))
    low, high = t_interval(values, 0.9)
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.9)
    assert low == pytest.approx(expected.low)
    assert high == pytest.approx(expected.high)
    result = paired_result(ABSTRACT, 0.9)
    assert t_interval(ABSTRACT, 0.9) == (result.low, result.high)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("values", [[], [2.0], [0.1, 0.3 - 0.2], [1.0, math.nan]])
def test_what_has_no_spread_has_no_interval_alone_or_as_a_column(values):
    alone, columns = t_interval(values), t_interval(np.array([values, values, range(len(values))]).T)
    assert np.isnan(alone).all()
    assert [np.isnan(ends).tolist()[:2] for ends in columns] == [[True, True]] * 2


@pytest.mark.parametrize(
    ("differences", "p_holm", "expected"),
    [
        (ABSTRACT, 0.01, "better"),
        ([-value for value in ABSTRACT], 0.01, "worse"),
        (ABSTRACT, 0.06, "inconclusive"),
        ([2.0, 2.05], 0.008, "too few pairs"),
        ([2.0, 2.0], math.nan, "no test"),
        ([2.0], math.nan, "no test"),
    ],
)
def test_finding_needs_a_small_p_and_three_pairs(differences, p_holm, expected):
    assert finding(paired_result(differences), p_holm) == expected
