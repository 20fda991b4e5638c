"""Spreads, ranks, renormalisation, permutation and reflection: golden numbers, laws and a loop reference."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_rlvr.functional.credit import (
    WEIGHT_MAPS,
    contrast,
    mean_one,
    midranks,
    permute_rows,
    ramp,
    reflect,
    renormalise,
    spread,
    step,
)
from lightning_rlvr.functional.masking import masked_mean

MARGINS = torch.tensor([[0.98, 0.95, 0.10, 0.99, 0.50, 0.85, 0.20, 0.999]])
SCORES = torch.tensor([[0.0, 0.0, 1.0, 0.0, 0.5, 0.0, 1.0, 0.0]])  # 1 up to .2, 0 from .8 on, (.8 - .5) / .6 = .5
LOGPROBS = torch.tensor([[-0.05, -1.2, -0.02, -2.3, -0.7, -0.001, -0.3, -1.0]])
ABLATED = torch.tensor([[-0.06, -3.2, -0.02, -2.1, -0.7, -0.001, -1.5, -1.0]])
ALL = torch.ones(1, 8, dtype=torch.bool)
LAW = settings(max_examples=40, deadline=None)


def row(*values):
    return torch.tensor([values])


def ragged(seed, rows=6, tokens=9):
    """Random values with ties, a mask with holes, an empty row, a row of one token, garbage outside the mask."""
    g = torch.Generator().manual_seed(seed)
    values = (torch.rand(rows, tokens, generator=g) * 10).round() / 10
    mask = torch.rand(rows, tokens, generator=g) < 0.6
    mask[0] = False
    mask[1] = torch.arange(tokens) == seed % tokens
    garbage = torch.tensor([torch.nan, torch.inf, -torch.inf])[torch.randint(0, 3, values.shape, generator=g)]
    return values.where(mask, garbage), mask


def assert_mean_one(weights, mask, atol=1e-6):
    assert weights.dtype == torch.float32
    assert weights.isfinite().all()
    assert (weights[~mask] == 0).all()
    torch.testing.assert_close(masked_mean(weights, mask), mask.any(1).float(), atol=atol, rtol=0)


# Score maps


@pytest.mark.parametrize("score_map", [ramp, step])
def test_scores_are_zero_one_and_half_at_lo_hi_and_middle(score_map):
    torch.testing.assert_close(score_map(row(0.2, 0.8, 0.5), 0.2, 0.8), row(0.0, 1.0, 0.5), atol=1e-6, rtol=0)
    values = torch.linspace(-1, 2, 301)
    scores = score_map(values, 0.2, 0.8)
    assert (scores.diff() >= 0).all()
    assert set(scores[[0, -1]].tolist()) == {0.0, 1.0}


def test_step_has_three_levels():
    assert step(row(0.1999, 0.2, 0.2001, 0.7999, 0.8, 0.8001), 0.2, 0.8).tolist() == [[0, 0, 0.5, 0.5, 1, 1]]


# Spread: u = f + (1 - f) s, w = u / mean u; with mean score 2.5 / 8 = .3125


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        # mean u = .1 + .9 * .3125 = .38125: .1, 1, .55 over it
        ("ratio", {"floor": 0.1}, (0.2623, 2.6230, 1.4426)),
        # mean u = .2 + .8 * .3125 = .45: .2, 1, .6 over it
        ("ratio", {"floor": 0.2}, (0.4444, 2.2222, 1.3333)),
        # mean u = .5 + .5 * .3125 = .65625: .5, 1, .75 over it
        ("ratio", {"floor": 0.5}, (0.7619, 1.5238, 1.1429)),
        # 1 + s - .3125
        ("additive", {"lam": 1.0}, (0.6875, 1.6875, 1.1875)),
        # s / .3125
        ("pure", {}, (0.0, 3.2, 1.6)),
    ],
)
def test_spread_of_the_worked_example(kind, settings, expected):
    zero, one, half = expected
    weights = spread(1 - ramp(MARGINS, 0.2, 0.8), ALL, kind, **settings)
    torch.testing.assert_close(weights, row(zero, zero, one, zero, half, zero, one, zero), atol=1e-4, rtol=0)
    torch.testing.assert_close(weights.sum(), torch.tensor(8.0))


SPREADS = [("ratio", {"floor": 0.2}), ("ratio", {"floor": 1.0}), ("additive", {"lam": 0.7}), ("pure", {})]


@pytest.mark.parametrize(("kind", "settings"), SPREADS)
@LAW
@given(seed=st.integers(0, 10_000))
def test_spread_has_mean_one_over_the_mask(kind, settings, seed):
    scores, mask = ragged(seed)
    assert_mean_one(spread(scores, mask, kind, **settings), mask)


@pytest.mark.parametrize(("kind", "settings"), SPREADS)
@pytest.mark.parametrize("score", [0.0, 0.1, 1 / 3, 1.0])
def test_spread_of_equal_scores_is_exactly_one(kind, settings, score):
    mask = torch.arange(7) < torch.arange(8)[:, None]  # 0 to 7 valid tokens
    scores = torch.full((8, 7), score).where(mask, torch.nan)
    assert torch.equal(spread(scores, mask, kind, **settings), mask.float())


@pytest.mark.parametrize(("kind", "settings"), SPREADS)
def test_spread_with_no_one_and_two_valid_tokens(kind, settings):
    mask = torch.tensor([[False, False, False], [False, True, False], [True, False, True]])
    weights = spread(torch.tensor([[0.1, 0.4, 0.9]]).expand(3, 3), mask, kind, **settings)
    assert weights[0].tolist() == [0, 0, 0]
    assert weights[1].tolist() == [0, 1, 0]
    assert weights[2].mean() * 3 / 2 == pytest.approx(1)


def test_spread_with_floor_one_is_exactly_one():
    scores, mask = ragged(3)
    assert torch.equal(spread(scores, mask, floor=1.0), mask.float())


@LAW
@given(seed=st.integers(0, 10_000), amount=st.floats(0.01, 1.0))
def test_spread_is_bounded(seed, amount):
    scores, mask = ragged(seed)
    ratio = spread(scores, mask, "ratio", floor=amount)[mask]
    additive = spread(scores, mask, "additive", lam=amount)[mask]
    assert amount - 1e-5 <= ratio.min()
    assert ratio.max() <= 1 / amount * (1 + 1e-5)
    assert 1 - amount - 1e-5 <= additive.min()
    assert additive.max() <= 1 + amount + 1e-5


@LAW
@given(seed=st.integers(0, 10_000), floor=st.floats(0.05, 1.0))
def test_spread_equals_the_loop_over_rows(seed, floor):
    scores, mask = ragged(seed)
    expected = np.zeros(scores.shape)
    for i in range(len(scores)):
        valid = mask[i].numpy()
        u = floor + (1 - floor) * scores[i].double().numpy()[valid]
        expected[i, valid] = u * len(u) / u.sum() if len(u) else u
    np.testing.assert_allclose(spread(scores, mask, floor=floor).numpy(), expected, atol=1e-5)


def test_mean_one_of_long_rows_is_precise():
    weights = torch.rand(2, 30_000) + 0.1
    assert_mean_one(mean_one(weights, torch.ones(2, 30_000, dtype=torch.bool)), torch.ones(2, 30_000) > 0)


@pytest.mark.parametrize("kind", ["ratio", "additive", "pure"])
def test_weights_pass_no_gradient(kind):
    values = torch.rand(1, 8, requires_grad=True)
    for weights in (spread(values, ALL, kind), mean_one(values, ALL)):
        assert not weights.requires_grad
    for how in ("divide", "project"):
        assert not renormalise(values + 0.1, ALL, how).requires_grad
    assert not midranks(values, ALL).requires_grad


# Contrast and ranks


def test_contrast_statistics():
    # e = 3 and -3: k3 = exp(-e) + e - 1 is 2.0498 and exp(3) - 4 = 16.0855, capped at 10
    logprobs, ablated = row(-1.0, -4.0, -1.0), row(-4.0, -1.0, -1.0)
    assert contrast(logprobs, ablated, "signed").tolist() == [[3, -3, 0]]
    assert contrast(logprobs, ablated, "abs").tolist() == [[3, 3, 0]]
    torch.testing.assert_close(contrast(logprobs, ablated, "k3"), row(2.0498, 10.0, 0.0), atol=1e-4, rtol=0)


def test_midranks_of_the_worked_example():
    # e = .01 2 0 -.2 0 0 1.2 0: midranks 6 8 3.5 1 3.5 3.5 7 3.5, u = (midrank - .5) / 8
    expected = row(0.6875, 0.9375, 0.375, 0.0625, 0.375, 0.375, 0.8125, 0.375)
    torch.testing.assert_close(midranks(contrast(LOGPROBS, ABLATED), ALL), expected, atol=0, rtol=0)


@LAW
@given(seed=st.integers(0, 10_000), tie_tol=st.sampled_from([0.0, 1e-4, 0.3, 100.0]))
def test_midranks_average_to_one_half_whatever_the_ties(seed, tie_tol):
    values, mask = ragged(seed)
    ranks = midranks(values, mask, tie_tol)
    torch.testing.assert_close(masked_mean(ranks, mask), mask.any(1).float() / 2, atol=1e-6, rtol=0)
    assert (ranks[~mask] == 0).all()


@LAW
@given(seed=st.integers(0, 10_000))
def test_midranks_do_not_depend_on_increasing_transforms(seed):
    values, mask = ragged(seed)
    for transform in (torch.exp, lambda x: 5 * x - 3, lambda x: x**3):
        assert torch.equal(midranks(transform(values), mask), midranks(values, mask))


def test_midranks_treat_differences_below_the_tolerance_as_ties():
    assert midranks(row(0.0, 1e-5, 1.0, 1.0 + 1e-5), ALL[:, :4]).tolist() == [[0.25, 0.25, 0.75, 0.75]]
    assert midranks(row(0.0, 1e-5, 1.0, 2.0), ALL[:, :4], tie_tol=0).tolist() == [[0.125, 0.375, 0.625, 0.875]]


def test_midranks_tie_numerical_noise_of_either_sign():
    assert midranks(row(-4e-5, 4e-5), ALL[:, :2]).tolist() == [[0.5, 0.5]]


def test_midranks_of_infinite_values_inside_the_mask_ignore_padding():
    mask = torch.tensor([[True, True, False, False]])
    assert midranks(row(math.inf, 0.0, 5.0, math.nan), mask).tolist() == [[0.75, 0.25, 0, 0]]


def test_a_nan_inside_the_mask_stays_visible():
    broken, mask = row(0.0, math.nan), ALL[:, :2]
    assert midranks(broken, mask).isnan().tolist() == [[False, True]]
    for kind in ("ratio", "additive", "pure"):
        assert spread(broken, mask, kind).isnan().all()
    for how in ("divide", "project"):
        assert renormalise(broken, mask, how).isnan().any()


# Weight maps and renormalisation


@pytest.mark.parametrize(
    ("weight_map", "expected"),
    # at u = .75: exp(.5); 1 + .5; 1 + PPF(.75); 2 * .75
    [("exp", 1.6487), ("linear", 1.5), ("gauss", 1.6745), ("power", 1.5)],
)
def test_weight_maps(weight_map, expected):
    ranks = torch.tensor([0.75])
    torch.testing.assert_close(WEIGHT_MAPS[weight_map](ranks, 1.0), torch.tensor([expected]), atol=1e-4, rtol=0)


EVIDENCE_RANKS = midranks(contrast(LOGPROBS, ABLATED), ALL)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        # exp(x) with x = .375 .875 -.25 -.875 -.25 -.25 .625 -.25 clips to 1.455 2 .7788 .5 .7788 .7788 1.8682 .7788;
        # divided by its mean 1.1173
        ("divide", (1.3022, 1.7900, 0.6970, 0.4475, 0.6970, 0.6970, 1.6721, 0.6970)),
        # times c with 2 + .5 + c (1.455 + 1.8682 + 4 * .7788) = 8, so c = 5.5 / 6.4384 = .8542
        ("project", (1.2429, 2.0, 0.6653, 0.5, 0.6653, 0.6653, 1.5959, 0.6653)),
    ],
)
def test_renormalise_of_the_worked_example(how, expected):
    weights = renormalise(WEIGHT_MAPS["exp"](EVIDENCE_RANKS, 1.0), ALL, how)
    torch.testing.assert_close(weights, row(*expected), atol=1e-4, rtol=0)
    torch.testing.assert_close(weights.sum(), torch.tensor(8.0))


@pytest.mark.parametrize("how", ["divide", "project"])
@pytest.mark.parametrize("weight_map", sorted(WEIGHT_MAPS))
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), tau=st.floats(0.1, 3.0))
def test_renormalised_weights_have_mean_one_and_keep_order(weight_map, how, seed, tau):
    values, mask = ragged(seed)
    weights = renormalise(WEIGHT_MAPS[weight_map](midranks(values, mask), tau), mask, how)
    assert_mean_one(weights, mask, atol=2e-6)
    for i in range(len(values)):
        assert (weights[i, mask[i]][values[i, mask[i]].argsort(stable=True)].diff() >= -1e-6).all()


@LAW
@given(seed=st.integers(0, 10_000))
def test_renormalised_weights_are_bounded(seed):
    values, mask = ragged(seed)
    ranks = midranks(values, mask)
    for tau in (1.0, 3.0):
        weights = WEIGHT_MAPS["exp"](ranks, tau)
        divided, projected = (renormalise(weights, mask, how)[mask] for how in ("divide", "project"))
        assert 0.25 - 1e-6 <= divided.min() <= divided.max() <= 4 + 1e-6  # low / high, high / low
        assert 0.5 - 1e-6 <= projected.min() <= projected.max() <= 2 + 1e-6
    # tau = 1, high = 2 >= 1 + tau: the mean of the clipped weights is in [1, 1.1859]
    default = renormalise(WEIGHT_MAPS["exp"](ranks, 1.0), mask)[mask]
    assert 0.4216 - 1e-4 <= default.min() <= default.max() <= 2 + 1e-6


def test_divide_exceeds_the_upper_bound_where_the_clip_is_too_low():
    # tau = 1.5, high = 2 < 2.5, one of ten tokens high: u = .95 and nine .45, weights 2 and exp(-.15) = .8607;
    # mean .9746, so 2 / .9746 = 2.0520
    ranks = midranks(row(*[0.0] * 9, 1.0), torch.ones(1, 10, dtype=torch.bool))
    weights = renormalise(WEIGHT_MAPS["exp"](ranks, 1.5), torch.ones(1, 10, dtype=torch.bool))
    assert weights.max() == pytest.approx(2.0520, abs=1e-4)


def test_divide_attains_its_generic_bound_only_without_ranks():
    # one token 2 and fifteen .5: mean 9.5 / 16 = .59375, 2 / .59375 = 3.3684
    weights = renormalise(row(2.0, *[0.5] * 15), torch.ones(1, 16, dtype=torch.bool))
    assert weights.max() == pytest.approx(3.3684, abs=1e-4)


def test_the_linear_map_within_the_bounds_needs_no_renormalisation():
    weights = WEIGHT_MAPS["linear"](EVIDENCE_RANKS, 0.5)
    for how in ("divide", "project"):
        torch.testing.assert_close(renormalise(weights, ALL, how), weights, atol=1e-6, rtol=0)


def test_the_power_map_puts_four_fifths_of_the_mass_on_two_fifths_of_the_tokens():
    # alpha = ln(1 - .8) / ln(1 - .4) - 1 = 2.1507; over [.6, 1], (1 + alpha) u^alpha integrates to 1 - .6^3.1507 = .8
    mask = torch.ones(1, 1000, dtype=torch.bool)
    ranks = midranks(torch.arange(1000.0)[None], mask)
    weights = renormalise(WEIGHT_MAPS["power"](ranks, 2.1507), mask, low=1e-6, high=10.0)
    assert weights[0, 600:].sum() / 1000 == pytest.approx(0.8, abs=1e-3)


@pytest.mark.parametrize("how", ["divide", "project"])
@pytest.mark.parametrize("weight_map", sorted(WEIGHT_MAPS))
@pytest.mark.parametrize("tau", [0.5, 1.0, 2.1507])
def test_equal_contrasts_give_weights_of_exactly_one(weight_map, how, tau):
    mask = torch.arange(7) < torch.arange(8)[:, None]  # 0 to 7 valid tokens
    ranks = midranks(torch.full((8, 7), 0.3).where(mask, torch.nan), mask)
    assert torch.equal(renormalise(WEIGHT_MAPS[weight_map](ranks, tau), mask, how), mask.float())


@LAW
@given(seed=st.integers(0, 10_000), tau=st.floats(0.1, 3.0))
def test_evidence_weights_equal_the_loop_over_rows(seed, tau):
    values, mask = ragged(seed)
    for how in ("divide", "project"):
        expected = np.zeros(values.shape)
        for i in range(len(values)):
            valid = mask[i].numpy()
            expected[i, valid] = loop_evidence_weights(values[i].double().numpy()[valid], tau, how)
        weights = renormalise(WEIGHT_MAPS["exp"](midranks(values, mask), tau), mask, how)
        np.testing.assert_allclose(weights.numpy(), expected, atol=1e-5)


def loop_evidence_weights(contrasts, tau, how, low=0.5, high=2.0):
    contrasts = [round(e / 1e-4) for e in contrasts]
    shares = [
        (sum(other < e for other in contrasts) + sum(other <= e for other in contrasts)) / (2 * len(contrasts))
        for e in contrasts
    ]
    weights = np.array([math.exp(tau * (2 * share - 1)) for share in shares])
    if not len(weights):
        return weights
    if how == "divide":
        clipped = weights.clip(low, high)
        return clipped / clipped.mean()
    # the sum of clip(w c) is piecewise linear in c with kinks where a weight meets a bound: solve on the right piece
    kinks = np.sort(np.concatenate([low / weights, high / weights]))
    sums = np.array([(weights * c).clip(low, high).mean() for c in kinks])
    return (weights * np.interp(1.0, sums, kinks)).clip(low, high)


def test_raw_contrasts_neither_conserve_mass_nor_keep_signs():
    # counter-example: weights 1 + e sum to 8 + 3.01 and are negative where e < -1
    raw = 1 + contrast(LOGPROBS, ABLATED)
    assert raw.sum().item() == pytest.approx(11.01, abs=1e-4)
    assert 1 + contrast(row(-3.0), row(-1.0)) < 0


# Permutation and reflection


@LAW
@given(seed=st.integers(0, 10_000))
def test_permuted_rows_hold_the_same_valid_values(seed):
    values, mask = ragged(seed)
    permuted = permute_rows(values, mask, torch.arange(len(values)) + seed)
    for i in range(len(values)):
        assert torch.equal(permuted[i, mask[i]].sort().values, values[i, mask[i]].sort().values)
    assert (permuted[~mask] == 0).all()


def test_permutations_reach_every_place_equally_often():
    # 6000 rows of (0, 1, 2): each value is at each place in a third of them, within five standard errors (.0304)
    values = torch.arange(3.0).expand(6000, 3)
    permuted = permute_rows(values, torch.ones(6000, 3, dtype=torch.bool), torch.arange(6000))
    shares = torch.stack([(permuted == value).float().mean(0) for value in range(3)])
    torch.testing.assert_close(shares, torch.full((3, 3), 1 / 3), atol=0.0304, rtol=0)


def test_permutation_does_not_depend_on_padding():
    values, mask, seeds = torch.rand(5, 6), torch.rand(5, 6) < 0.7, torch.arange(5)
    padded = permute_rows(torch.nn.functional.pad(values, (0, 9)), torch.nn.functional.pad(mask, (0, 9)), seeds)
    assert torch.equal(padded[:, :6], permute_rows(values, mask, seeds))


@LAW
@given(seed=st.integers(0, 10_000), shift=st.floats(-1.0, 1.0))
def test_reflection_reverses_the_order_and_keeps_the_mean(seed, shift):
    values, mask = ragged(seed)
    values = values + shift  # of one sign or of both
    reflected = reflect(values, mask)
    assert reflected.isfinite().all()
    assert (reflected[~mask] == 0).all()
    means = [row_[valid].sum() / max(1, valid.sum()) for row_, valid in zip(values, mask, strict=True)]
    torch.testing.assert_close(masked_mean(reflected, mask), torch.stack(means), atol=2e-5, rtol=1e-4)
    for i in range(len(values)):
        assert (reflected[i, mask[i]][values[i, mask[i]].argsort()].diff() <= 1e-5).all()


def test_reflection_of_a_row_whose_reflected_mean_is_zero():
    # max + min - mean = 2 - 1 - 1 = 0: no scaling restores the mean, so 2 * mean - value = 3, 0, 0
    assert reflect(row(-1.0, 2.0, 2.0), ALL[:, :3]).tolist() == [[3, 0, 0]]


@pytest.mark.parametrize("value", [0.0, 0.1, -1 / 3])
def test_reflection_leaves_equal_values_exactly_as_they_are(value):
    values = torch.full((1, 7), value)
    assert torch.equal(reflect(values, ALL[:, :7]), values)


# Degenerate shapes


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
def test_batches_without_rows_or_columns_pass(shape):
    values, mask = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
    seeds = torch.zeros(shape[0], dtype=torch.int64)
    for kind in ("ratio", "additive", "pure"):
        assert spread(values, mask, kind).shape == shape
    for how in ("divide", "project"):
        assert renormalise(midranks(values, mask), mask, how).shape == shape
    assert permute_rows(values, mask, seeds).shape == shape
    assert reflect(values, mask).shape == shape
