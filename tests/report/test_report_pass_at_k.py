import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fabricated_results import make_results
from lightning_rlvr.report.pass_at_k import band, by_problem, section
from lightning_rlvr.report.problems import problem_interval
from lightning_rlvr.report.results import macro


def frame(counts, n):
    """Counts of correct samples by (arm, seed, set, problem)."""
    rows = [(*key, number, float(number < c)) for key, c in counts.items() for number in range(n)]
    return pd.DataFrame(rows, columns=["arm", "seed", "set", "problem", "sample", "correct"])


def test_problem_of_four_correct_in_thirty_two():
    # 1 - C(28, k) / C(32, k) for k = 1, 2, 4, 8, 16, 32
    row = by_problem(frame({("a", 0, "s", "p"): 4}, 32)).iloc[0]
    assert row.tolist() == pytest.approx([12.5, 23.79, 43.06, 70.45, 94.94, 100], abs=5e-3)


def test_k_goes_up_to_the_smallest_n_of_a_set():
    samples = pd.concat([frame({("a", 0, "s", "p"): 1}, 4), frame({("a", 0, "l", "p"): 1}, 16)])
    assert by_problem(samples).columns.tolist() == [1, 2, 4]
    assert by_problem(frame({("a", 0, "s", "p"): 1}, 9)).columns.tolist() == [1, 2, 4, 8, 9]


def test_band_over_seeds_is_the_t_interval_of_their_curves():
    problems = by_problem(make_results(seeds=range(4)).samples).loc[["grpo"]]
    curve = band(problems).set_index("k")
    by_seed = macro(problems)[2]
    expected = stats.t.interval(0.95, 3, by_seed.mean(), stats.sem(by_seed))
    assert curve.loc[2, ["mean", "low", "high"]].tolist() == pytest.approx([by_seed.mean(), *expected])


def test_band_of_one_seed_is_the_bootstrap_over_problems():
    problems = by_problem(make_results(seeds=(5,)).samples).loc[["grpo"]]
    curve = band(problems).set_index("k")
    expected = problem_interval(problems[4].droplevel("arm"))
    assert tuple(curve.loc[4, ["low", "high"]]) == pytest.approx(expected)
    assert expected[0] < curve.loc[4, "mean"] < expected[1]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seeds", [(0,), range(4)])
def test_difference_is_paired_by_seed(seeds):
    results = make_results((("grpo", 0.0), ("mcpo", 0.2)), seeds=seeds)
    missing = results.samples[(results.samples["arm"] == "grpo") | (results.samples["seed"] < 3)]
    found = section(type(results)(**vars(results) | {"samples": missing}))
    table = found.tables[0].frame.set_index(["arm", "k"])
    curves = macro(by_problem(missing))
    shared = curves.loc["mcpo"].index
    gains = curves.loc["mcpo"] - curves.loc["grpo"].loc[shared]
    assert table.loc["mcpo", "difference"].tolist() == pytest.approx(gains.mean().tolist())
    assert set(table.loc["mcpo", "pairs"]) == {len(shared)}
    assert table.loc["grpo", "difference"].isna().all()
    assert table.loc["grpo", "mean"].tolist() == pytest.approx(curves.loc["grpo"].mean().tolist())
    assert table.loc["grpo", "mean"].is_monotonic_increasing
    curve, difference = found.plots
    assert [text.get_text() for text in curve.figure.axes[0].get_legend().get_texts()] == ["grpo", "mcpo"]
    assert curve.figure.axes[0].get_xscale() == "log"
    drawn = difference.figure.axes[0].lines[1].get_ydata()
    assert np.asarray(drawn).tolist() == pytest.approx(gains.mean().tolist())
    assert "pass@8 from 8 samples" in found.caveats[0]
    assert any("below 0 or above 100%" in caveat for caveat in found.caveats)
    assert "compatible with" in found.text[0]
    assert "ceiling" in found.text[0]


def test_runs_with_unequal_n_are_refused():
    results = make_results()
    samples = results.samples[(results.samples["arm"] == "grpo") | (results.samples["sample"] < 4)]
    with pytest.raises(ValueError, match="equally many samples in all runs, got 4"):
        section(type(results)(**vars(results) | {"samples": samples}))


def test_baseline_alone_has_a_curve_and_no_difference():
    found = section(make_results((("grpo", 0.0),)))
    assert [plot.name for plot in found.plots] == ["pass_at_k"]
    assert found.tables[0].frame["pairs"].isna().all()
