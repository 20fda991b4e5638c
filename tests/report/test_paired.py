import math
import time

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fabricated_results import make_results
from lightning_rlvr.report.paired import (
    compare,
    holm,
    paired_result,
    pass_rates,
    problem_interval,
    section,
    t_interval,
    verdict,
    verdicts,
)
from lightning_rlvr.report.results import check_paired

ABSTRACT = (4.2, 5.4, 6.4, 7.5, 9.25)


def table(found, name):
    return next(item.frame for item in found.tables if item.name == name)


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


@pytest.mark.parametrize(
    ("differences", "p_holm", "expected"),
    [
        (ABSTRACT, 0.01, "**`a` is better than `b`**"),
        ([-value for value in ABSTRACT], 0.01, "**`a` is worse than `b`**"),
        (ABSTRACT, 0.06, "no difference could be shown"),
        ([1.0, -1.0, 0.5], 0.8, "3 seeds are too few to conclude equality"),
        ([0.0, 0.0], math.nan, "equal accuracy in all 2 seeds"),
        ([1.0, 1.0], math.nan, "the same difference of +1.00 points in all 2 seeds"),
        ([1.0], math.nan, "no interval and no test"),
        ([], math.nan, "nothing can be said"),
    ],
)
def test_verdict_follows_the_rule(differences, p_holm, expected):
    assert expected in verdict("a", "b", paired_result(differences), p_holm)


def test_no_difference_names_the_smallest_that_would_have_been_found():
    result = paired_result([1.0, -1.0, 0.5, -0.5, 0.2])
    text = verdict("a", "b", result, 0.9)
    assert f"at least {result.minimum_detectable_effect:.2f} points" in text
    assert "too few" not in text


def test_problem_interval_of_one_set_and_seed_is_the_bootstrap_of_its_mean():
    values = np.random.default_rng(0).normal(size=60)
    index = pd.MultiIndex.from_product([[0], ["s"], range(60)], names=["seed", "set", "problem"])
    expected = stats.bootstrap((values,), np.mean, n_resamples=2000, method="percentile", rng=0).confidence_interval
    assert problem_interval(pd.Series(values, index)) == pytest.approx((expected.low, expected.high))


def test_problem_that_recurs_is_one_cluster():
    # The same value in four seeds is no further evidence: as wide as one seed. Other problems in each: half as wide.
    values = np.random.default_rng(0).normal(size=50)
    names = ["seed", "set", "problem"]
    once = pd.Series(values, pd.MultiIndex.from_product([[0], ["s"], range(50)], names=names))
    recurring = pd.Series(np.tile(values, 4), pd.MultiIndex.from_product([range(4), ["s"], range(50)], names=names))
    others = recurring.set_axis(
        pd.MultiIndex.from_tuples([(s, "s", f"{s}-{p}") for s in range(4) for p in range(50)], names=names)
    )
    width = [np.ptp(problem_interval(one)) for one in (once, recurring, others)]
    assert width[1] == pytest.approx(width[0])
    assert width[2] == pytest.approx(width[0] / 2, rel=0.1)


def test_sets_are_strata_and_count_alike():
    # Constant sets of 10 and 90 problems: no noise within a stratum, and the macro mean is (1 + 0) / 2.
    names = ["seed", "set", "problem"]
    index = pd.MultiIndex.from_tuples([(0, "s", i) for i in range(10)] + [(0, "l", i) for i in range(90)], names=names)
    values = pd.Series([1.0] * 10 + [0.0] * 90, index)
    assert problem_interval(values) == pytest.approx((0.5, 0.5))
    assert all(math.isnan(bound) for bound in problem_interval(values[:4]))


def test_seeds_with_other_problems_are_strata():
    # Seed 0 gains 1 on all of its problems, seed 1 nothing on others: seeds are fixed, so nothing varies.
    names = ["seed", "set", "problem"]
    index = pd.MultiIndex.from_tuples([(seed, "s", f"{seed}-{i}") for seed in (0, 1) for i in range(10)], names=names)
    assert problem_interval(pd.Series([1.0] * 10 + [0.0] * 10, index)) == pytest.approx((0.5, 0.5))


def test_two_thousand_problems_take_less_than_two_seconds():
    index = pd.MultiIndex.from_product([range(5), ["s"], range(2000)], names=["seed", "set", "problem"])
    values = pd.Series(np.random.default_rng(0).normal(size=10_000), index)
    start = time.process_time()
    problem_interval(values)
    assert time.process_time() - start < 2


def test_unequal_numbers_of_samples_are_refused_by_name():
    samples = make_results(seeds=(0,)).samples
    less = samples.drop(samples.index[(samples["arm"] == "mcpo") & (samples["sample"] == 7)])
    with pytest.raises(ValueError, match=r"`sums` must have equally many .* got 7 \(`mcpo`, seed 0.* and 8 \(`grpo`"):
        check_paired(less)


def test_runs_of_a_seed_on_other_problems_are_refused_and_missing_runs_are_not():
    samples = make_results(seeds=(0, 1)).samples
    check_paired(samples[(samples["arm"] == "grpo") | (samples["seed"] == 1)])
    with pytest.raises(ValueError, match="`mcpo` of seed 1 lacks problem 'sums-3' of `sums`"):
        check_paired(samples[(samples["arm"] == "grpo") | (samples["seed"] == 0) | (samples["problem"] != "sums-3")])


@pytest.mark.filterwarnings("error")
def test_section_shows_every_arm_and_agrees_with_its_parts():
    results = make_results(
        (("grpo", 0.0), ("mcpo", 0.15), ("tace", 0.0)),
        seeds=range(5),
        problems=40,
        samples=16,
        sets=("sums", "chains"),
    )
    found = section(results)
    paired, runs, problems = (table(found, name) for name in ("paired", "by_seed", "problem_bootstrap"))
    assert paired["arm"].tolist() == ["mcpo", "tace"]
    assert (paired["mean"] - paired["baseline"]).tolist() == pytest.approx(paired["difference"].tolist())
    assert runs["mcpo - grpo"].mean() == pytest.approx(paired["difference"][0])
    together = problems[problems["seed"] == "mean of seeds"]
    assert together["difference"].tolist() == pytest.approx(paired["difference"].tolist())
    assert (problems["problems"] == 80).all()
    assert list(verdicts(results).values()) == list(found.text[1:])
    assert "better" in found.text[1]
    assert "no difference" in found.text[2]
    assert "2/2^5 = 0.0625" in " ".join(found.caveats)
    (axes,) = found.plots[0].figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["mcpo", "tace"]
    circles = next(line for line in axes.lines if line.get_marker() == "o")
    assert sorted(circles.get_xdata()) == pytest.approx(sorted(runs["mcpo - grpo"]))


@pytest.mark.filterwarnings("error")
def test_one_seed_has_no_interval_and_the_section_says_so():
    found = section(make_results(seeds=(3,)))
    assert table(found, "paired")[["low", "high", "p t", "p Holm"]].isna().all(axis=None)
    assert table(found, "problem_bootstrap")[["seed", "problems"]].values.tolist() == [["3", 12]]
    assert "no interval and no test" in found.text[1]
    assert any("fewer than two pairs" in caveat for caveat in found.caveats)


@pytest.mark.filterwarnings("error")
def test_arm_that_is_the_baseline_is_called_equal():
    results = make_results((("grpo", 0.0),))
    twin = results.samples.assign(arm="twin")
    samples = pd.concat([results.samples, twin])
    both = type(results)(**vars(results) | {"arms": ("grpo", "twin"), "samples": samples})
    assert "equal accuracy in all 3 seeds" in section(both).text[1]
    assert "only arm" in section(results).text[0]


@pytest.mark.filterwarnings("error")
def test_arm_without_a_shared_seed_is_a_row_without_numbers():
    results = make_results()
    samples = results.samples[(results.samples["arm"] == "grpo") == (results.samples["seed"] == 0)]
    found = section(type(results)(**vars(results) | {"samples": samples, "arms": ("grpo", "mcpo", "lost")}))
    assert table(found, "paired")["pairs"].tolist() == [0, 0]
    assert all("nothing can be said" in text for text in found.text[1:])


def test_pass_rates_are_means_over_samples():
    samples = make_results(seeds=(0,)).samples
    own = samples[samples["arm"] == "grpo"]
    assert pass_rates(own)[0, "sums", "sums-5"] == own[own["problem"] == "sums-5"]["correct"].mean()


def test_t_interval_is_that_of_paired_result():
    result = paired_result(ABSTRACT, 0.9)
    assert t_interval(ABSTRACT, 0.9) == (result.low, result.high)
