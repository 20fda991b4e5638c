import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fabricated_results import make_results
from lightning_rlvr.report.difficulty import (
    BINS,
    arm_rates,
    bins,
    gain_by_bin,
    null_pairs,
    null_rates,
    part_rates,
    recurs,
    section,
)
from lightning_rlvr.report.problems import pass_rates

NAMES = ["seed", "set", "problem"]


def rates(values, seeds=(0,)):
    count = len(values) // len(seeds)
    return pd.Series(values, pd.MultiIndex.from_product([seeds, ["s"], range(count)], names=NAMES), dtype=float)


def rows(found, arm):
    frame = found.tables[0].frame
    return frame[frame["arm"] == arm].set_index("bin")


def test_bins_cover_the_pass_rates_of_any_number_of_samples():
    names = bins(pd.Series(np.arange(33) / 32))
    # never 0; rare 1..8 of 32; sometimes 9..24; mostly 25..31; always 32
    assert names.value_counts()[list(BINS)].tolist() == [1, 8, 16, 7, 1]


@pytest.mark.parametrize(("n", "expected"), [(4, ([0, 1], [2, 3])), (5, ([0, 1, 2], [3, 4]))])
def test_halves_share_no_sample(n, expected):
    frame = pd.DataFrame({"seed": 0, "set": "s", "problem": "p", "sample": range(n), "correct": 0.0})
    for (start, stop), numbers in zip([(0, 0.5), (0.5, 1)], expected, strict=True):
        marked = frame.assign(correct=frame["sample"].isin(numbers).astype(float))
        assert part_rates(marked, start, stop).tolist() == [1.0]
        assert part_rates(marked, 1 - stop, 1 - start).tolist() == [0.0]


def test_gain_of_a_bin_is_the_mean_over_its_problems():
    # never: (.5 + 0) / 2 = 25 points; always: -50 points; five problems at least for an interval
    table = gain_by_bin(rates([0, 0, 1]), rates([0, 0.5, 1]), rates([0.5, 0.5, 0.5])).set_index("bin")
    assert table["gain"].tolist() == pytest.approx([25, math.nan, math.nan, math.nan, -50], nan_ok=True)
    assert table["problems"].tolist() == [2, 0, 0, 0, 1]
    assert table["low"].isna().all()


def test_interval_of_a_bin_is_the_bootstrap_of_its_mean():
    gains = np.random.default_rng(0).uniform(-0.5, 0.5, 40)
    table = gain_by_bin(rates([0.5] * 40), rates([0.5] * 40), rates(0.5 + gains)).set_index("bin")
    expected = stats.bootstrap((gains,), np.mean, n_resamples=2000, method="percentile", rng=0).confidence_interval
    assert table.loc["sometimes", ["low", "high"]].tolist() == pytest.approx([100 * expected.low, 100 * expected.high])


def test_problem_that_recurs_is_one_cluster_of_its_bin():
    gains = np.random.default_rng(0).uniform(-0.5, 0.5, 40)
    once = gain_by_bin(rates([0.5] * 40), rates([0.5] * 40), rates(0.5 + gains)).iloc[2]
    four = np.tile(gains, 4)
    seeds = range(4)
    table = gain_by_bin(rates([0.5] * 160, seeds), rates([0.5] * 160, seeds), rates(0.5 + four, seeds)).iloc[2]
    assert (table["problems"], table["entries"]) == (40, 160)
    assert table[["low", "high"]].tolist() == pytest.approx(once[["low", "high"]].tolist())


def test_arm_is_binned_by_the_other_seeds_of_the_baseline():
    samples = make_results(seeds=(2, 5, 9)).samples
    own, arm = (samples[samples["arm"] == name] for name in ("grpo", "mcpo"))
    rates, of_arm = pass_rates(own), pass_rates(arm)
    known, before, after = arm_rates(own, own[own["seed"] != 9], arm[arm["seed"] != 9])  # an arm that lacks a seed
    for seed, others in ((2, (5, 9)), (5, (2, 9))):
        pd.testing.assert_series_equal(known[seed], (rates[others[0]] + rates[others[1]]) / 2)
        assert before[seed].equals(rates[seed])
        assert after[seed].equals(of_arm[seed])


@pytest.mark.parametrize(
    ("seeds", "pairs"), [((2, 5, 9), {2: (5, [9])}), ((2, 5, 9, 11), {2: (5, [9, 11]), 9: (11, [2, 5])})]
)
def test_null_of_recurring_problems_is_a_pair_binned_by_the_seeds_outside_it(seeds, pairs):
    own = make_results((("grpo", 0.0),), seeds=seeds).samples
    rates, (known, before, after) = pass_rates(own), null_rates(own)
    for part in (known, before, after):
        assert sorted(set(part.index.get_level_values("seed"))) == list(pairs)
    for one, (other, outside) in pairs.items():
        pd.testing.assert_series_equal(known[one], sum(rates[seed] for seed in outside) / len(outside))
        assert before[one].equals(rates[one])
        assert after[one].equals(rates[other])


def test_the_baseline_trained_again_gains_nothing_in_any_bin():
    # Binned by the first half of its own samples, never gains 6.7 and always loses 6.4 points here.
    both = (("grpo", 0.0), ("again", 0.0))
    results = make_results(both, seeds=range(4), problems=400, samples=16, retraining=0.15)
    found = section(results)
    for arm in ("again", "null"):
        gain = rows(found, arm)
        assert gain.loc[gain["problems"] > 30, "gain"].abs().max() < 3.5
    less = rows(found, "again")["gain"] - rows(found, "null")["gain"]
    assert rows(found, "again")["less null"].tolist() == pytest.approx(less.tolist(), nan_ok=True)
    assert "trained again is expected to gain about nothing" in found.text[0]


def test_training_reverts_where_problems_do_not_recur_and_the_text_says_so():
    both = (("grpo", 0.0), ("again", 0.0))
    settings = {"seeds": range(4), "problems": 400, "samples": 16, "retraining": 0.15}
    found = section(make_results(both, same_problems=False, **settings))
    again = rows(found, "again")
    assert again.loc["never", "low"] > 0 > again.loc["always", "high"]
    assert "not that of training" in found.text[0]
    assert any("training the baseline again would show too" in caveat for caveat in found.caveats)
    assert "less null" not in found.tables[0].frame


@pytest.mark.parametrize(
    ("seeds", "same_problems", "reason"),
    [((0,), True, "there is one seed"), ((0, 1), False, "do not recur"), ((0, 1), True, "no other to bin with")],
)
def test_null_of_quarters_says_why(seeds, same_problems, reason):
    results = make_results(seeds=seeds, same_problems=same_problems)
    assert not null_pairs(results.samples[results.samples["arm"] == "grpo"])
    assert reason in section(results).text[1]


def test_null_is_as_uncertain_as_an_arm_that_is_the_baseline_trained_again():
    # 4 seeds are 2 pairs of the null and 4 of the arm: a width sqrt(2) = 1.41 times that of the arm.
    both = (("grpo", 0.0), ("again", 0.0))
    found = section(make_results(both, seeds=range(4), problems=200, samples=16, retraining=0.15))
    width = {arm: np.ptp(rows(found, arm).loc["sometimes", ["low", "high"]]) for arm in ("null", "again")}
    assert 1.2 < width["null"] / width["again"] < 1.7
    assert "from 2 pairs," in found.text[1]


def test_null_of_problems_that_do_not_recur_is_another_quarter():
    samples = make_results((("grpo", 0.0),), same_problems=False).samples
    _, before, after = null_rates(samples)
    assert not recurs(before)
    assert before.equals(pass_rates(samples[samples["sample"].isin([4, 5])]))
    assert after.equals(pass_rates(samples[samples["sample"].isin([6, 7])]))


@pytest.mark.parametrize("same_problems", [True, False])
def test_null_gains_nothing_where_the_naive_null_seems_to(same_problems):
    results = make_results((("grpo", 0.0),), seeds=range(4), problems=300, samples=16, same_problems=same_problems)
    found = section(results)
    null, naive = rows(found, "null"), rows(found, "naive null")
    assert null["gain"].abs().max() < 4
    # before = 0 or 1 by choice of the bin, hence the sign of the naive gain follows from regression to the mean
    assert naive.loc["never", "low"] > 0 > naive.loc["always", "high"]
    assert f"{naive.loc['never', 'gain']:+.1f} (never)" in found.text[2]
    assert ("two by two" in found.text[1]) == same_problems


def test_section_finds_a_gain_where_it_is():
    # 0.1 is added to every chance, clipped to [0, 1]: in `sometimes` the mean gain is near 10 points
    results = make_results((("grpo", 0.0), ("mcpo", 0.1)), seeds=range(4), problems=200, samples=16)
    found = section(results)
    gain = rows(found, "mcpo").loc["sometimes"]
    assert gain["low"] < 10 < gain["high"]
    assert gain["high"] - gain["low"] < 6
    (axes,) = found.plots[0].figure.axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["mcpo", "null: grpo against itself"]
    assert axes.lines[1].get_ydata().tolist() == pytest.approx(rows(found, "mcpo")["gain"].tolist())


def test_bins_are_of_the_first_half_and_gains_of_the_second():
    results = make_results(seeds=(0,), problems=60)
    samples = results.samples
    base, arm = (samples[samples["arm"] == name] for name in ("grpo", "mcpo"))
    first, second = (pass_rates(base[low]) for low in (base["sample"] < 4, base["sample"] >= 4))
    never = first == 0
    gain = 100 * (pass_rates(arm[arm["sample"] >= 4]) - second)[never].mean()
    row = rows(section(results), "mcpo").loc["never"]
    assert (row["problems"], row["gain"]) == (never.sum(), pytest.approx(gain))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_too_few_samples_are_said_and_no_failure(seeds):
    found = section(make_results(samples=3, seeds=seeds))
    assert not found.tables
    assert "problems with 3" in found.text[0]


@pytest.mark.filterwarnings("error")
def test_few_problems_have_no_interval():
    found = section(make_results(seeds=(0,), problems=4))
    assert found.tables[0].frame[["low", "high"]].isna().all(axis=None)
