"""Arms are compared at the compute that the cheapest of them used."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fabricated_results import make_results
from lightning_rlvr.report import compute, training
from lightning_rlvr.report.results import SweepResults


def make_curves(rewards, tokens_per_step):
    """Runs of 10 steps whose reward at step s is s times a rate; rates by (arm, seed), tokens by arm."""
    steps = pd.DataFrame(
        {
            "arm": arm, "seed": seed, "step": s, "rollouts": s, "sampled_tokens": float(tokens_per_step[arm] * s),
            "seconds": float(s), "flops": 1e9 * s, "reward/mean": rate * s, "advantage/rms": rate,
        }
        for (arm, seed), rate in rewards.items() for s in range(1, 11)
    )  # fmt: skip
    arms = tuple(dict.fromkeys(arm for arm, _ in rewards))
    seeds = tuple(sorted({seed for _, seed in rewards}))
    return SweepResults(
        name="curves",
        baseline="grpo",
        arms=arms,
        seeds=seeds,
        samples=pd.DataFrame(columns=["arm", "seed", "set", "problem"]),
        steps=steps,
        settings={},
    )


def row(frame, axis, arm):
    return frame[(frame["axis"] == compute.AXES[axis]) & (frame["arm"] == arm)].iloc[0]


def test_the_budget_is_what_the_cheapest_arm_used():
    # grpo: 100 tokens a step, 1000 in all; mcpo: 200 a step, so at 1000 it is at step 5: 5 * 0.08 against 10 * 0.05
    results = make_curves({("grpo", 0): 0.05, ("mcpo", 0): 0.08}, {"grpo": 100, "mcpo": 200})
    at = compute.at_equal_compute(results, "reward/mean")
    tokens = row(at, "sampled_tokens", "mcpo")
    assert tokens[["budget", "used", "step", "value"]].tolist() == pytest.approx([1000, 2.0, 5.0, 0.4])
    assert tokens["difference"] == pytest.approx(0.4 - 0.5)
    assert row(at, "seconds", "mcpo")["difference"] == pytest.approx(0.8 - 0.5)
    assert math.isnan(row(at, "seconds", "grpo")["difference"])


def test_values_between_steps_are_linear():
    # 750 tokens in all for grpo: mcpo, at 200 a step, is then at step 3.75
    results = make_curves({("grpo", 0): 0.05, ("mcpo", 0): 0.08}, {"grpo": 75, "mcpo": 200})
    tokens = row(compute.at_equal_compute(results, "reward/mean"), "sampled_tokens", "mcpo")
    assert (tokens["step"], tokens["value"]) == (pytest.approx(3.75), pytest.approx(0.3))


def test_differences_are_paired_by_seed_with_the_t_interval_of_scipy():
    rates = {("grpo", 0): 0.05, ("grpo", 1): 0.06, ("grpo", 2): 0.02, ("mcpo", 0): 0.07, ("mcpo", 1): 0.07}
    results = make_curves(rates, {"grpo": 100, "mcpo": 100})
    found = row(compute.at_equal_compute(results, "reward/mean", 0.9), "flops", "mcpo")
    differences = [0.7 - 0.5, 0.7 - 0.6]  # seed 2 has no pair
    interval = stats.ttest_1samp(differences, 0).confidence_interval(0.9)
    assert found["seeds"] == 2
    assert found["difference"] == pytest.approx(0.15)
    assert [found["low"], found["high"]] == pytest.approx([interval.low, interval.high])


def test_one_seed_has_no_interval():
    results = make_curves({("grpo", 0): 0.05, ("mcpo", 0): 0.08}, {"grpo": 1, "mcpo": 1})
    found = compute.at_equal_compute(results, "reward/mean")
    assert found[["low", "high"]].isna().all(axis=None)


def test_smoothing_is_a_trailing_mean_that_skips_what_was_not_logged():
    run = make_results(steps=60).steps.query("arm == 'grpo' and seed == 0").copy()
    run["reward/mean"] = np.arange(60.0)
    run.loc[run.index[::3], "reward/mean"] = math.nan  # 40 values are left; 5% of them are 2
    curve = compute.smoothed(run, "reward/mean")
    assert curve["value"].head(3).tolist() == [1.0, 1.5, 3.0]  # 1, (1 + 2) / 2, (2 + 4) / 2
    assert curve["step"].head(3).tolist() == [2, 3, 5]


def test_an_evaluation_after_training_is_no_curve():
    results = make_results()
    results.steps["eval/accuracy"] = results.steps["step"].map({10: 0.5})
    section = compute.section(results)
    assert [plot.name for plot in section.plots] == ["compute_reward_mean"]
    assert "no curve of held-out accuracy" in section.text[-1]
    results.steps["eval/accuracy"] = results.steps["step"].map({5: 0.4, 10: 0.5})
    section = compute.section(results)
    assert [plot.name for plot in section.plots] == ["compute_reward_mean", "compute_eval_accuracy"]
    assert not any("no curve" in text for text in section.text)
    assert set(section.tables[0].frame["measure"]) == {"reward/mean", "eval/accuracy"}


def test_every_arm_is_drawn_against_every_measure_of_compute():
    [plot] = compute.section(make_results()).plots
    panels = plot.figure.axes
    assert [panel.get_xlabel() for panel in panels] == list(compute.AXES.values())
    assert all([line.get_label() for line in panel.get_lines()] == ["grpo", "mcpo"] for panel in panels)


def test_lines_are_means_over_seeds_and_bands_their_range():
    [plot] = compute.section(make_curves({("grpo", 0): 0.02, ("grpo", 1): 0.04}, {"grpo": 1})).plots
    panel = plot.figure.axes[0]
    assert panel.get_lines()[0].get_xydata()[-1].tolist() == pytest.approx([10, 0.3])
    band = panel.collections[0].get_paths()[0].vertices
    assert band[band[:, 0] == 10.0][:, 1].min() == pytest.approx(0.2)
    assert band[band[:, 0] == 10.0][:, 1].max() == pytest.approx(0.4)


def test_a_line_ends_where_the_first_of_its_runs_ends():
    results = make_curves({("grpo", 0): 0.02, ("grpo", 1): 0.04}, {"grpo": 100})
    results.steps.loc[results.steps["seed"] == 1, "sampled_tokens"] *= 1.5
    [plot] = compute.section(results).plots
    [line] = plot.figure.axes[1].get_lines()
    assert line.get_xdata()[[0, -1]].tolist() == [150, 1000]


def test_runs_without_curves_are_no_error():
    results = make_curves({("grpo", 0): 0.05}, {"grpo": 1})
    bare = SweepResults(**vars(results) | {"steps": results.steps[["arm", "seed", "step"]]})
    assert compute.section(bare).plots == ()
    assert training.section(bare).tables == ()


# --- training ---


def test_health_is_the_mean_over_seeds_of_the_last_tenth():
    results = make_curves({("grpo", 0): 0.05, ("grpo", 1): 0.07}, {"grpo": 1})
    table = training.at_the_end(results)
    assert table.loc["reward/mean", "grpo"] == pytest.approx(0.6)  # one of ten steps: (0.5 + 0.7) / 2
    assert list(table.index) == ["reward/mean", "advantage/rms"]


@pytest.mark.parametrize(("rms", "warned"), [(1.09, False), (1.11, True), (0.91, False), (0.89, True)])
def test_arms_whose_advantages_differ_in_size_are_named(rms, warned):
    results = make_curves({("grpo", 0): 1.0, ("ot", 0): rms, ("mcpo", 0): 1.0}, {"grpo": 1, "ot": 1, "mcpo": 1})
    [text] = training.section(results).text
    assert ("effective learning rate" in text) == warned
    assert (f"`ot` {rms - 1:+.0%}" in text) == warned
    assert "`mcpo`" not in text


@pytest.mark.parametrize(("missing", "count"), [("mcpo", 1), ("grpo", 0)])
def test_nothing_is_said_of_advantages_that_were_not_logged(missing, count):
    results = make_curves({("grpo", 0): 1.0, ("mcpo", 0): 1.0}, {"grpo": 1, "mcpo": 1})
    results.steps.loc[results.steps["arm"] == missing, "advantage/rms"] = math.nan
    text = training.section(results).text
    assert len(text) == count
    assert all("every arm that logged it" in sentence for sentence in text)
