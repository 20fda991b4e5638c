"""The numbers of an evaluation, by hand and by loop, whoever brings the samples."""

import math
import random
import statistics
import time

import pytest

from lightning_rlvr.evaluation.summary import EvaluationSummary
from lightning_rlvr.verify.base import STATUSES, UNSCORED


def summed_up(sets, num_samples):
    summary = EvaluationSummary(list(sets), num_samples)
    for name, samples in sets.items():
        summary.update(name, samples)
    return summary.compute()


@pytest.fixture
def two_sets(make_sample):
    """Set a: problems with 3 and 0 correct of 4; set b: one with 2 of 4, one timeout."""
    a = [make_sample("p", number, tokens=10 * number) for number in range(3)]
    a.append(make_sample("p", 3, "wrong", "2", tokens=30, truncated=True))
    a += [make_sample("q", number, "no_answer", None, tokens=100, truncated=True) for number in range(3)]
    a.append(make_sample("q", 3, "wrong", "2", tokens=100))
    statuses = ("correct", "wrong", "timeout", "correct")
    b = [make_sample("p", number, status, tokens=7) for number, status in enumerate(statuses)]
    return {"a": a, "b": b}


def test_the_numbers_of_two_small_sets_are_those_by_hand(two_sets):
    results = summed_up(two_sets, 4)
    assert list(results) == ["a", "b", "micro", "macro"]
    a, b, micro, macro = results.values()
    assert a == pytest.approx(
        {
            "accuracy": 3 / 8,
            "accuracy_se": 3 / 8,  # rates 3/4 and 0: sd = 3/4 / sqrt(2), over sqrt(2) problems
            "pass@2": 0.5,  # 1 - C(1, 2) / C(4, 2) = 1 and 0
            "pass@4": 0.5,
            "maj@2": 0.375,  # p: blocks 11 and 1x, x ties: 1 and 1/2; q: nobody or wrong
            "maj@4": 0.5,
            "reward": 3 / 8,
            "length": 460 / 8,
            "length_p10": 7,  # of 0 10 20 30 100 100 100 100 at 0.7
            "length_p50": 65,
            "length_p90": 100,
            "length_correct": 10,
            "truncated": 4 / 8,
            "wrong": 2 / 8,
            "no_answer": 3 / 8,
            "timeout": 0,
            "error": 0,
            "abstained": 0,
            "num_problems": 2,
            "num_samples": 4,
        }
    )
    assert math.isnan(b.pop("accuracy_se"))
    assert b["reward"] == pytest.approx(2 / 3)
    assert (b["accuracy"], b["timeout"], b["maj@4"], b["maj@2"], b["pass@2"]) == pytest.approx(
        (0.5, 0.25, 1.0, 0.75, 5 / 6)  # the timeout does not vote; pass@2: 1 - C(2, 2) / C(4, 2)
    )
    assert micro["accuracy"] == pytest.approx(5 / 12)
    assert micro["length"] == pytest.approx((460 + 28) / 12)
    assert (micro["num_problems"], macro["num_problems"], macro["num_samples"]) == (3, 3, 4)
    for name, value in b.items():
        if name != "num_problems":
            assert macro[name] == pytest.approx((a[name] + value) / 2), name
    assert math.isnan(macro["accuracy_se"])
    assert all(result.keys() == a.keys() for result in (micro, macro))


def test_errors_of_independent_sets_add_in_squares(two_sets):
    twice = {"a": two_sets["a"], "c": two_sets["a"]}
    assert summed_up(twice, 4)["macro"]["accuracy_se"] == pytest.approx(3 / 8 / math.sqrt(2))


def test_shares_of_the_statuses_sum_to_one(two_sets):
    for result in summed_up(two_sets, 4).values():
        assert result["accuracy"] + sum(result[s] for s in STATUSES if s != "correct") == pytest.approx(1)


def test_order_batches_and_repetition_of_samples_change_nothing(two_sets):
    summary = EvaluationSummary(["a", "b"], 4)
    rng = random.Random(0)
    rows = [(name, sample) for name, samples in two_sets.items() for sample in samples] * 2
    rng.shuffle(rows)
    for name, sample in rows:
        summary.update(name, [sample])
        summary.update(name, [])
    expected = summed_up(two_sets, 4)
    for name, result in summary.compute().items():
        assert result == pytest.approx(expected[name], rel=1e-14, nan_ok=True)


@pytest.mark.parametrize(("n", "ks"), [(1, []), (2, [2]), (3, [2, 3]), (8, [2, 4, 8]), (12, [2, 4, 8, 12])])
def test_k_runs_over_powers_of_two_and_n(make_sample, n, ks):
    result = summed_up({"a": [make_sample(number=number) for number in range(n)]}, n)["a"]
    assert [name for name in result if "@" in name] == [f"{kind}@{k}" for kind in ("pass", "maj") for k in ks]


def test_nothing_correct_and_nothing_scored_are_nan_and_are_left_out_of_macro(make_sample, two_sets):
    results = summed_up({"a": two_sets["a"], "b": [make_sample("z", number, "error") for number in range(4)]}, 4)
    assert math.isnan(results["b"]["reward"])
    assert math.isnan(results["b"]["length_correct"])
    assert results["b"]["accuracy"] == results["b"]["maj@4"] == 0
    assert results["macro"]["reward"] == results["a"]["reward"]
    assert results["macro"]["accuracy"] == pytest.approx(3 / 16)


def test_there_is_no_majority_where_the_verifier_extracts_no_answer(make_sample):
    samples = [make_sample(number=0, answer=None), make_sample(number=1, status="wrong", answer=None)]
    result = summed_up({"a": samples}, 2)["a"]
    assert math.isnan(result["maj@2"])
    assert result["pass@2"] == 1


def test_problems_that_share_an_id_in_two_sets_are_two_problems(make_sample):
    results = summed_up({"a": [make_sample()], "b": [make_sample(status="wrong")]}, 1)
    assert (results["a"]["accuracy"], results["b"]["accuracy"], results["micro"]["num_problems"]) == (1, 0, 2)


def test_sets_without_samples_are_left_out(make_sample):
    assert list(summed_up({"a": [], "b": [make_sample()]}, 1)) == ["b"]


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
def test_no_samples_at_all_are_no_results():
    assert EvaluationSummary(["a"], 1).compute() == {}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: EvaluationSummary(["a", "macro"], 1),
            r"`set_names` must be other than micro and macro, got \('a', 'm",
        ),
        (lambda: EvaluationSummary(["a"], 0), "`num_samples` must be >= 1, got 0"),
        (lambda: EvaluationSummary(["a", "b"], 1).update("c", []), "`set_name` must be one of a, b, got 'c'"),
    ],
)
def test_sets_that_are_not_meant_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_fifty_thousand_samples_take_less_than_a_second_and_agree_with_a_loop(make_sample):
    rng, n = random.Random(0), 32
    summary, by_problem = EvaluationSummary(["a"], n), []
    for problem in range(1550):
        samples = [
            make_sample(str(problem), number, rng.choice(STATUSES), str(rng.randrange(3)), rng.randrange(2000))
            for number in range(n)
        ]
        summary.update("a", samples)
        by_problem.append(samples)
    started = time.process_time()
    result = summary.compute()["a"]
    assert time.process_time() - started < 1
    rates = [sum(sample.status == "correct" for sample in samples) / n for samples in by_problem]
    everything = [sample for samples in by_problem for sample in samples]
    assert result["accuracy"] == pytest.approx(statistics.mean(rates))
    assert result["accuracy_se"] == pytest.approx(statistics.stdev(rates) / len(rates) ** 0.5)
    assert result["length"] == pytest.approx(statistics.mean(sample.tokens for sample in everything))
    scored = [sample.reward for sample in everything if sample.status not in UNSCORED]
    assert result["reward"] == pytest.approx(statistics.mean(scored))
