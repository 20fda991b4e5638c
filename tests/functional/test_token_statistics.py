"""Margin and entropy of next-token distributions."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_rlvr.functional.statistics import TOKEN_STATISTICS, entropy, margin


def random_logprobs(seed, rows, vocabulary, scale=3.0):
    g = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(rows, vocabulary, generator=g)).log_softmax(-1)


def test_margin_of_the_worked_example():
    # softmax(2, 1.5, 0, -1): 7.3891, 4.4817, 1, .3679 sum to 13.2387, so p = .5581, .3385 and the margin is .2196.
    logits = torch.tensor([[2.0, 1.5, 0.0, -1.0]])
    torch.testing.assert_close(margin(logits.log_softmax(-1)), torch.tensor([0.2196]), atol=5e-5, rtol=0)
    assert margin((logits / 2).log_softmax(-1)) < margin(logits.log_softmax(-1))
    assert torch.allclose(margin((logits + 50).log_softmax(-1)), margin(logits.log_softmax(-1)), atol=1e-6)


def test_margin_is_exactly_zero_on_a_tie_and_exactly_one_without_doubt():
    assert margin(torch.zeros(2, 50).log_softmax(-1)).tolist() == [0.0, 0.0]
    assert margin(torch.tensor([[0.0, -math.inf, -math.inf]])).tolist() == [1.0]


def test_margin_keeps_its_precision_near_one():
    exact = margin(torch.tensor([[16.0, 0.0, -3.0]], dtype=torch.float64).log_softmax(-1))
    got = margin(torch.tensor([[16.0, 0.0, -3.0]]).log_softmax(-1))
    assert abs(got.double() - exact) < 1e-7
    assert 0 < 1 - exact < 3e-7


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    vocabulary=st.sampled_from([2, 3, 16, 31, 32, 33, 47, 100, 257]),
    coarse=st.booleans(),
)
def test_margin_equals_its_definition(seed, vocabulary, coarse):
    logprobs = random_logprobs(seed, 8, vocabulary)
    if coarse:  # many exact ties
        logprobs = logprobs.round().double().log_softmax(-1).float()
    first, second = logprobs.double().sort(descending=True).values[:, :2].exp().unbind(-1)
    torch.testing.assert_close(margin(logprobs).double(), first - second, atol=1e-6, rtol=0)


@pytest.mark.parametrize("columns", [(0, 1), (0, 16), (3, 98), (98, 99), (5, 6 * 16 + 1)])
def test_margin_finds_the_two_largest_wherever_they_are(columns):
    logits = torch.zeros(1, 100)
    logits[0, list(columns)] = torch.tensor([6.0, 5.0])
    first, second = logits.softmax(-1)[0, list(columns)]
    torch.testing.assert_close(margin(logits.log_softmax(-1)), (first - second)[None])


def test_entropy_of_known_distributions():
    # uniform over 3 and 2 tokens: log 3 = 1.0986 and log 2 = .6931; one token: exactly 0.
    probabilities = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    values = entropy(probabilities.log())
    torch.testing.assert_close(values, torch.tensor([1.0986, 0.6931, 0.0]), atol=5e-5, rtol=0)
    assert values[2] == 0


def test_entropy_is_never_negative():
    rounded_up = torch.tensor([[1e-7, -40.0], [0.0, -math.inf]])  # a log-softmax may round to just above 0
    assert (entropy(rounded_up) >= 0).all()
    assert not entropy(rounded_up).signbit().any()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.floats(0.0, 30.0))
def test_entropy_equals_its_definition(seed, scale):
    logprobs = random_logprobs(seed, 4, 200, scale)
    exact = torch.distributions.Categorical(logits=logprobs.double()).entropy()
    torch.testing.assert_close(entropy(logprobs).double(), exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", TOKEN_STATISTICS.names())
def test_statistics_return_one_float32_per_token_and_leave_the_logprobs_alone(name):
    logprobs = random_logprobs(0, 5, 70)
    before = logprobs.clone()
    values = TOKEN_STATISTICS[name](logprobs)
    assert values.shape == (5,)
    assert values.dtype == torch.float32
    assert torch.equal(logprobs, before)


@pytest.mark.parametrize("statistic", [margin, entropy])
def test_a_broken_distribution_stays_visible(statistic):
    logprobs = random_logprobs(0, 2, 70)
    logprobs[1, 40] = math.nan
    assert statistic(logprobs).isnan().tolist() == [False, True]
