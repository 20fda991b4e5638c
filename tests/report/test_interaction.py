import dataclasses

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fabricated_results import make_results
from lightning_rlvr.report.interaction import contrasts, crossed
from lightning_rlvr.report.paired import points, section
from lightning_rlvr.report.statistics import holm

PAIRS = {"grpo": ("z", "u"), "ot": ("o", "u"), "evidence": ("z", "e"), "tace": ("o", "e"), "mcpo": ("z", "m")}


def grid(pairs, **others):
    """Results of arms with these calibrators and credits; ``others``: further settings of an arm."""
    results = make_results([(arm, 0.0) for arm in pairs], seeds=range(5))
    settings = {arm: {"calibrator": one, "credit": two} | others.get(arm, {}) for arm, (one, two) in pairs.items()}
    return dataclasses.replace(results, settings=settings)


def test_a_pair_needs_both_of_its_halves():
    assert crossed(grid(PAIRS)) == {"tace": ("ot", "evidence")}
    assert crossed(grid({arm: pair for arm, pair in PAIRS.items() if arm != "ot"})) == {}
    assert crossed(grid(PAIRS | {"both": ("o", "m")})) == {"tace": ("ot", "evidence"), "both": ("ot", "mcpo")}


def test_halves_share_the_settings_of_their_choice_and_all_else_with_the_baseline():
    assert crossed(grid(PAIRS, tace={"credit.tau": 2.0})) == {}
    assert crossed(grid(PAIRS, tace={"credit.tau": 2.0}, evidence={"credit.tau": 2.0})) == {"tace": ("ot", "evidence")}
    assert crossed(grid(PAIRS, tace={"lr": 0.1})) == crossed(grid(PAIRS, grpo={"lr": 0.1})) == {}


def test_interaction_is_what_the_pair_gains_beyond_its_halves():
    results = grid(PAIRS | {"both": ("o", "m")})
    by_seed = points(results)
    _, table = contrasts(results, by_seed, 0.9)
    expected = by_seed["tace"] - by_seed["ot"] - by_seed["evidence"] + by_seed["grpo"]
    interval = stats.ttest_1samp(expected, 0.0).confidence_interval(0.9)
    row = table.frame.set_index("pair").loc["tace"]
    assert row[["interaction", "low", "high", "seeds"]].tolist() == pytest.approx(
        [expected.mean(), interval.low, interval.high, 5]
    )
    assert row["p t"] == pytest.approx(stats.ttest_1samp(expected, 0.0).pvalue)
    assert table.frame["p Holm"].tolist() == pytest.approx(holm(table.frame["p t"].tolist()))


@pytest.mark.parametrize(
    ("gain", "says"),
    [(0.0, "For no pair could a difference"), (10.0, "`tace` is more than the sum"), (-10.0, "is less than the sum")],
)
def test_the_sentence_says_what_the_test_says(gain, says):
    noise = np.array([-1.0, 1.0, 0.5, -0.5, 0.0])
    by_seed = pd.DataFrame({"grpo": noise, "ot": 5.0, "evidence": 3.0, "tace": 8.0 + gain, "mcpo": 0.0})
    text, _ = contrasts(grid(PAIRS), by_seed)
    assert says in text


def test_only_crossed_arms_have_an_interaction_in_the_report():
    found, without = section(grid(PAIRS)), section(make_results())
    assert found.tables[-1].name == "interaction"
    assert "more than the sum of its halves?" in found.text[-1]
    assert without.tables[-1].name == "problem_bootstrap"
