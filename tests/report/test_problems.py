import math
import time

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fabricated_results import make_results
from lightning_rlvr.report.problems import pass_rates, problem_interval, set_table
from lightning_rlvr.report.results import accuracy


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


def test_pass_rates_are_means_over_samples():
    samples = make_results(seeds=(0,)).samples
    own = samples[samples["arm"] == "grpo"]
    assert pass_rates(own)[0, "sums", "sums-5"] == own[own["problem"] == "sums-5"]["correct"].mean()


@pytest.mark.filterwarnings("error")
def test_benchmarks_are_given_one_by_one_with_micro_and_macro_mean():
    small, large = (make_results(sets=(name,), problems=problems) for name, problems in (("s", 5), ("l", 20)))
    samples = pd.concat([small.samples, large.samples], ignore_index=True)
    frame = set_table(type(small)(**vars(small) | {"samples": samples})).frame.set_index("set")
    assert frame.index.tolist() == ["l", "s", "micro", "macro"]
    assert (frame["arm"] == "mcpo").all()
    for name, results in (("s", small), ("l", large)):
        by_seed = 100 * accuracy(results.samples)
        gains = by_seed["mcpo"] - by_seed["grpo"]
        expected = stats.ttest_1samp(gains, 0.0).confidence_interval()
        assert frame.loc[name, ["baseline", "mean"]].tolist() == pytest.approx(by_seed.mean().tolist())
        numbers = [gains.mean(), expected.low, expected.high, 3]
        assert frame.loc[name, ["difference", "low", "high", "pairs"]].tolist() == pytest.approx(numbers)
    gain = frame["difference"]
    assert gain["micro"] == pytest.approx((5 * gain["s"] + 20 * gain["l"]) / 25)
    assert gain["macro"] == pytest.approx((gain["s"] + gain["l"]) / 2)
