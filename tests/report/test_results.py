import pandas as pd
import pytest

from fabricated_results import make_results
from lightning_rlvr.report.results import check_paired, macro


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


def test_sets_count_alike_whatever_their_size():
    # set s 100 (one problem), set l 0 (three problems): macro 50, not 25
    keys = [("a", 0, "s", "p"), *(("a", 0, "l", name) for name in "pqr")]
    index = pd.MultiIndex.from_tuples(keys, names=["arm", "seed", "set", "problem"])
    rates = pd.Series([100.0, 0.0, 0.0, 0.0], index)
    assert macro(rates).to_dict() == {("a", 0): 50}
    assert macro(pd.DataFrame({1: rates, 2: rates})).loc[("a", 0)].tolist() == [50, 50]
