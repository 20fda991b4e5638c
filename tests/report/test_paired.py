import math

import pandas as pd
import pytest

from fabricated_results import make_results
from lightning_rlvr.report.paired import section, verdict
from lightning_rlvr.report.statistics import paired_result

ABSTRACT = (4.2, 5.4, 6.4, 7.5, 9.25)


def table(found, name):
    return next(item.frame for item in found.tables if item.name == name)


@pytest.mark.parametrize(
    ("differences", "p_holm", "expected"),
    [
        (ABSTRACT, 0.01, "**`a` is better than `b`**"),
        ([-value for value in ABSTRACT], 0.01, "**`a` is worse than `b`**"),
        ([2.0, 2.05], 0.008, "`a` against `b`: two pairs are too few for a verdict: +2.02 points"),
        ([2.0, 2.05, 2.1], 0.0002, "This is by a t test of 3 pairs alone."),
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


def test_five_pairs_are_not_called_few():
    assert "alone" not in verdict("a", "b", paired_result(ABSTRACT), 0.01)


def test_no_difference_names_the_smallest_that_would_have_been_found():
    result = paired_result([1.0, -1.0, 0.5, -0.5, 0.2])
    text = verdict("a", "b", result, 0.9)
    assert f"at least {result.minimum_detectable_effect:.2f} points" in text
    assert "too few" not in text


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
    gains = table(found, "differences_by_seed").set_index("arm")
    assert list(runs) == ["arm", "0", "1", "2", "3", "4"]
    assert runs["arm"].tolist() == ["grpo", "mcpo", "tace"]
    by_arm = runs.set_index("arm")
    assert gains.loc["mcpo"].tolist() == pytest.approx((by_arm.loc["mcpo"] - by_arm.loc["grpo"]).tolist())
    assert gains.mean(axis=1).tolist() == pytest.approx(paired["difference"].tolist())
    together = problems[problems["seed"] == "mean of seeds"]
    assert together["difference"].tolist() == pytest.approx(paired["difference"].tolist())
    assert (problems["problems"] == 80).all()
    names = ["paired", "by_set", "by_seed", "differences_by_seed", "problem_bootstrap"]
    assert [item.name for item in found.tables] == names
    macro = table(found, "by_set").query("set == 'macro'")
    shared = ["difference", "low", "high"]
    assert macro[shared].to_numpy() == pytest.approx(paired[shared].to_numpy())
    assert "better" in found.text[1]
    assert "no difference" in found.text[2]
    assert "2/2^5 = 0.0625" in " ".join(found.caveats)
    (axes,) = found.plots[0].figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["mcpo", "tace"]
    circles = next(line for line in axes.lines if line.get_marker() == "o")
    assert sorted(circles.get_xdata()) == pytest.approx(sorted(gains.loc["mcpo"]))


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
    settings = {"grpo": {}, "twin": {}}
    both = type(results)(**vars(results) | {"arms": tuple(settings), "samples": samples, "settings": settings})
    assert "equal accuracy in all 3 seeds" in section(both).text[1]
    assert "only arm" in section(results).text[0]


@pytest.mark.filterwarnings("error")
def test_arm_without_a_shared_seed_is_a_row_without_numbers():
    results = make_results()
    samples = results.samples[(results.samples["arm"] == "grpo") == (results.samples["seed"] == 0)]
    settings = dict.fromkeys(("grpo", "mcpo", "lost"), results.settings["grpo"])
    changes = {"samples": samples, "arms": tuple(settings), "settings": settings}
    found = section(type(results)(**vars(results) | changes))
    assert table(found, "paired")["pairs"].tolist() == [0, 0]
    assert all("nothing can be said" in text for text in found.text[1:])
