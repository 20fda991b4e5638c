"""The section on length: its sentences, its table of lengths, and runs that are few, equal or missing."""

import math
import re
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fabricated_results import make_results
from lightning_rlvr.report.length import section
from lightning_rlvr.report.length.description import description, sentences
from lightning_rlvr.report.length.runs import compared, paired_difference, run_means, weighted
from lightning_rlvr.report.results import accuracy


def said(results):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return list(sentences(weighted(results)))


def test_weights_give_the_accuracy_of_the_report():
    results = make_results(sets=("sums", "logic"))
    samples = results.samples.query("set == 'sums' or sample < 3 and problem < 'logic-4'")  # sets differ in both sizes
    weights = weighted(replace(results, samples=samples)).samples
    pd.testing.assert_frame_equal(run_means(weights, "correct"), accuracy(samples), check_names=False)


def test_a_seed_that_one_arm_lacks_is_not_compared():
    values = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [2.0, math.nan, 5.0]})
    assert paired_difference(values, "a", "b", 0.95)["difference"] == 1.5
    assert paired_difference(values, "a", "b", 0.95)["seeds"] == 2


def test_lengths_of_a_small_frame():
    # set s: 2 correct, 4 wrong; set t: 6 correct: weights 1/4, 1/4, 1/2
    columns = ["arm", "seed", "set", "problem", "tokens", "correct", "truncated"]
    rows = [("a", 0, "s", "p", 2, 1.0, False), ("a", 0, "s", "p", 4, 0.0, True), ("a", 0, "t", "q", 6, 1.0, False)]
    results = replace(make_results(), baseline="a", arms=("a",), samples=pd.DataFrame(rows, columns=columns))
    [row] = description(weighted(results)).to_dict("records")
    assert row == {
        "arm": "a", "runs": 1,
        "mean": 4.5,  # 2/4 + 4/4 + 6/2
        "q10": 2.0, "q50": 4.0, "q90": 6.0,  # shares up to 2, 4, 6 tokens: 1/4, 1/2, 1
        "correct": pytest.approx(14 / 3),  # (2/4 + 6/2) / (3/4)
        "wrong": 4.0, "truncated": 25.0,
        "per_correct": 6.0,  # 4.5 / (3/4)
    }  # fmt: skip


@pytest.mark.parametrize(("correct", "gone"), [(0.0, ["correct", "per_correct"]), (1.0, ["wrong"])])
def test_an_arm_that_is_always_right_or_wrong_has_no_length_of_the_other(correct, gone):
    results = make_results()
    frame = description(weighted(replace(results, samples=results.samples.assign(correct=correct))))
    assert [name for name in ("correct", "wrong", "per_correct") if frame[name].isna().all()] == gone


# t(1) = 12.7: the interval of two seeds holds 0 and is wide, which shows no equality
@pytest.mark.parametrize(
    ("longer", "seeds", "samples", "expected"),
    [
        (25.0, 5, 64, "the mean lengths agree (equal means do not make equal distributions)"),
        (32.0, 5, 8, "The lengths differ, so a difference in accuracy may go with them"),
        (25.0, 2, 8, "Neither a difference in length nor its absence is shown"),
        (32.0, 1, 8, "one seed, hence no interval"),
    ],
)
def test_the_section_says_early_whether_lengths_differ(longer, seeds, samples, expected):
    results = make_results(length=(("grpo", 25.0), ("mcpo", longer)), seeds=range(seeds), samples=samples)
    [text] = said(results)
    assert expected in text
    means = run_means(weighted(results).samples, "tokens")
    assert f"{(means['mcpo'] - means['grpo']).mean():+.2f} tokens" in text


@pytest.mark.parametrize(("off", "expected"), [(0, "the mean lengths agree"), (2, "The lengths differ")])
def test_a_difference_that_is_the_same_in_all_seeds_needs_no_interval(off, expected):
    results = make_results()
    results = replace(results, samples=results.samples.assign(tokens=20 + off * (results.samples["arm"] == "mcpo")))
    [text] = said(results)
    assert f"{off:+.2f} tokens for a completion in the mean (the same in all 3 seeds)" in text
    assert expected in text


@pytest.mark.parametrize(("longer", "expected"), [(25.0, "the mean lengths agree"), (32.0, "The lengths differ")])
def test_the_section_says_whether_arms_with_a_target_length_met(longer, expected):
    effects = (("grpo", 0.0), ("mcpo", 0.1), ("grpo_matched", 0.0), ("mcpo_matched", 0.1))
    results = make_results(effects, length=(("mcpo", 40.0), ("mcpo_matched", longer)), samples=32)
    target = {"data.train.verifier.verifiers.1": "TargetLengthVerifier"}
    assert not any("target length" in text for text in said(results))
    aimed = replace(results, settings={"grpo": {}, "mcpo": {}, "grpo_matched": target, "mcpo_matched": target})
    [text] = [text for text in said(aimed) if "target length" in text]
    assert "`mcpo_matched` against `grpo_matched`" in text
    assert expected in text
    rates = 100 * accuracy(results.samples)
    gains = paired_difference(rates, "grpo_matched", "mcpo_matched", 0.95)
    interval = f"95% t-interval [{gains['low']:+.2f}, {gains['high']:+.2f}]"
    assert f"Accuracy: {gains['difference']:+.2f} points ({interval})." in text


def odd(kind):
    results = make_results(samples=4, problems=6)
    samples = results.samples
    return {
        "one length": replace(results, samples=samples.assign(tokens=20)),
        "a length for each arm": replace(results, samples=samples.assign(tokens=20 + (samples["arm"] == "mcpo"))),
        "all correct": replace(results, samples=samples.assign(correct=1.0)),
        "none correct": replace(results, samples=samples.assign(correct=0.0)),
        "one sample": make_results(samples=1, length=(("grpo", 20.0), ("mcpo", 40.0))),
        "one problem": make_results(problems=1),
        "one seed": make_results(seeds=(3,)),
        "one arm": make_results((("grpo", 0.0),)),
        "a missing run": replace(results, samples=samples[(samples["arm"] != "mcpo") | (samples["seed"] != 1)]),
        "no common seed": replace(results, samples=samples[(samples["arm"] == "mcpo") == (samples["seed"] == 1)]),
        "an arm without runs": replace(results, arms=(*results.arms, "tace")),
        "other problems in each seed": make_results(same_problems=False),
        "categories": replace(results, samples=samples.astype(dict.fromkeys(("arm", "set", "problem"), "category"))),
    }[kind]


KINDS = [
    "one length", "a length for each arm", "all correct", "none correct", "one sample", "one problem", "one seed",
    "one arm", "a missing run", "no common seed", "an arm without runs", "other problems in each seed", "categories",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_odd_runs_give_a_section_without_warnings(kind):
    results = odd(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = section(results)
        if kind in {"one length", "one seed"}:  # odd as drawings too
            for plot in whole.plots:
                plot.figure.draw_without_rendering()
    assert whole.tables[0].name == "length"
    assert "nan" not in " ".join(whole.text)
    assert (len(whole.tables) == 1) == (kind in {"one arm", "no common seed"})
    assert not [
        x for table in whole.tables for x in table.frame.select_dtypes("number").to_numpy().flat if np.isinf(x)
    ]


@pytest.fixture(scope="module")
def whole():
    return section(make_results((("grpo", 0.0), ("mcpo", 0.1), ("tace", 0.0))))


def test_the_section_says_that_it_conditions_on_a_consequence_of_the_method(whole):
    assert any("post-treatment" in text for text in whole.text)
    assert any("Only an intervention separates the two" in caveat for caveat in whole.caveats)


def test_the_section_says_of_every_arm_whether_its_length_differs(whole):
    assert [text.split(":")[0] for text in whole.text[1:3]] == ["`mcpo` against `grpo`", "`tace` against `grpo`"]


def test_the_section_says_what_it_lacks(whole):
    assert any("maj@k" in caveat and "not compared" in caveat for caveat in whole.caveats)


def test_tables_name_arms_and_format_columns_that_exist(whole):
    names = [table.name for table in whole.tables]
    assert len(set(names)) == len(names) == 6
    assert all(re.fullmatch("[a-z_]+", name) for name in names)
    for table in whole.tables:
        assert set(table.formats) <= set(table.frame.columns), table.name
        assert set(table.frame["arm"]) - {"grpo"} == {"mcpo", "tace"}
        for column, form in table.formats.items():
            assert all(form.format(value) for value in table.frame[column])


def test_plots_hold_a_line_with_a_band_for_every_arm(whole):
    for plot in whole.plots:
        [panel] = plot.figure.axes
        assert [line.get_label() for line in panel.lines] == ["grpo", "mcpo", "tace"]
        assert all(np.isfinite(band.get_datalim(panel.transData).get_points()).all() for band in panel.collections)
        assert panel.get_xscale() == "log"


def test_confidence_reaches_all_intervals():
    def widths(confidence):
        frames = [table.frame for table in section(make_results(), confidence).tables]
        named = [(frame, low, low.replace("low", "high")) for frame in frames for low in frame if low.endswith("low")]
        return [(frame[high] - frame[low]).dropna().min() for frame, low, high in named]

    narrow, wide = widths(0.8), widths(0.95)
    assert len(wide) == 7
    assert all(low < high for low, high in zip(narrow, wide, strict=True))


def test_compared_leaves_out_the_baseline_and_arms_without_a_common_seed():
    assert compared(make_results()) == ["mcpo"]
    assert compared(odd("no common seed")) == []
    assert compared(odd("an arm without runs")) == ["mcpo"]
