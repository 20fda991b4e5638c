"""pass@k and maj@k against enumeration, loops and published numbers."""

import math
from collections import Counter
from itertools import combinations, permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_rlvr.functional.evaluation import majority_at_k, pass_at_k

counts = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))


def one_problem(n, c, k):
    return pass_at_k(torch.tensor([n]), torch.tensor([c]), k).item()


@given(counts)
def test_pass_at_k_is_the_share_of_all_subsets_that_hold_a_correct_sample(drawn):
    n, c, k = drawn
    subsets = list(combinations([True] * c + [False] * (n - c), k))
    assert one_problem(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-14)


@pytest.mark.parametrize(
    ("n", "c", "expected"),
    [
        (32, 1, {1: 1 / 32, 2: 1 / 16, 4: 1 / 8, 8: 1 / 4, 16: 1 / 2, 32: 1}),  # one correct: k / n
        # 1 - C(28, k) / C(32, k), by hand with k = 2: 1 - 28 * 27 / (32 * 31) = 0.2379
        (32, 4, {1: 0.125, 2: 0.2379, 4: 0.4306, 8: 0.7045, 16: 0.9494, 32: 1}),
        (64, 1, {32: 0.5}),
        (8, 3, {4: 0.92857}),  # 1 - C(5, 4) / C(8, 4) = 1 - 5 / 70
        (16, 2, {4: 0.45}),  # 1 - C(14, 4) / C(16, 4) = 1 - 1001 / 1820
    ],
)
def test_pass_at_k_gives_the_known_numbers(n, c, expected):
    assert {k: one_problem(n, c, k) for k in expected} == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(("c", "k"), [(1, 1), (1, 10_000), (3, 2), (5000, 1), (9_999, 2), (7, 5000), (0, 64)])
def test_pass_at_k_keeps_its_digits_with_ten_thousand_samples(c, k):
    n = 10_000
    exact = (math.comb(n, k) - math.comb(n - c, k)) / math.comb(n, k)  # integers of any size
    assert one_problem(n, c, k) == pytest.approx(exact, rel=1e-12, abs=0)


def test_pass_at_1_is_the_share_of_correct_samples_and_pass_at_n_whether_there_is_one():
    n, c = torch.tensor([1, 1, 8, 8, 8]), torch.tensor([0, 1, 0, 3, 8])
    torch.testing.assert_close(pass_at_k(n, c, 1), c.double() / n, rtol=1e-15, atol=0)
    assert pass_at_k(n[2:], c[2:], 8).tolist() == [0, 1, 1]


@settings(max_examples=25)
@given(st.integers(1, 40))
def test_pass_at_k_grows_with_k_and_with_the_number_of_correct_samples(n):
    c = torch.arange(n + 1)
    by_k = torch.stack([pass_at_k(torch.full_like(c, n), c, k) for k in range(1, n + 1)])
    assert (by_k.diff(dim=0) >= -1e-15).all()
    assert (by_k.diff(dim=1) >= -1e-15).all()
    assert by_k.amin() == 0
    assert by_k.amax() == 1


def test_problems_may_differ_in_their_number_of_samples():
    n, c = torch.tensor([5, 9, 4]), torch.tensor([2, 1, 4])
    rows = [one_problem(*row, 3) for row in zip(n.tolist(), c.tolist(), strict=True)]
    assert pass_at_k(n, c, 3).tolist() == rows


def test_one_sample_of_each_problem_says_nothing_about_ten():
    n, c = torch.ones(120, dtype=torch.int64), (torch.arange(120) < 30).long()
    assert pass_at_k(n, c, 1).mean() == 0.25
    with pytest.raises(ValueError, match="`k` must be at most the 1 samples of every problem, got 10"):
        pass_at_k(n, c, 10)


@pytest.mark.parametrize(
    ("n", "c", "k", "message"),
    [
        ([8, 3], [0, 0], 4, "`k` must be at most the 3 samples of every problem, got 4"),
        ([3], [0], 0, "`k` must be at least 1, got 0"),
        ([9, 3], [0, 4], 2, "`num_correct` must be between 0 and the 3 samples of its problem, got 4"),
        ([9, 3], [-1, 0], 2, "`num_correct` must be between 0 and the 9 samples of its problem, got -1"),
    ],
)
def test_impossible_counts_are_refused(n, c, k, message):
    with pytest.raises(ValueError, match=message):
        pass_at_k(torch.tensor(n), torch.tensor(c), k)


def majority_loop(votes, k):
    results = []
    for row in votes:
        blocks = [row[start : start + k] for start in range(0, len(row) // k * k, k)]
        shares = []
        for block in blocks:
            tally = Counter(vote for vote in block if vote != 0)
            winners = [vote for vote, count in tally.items() if count == max(tally.values())]
            shares.append((1 in winners) / len(winners) if winners else 0.0)
        results.append(sum(shares) / len(shares))
    return results


vote = st.sampled_from([0, 1, 1, -3, 2**60, 2**60 + 1])
ballots = st.integers(1, 12).flatmap(
    lambda n: st.tuples(st.lists(st.lists(vote, min_size=n, max_size=n), min_size=1, max_size=4), st.integers(1, n))
)


@given(ballots)
def test_majority_equals_the_count_by_loop(drawn):
    votes, k = drawn
    assert majority_at_k(torch.tensor(votes), k).tolist() == pytest.approx(majority_loop(votes, k), abs=1e-15)


@pytest.mark.parametrize(
    ("votes", "k", "expected"),
    [
        ([1, 1, 5, 6], 4, 1.0),
        ([1, 5, 5, 0], 4, 0.0),
        ([1, 5, 6, 0], 4, 1 / 3),  # three answers tie, each wins a third of the time
        ([1, 0, 0, 0], 4, 1.0),  # no answer is no vote against
        ([0, 0, 0, 0], 4, 0.0),
        ([1, 1, 1, 5, 5, 5, 1], 3, 0.5),  # blocks 111 and 555; the seventh sample is in no block
        ([1, 0, 5, 1], 1, 0.5),  # maj@1 is avg@n
    ],
)
def test_majority_breaks_ties_fairly_and_counts_blocks_alike(votes, k, expected):
    assert majority_at_k(torch.tensor([votes]), k).item() == pytest.approx(expected)


def test_majority_is_unbiased_over_orders_of_the_samples():
    votes = [1, 1, 5, 6, 0, 0]
    subsets = torch.tensor(list(combinations(votes, 3)))
    exact = majority_at_k(subsets, 3).mean()
    orders = torch.tensor(list(permutations(votes)))
    torch.testing.assert_close(majority_at_k(orders, 3).mean(), exact)


def test_majority_of_more_samples_than_there_are_is_refused():
    with pytest.raises(ValueError, match="`k` must be at most the 2 samples of every problem, got 3"):
        majority_at_k(torch.ones(2, 2, dtype=torch.int64), 3)
    with pytest.raises(ValueError, match="`k` must be at least 1, got 0"):
        majority_at_k(torch.ones(2, 2, dtype=torch.int64), 0)
