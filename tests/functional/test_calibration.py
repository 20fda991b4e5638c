import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_rlvr.functional.calibration import (
    centered,
    extend_reservoir,
    normal_scores,
    ot_normal,
    population_scores,
    rloo,
    rms_gain,
    score_cap,
    untied_std,
    zscore,
)
from lightning_rlvr.functional.groups import group_count, group_ranks, group_sum, is_constant_group

NAN = math.nan
POSITIONS = ("hazen", "bary", "vdw", "blom")
GRADED = st.lists(st.integers(-20, 20), min_size=2, max_size=64)


def one_group(rewards):
    rewards = torch.as_tensor(rewards)
    return rewards, torch.zeros(len(rewards), dtype=torch.int64)


def close(actual, expected, atol=1e-4):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), atol=atol, rtol=0)


def scores_of(rewards, position="hazen"):
    """Normal scores in float64, before they are rounded to float32."""
    rewards, groups = one_group(torch.as_tensor(rewards, dtype=torch.float64))
    return normal_scores(*group_ranks(rewards, groups), group_count(rewards, groups), position)


# z-score, eps -> 0: n = 4 with one correct, mean 1/4, ddof-1 variance (9/16 + 3/16) / 3 = 1/4, so (1 - 1/4) / (1/2).
@pytest.mark.parametrize("rewards", [torch.tensor([300.0, 0, 0, 0]).half(), torch.tensor([1, 0, 0, 0])])
def test_zscore_of_half_precision_and_integer_rewards_does_not_overflow(rewards):
    close(zscore(*one_group(rewards), eps=0.0), [1.5, -0.5, -0.5, -0.5])


@pytest.mark.parametrize("eps", [1e-8, 1e-4])
@pytest.mark.parametrize(
    "rewards", [torch.full((7,), 0.7), torch.full((7,), 0.1), torch.tensor([5.0, 5, 5, 5]).half(), torch.ones(8)]
)
def test_equal_rewards_give_exact_zeros(rewards, eps):
    rewards, groups = one_group(rewards)
    assert zscore(rewards, groups, eps=eps).tolist() == [0.0] * len(rewards)
    assert is_constant_group(rewards, groups).all()


def test_group_left_with_one_row_has_advantage_zero_beside_a_full_group():
    rewards, groups = torch.tensor([1.0, 0, 0, 0, 1]), torch.tensor([0, 0, 0, 0, 1])
    close(zscore(rewards, groups, eps=0.0), [1.5, -0.5, -0.5, -0.5, 0])


def test_zscore_groups_interleaved_rows_by_their_number():
    # (1, 0): mean 1/2, ddof-1 std sqrt(1/2); (0, 0) is constant.
    close(zscore(torch.tensor([1.0, 0, 0, 0]), torch.tensor([3, 8, 3, 8]), eps=0.0), [0.70711, 0, -0.70711, 0])


def test_opposite_reward_functions_cancel_to_a_constant_group():
    first, second = torch.tensor([1.0, 0, 1, 0]), torch.tensor([0.0, 1, 0, 1])
    rewards, groups = one_group(first + second)
    assert zscore(rewards, groups).tolist() == [0.0] * 4
    assert is_constant_group(rewards, groups).float().mean() == 1


def test_unscored_row_stays_out_of_the_moments():
    # Over (1, 0, 1): mean 2/3, ddof-1 variance (1/9 + 4/9 + 1/9) / 2 = 1/3.
    close(zscore(*one_group([1.0, NAN, 0, 1]), eps=0.0), [0.57735, 0, -1.15470, 0.57735])


def test_zscore_golden_with_default_eps():
    # n = 8, one correct: std sqrt(7/8 / 7) = 0.353553; 0.875 / 0.353653 and -0.125 / 0.353653.
    close(zscore(*one_group([1.0] + [0.0] * 7)), [2.47418] + [-0.35345] * 7, atol=1e-5)


def test_zscore_ddof_zero_divides_by_the_population_deviation():
    close(zscore(*one_group([1.0, 0, 0, 0]), ddof=0, eps=0.0), [3**0.5] + [-(3**-0.5)] * 3)


@given(st.lists(st.integers(-9, 9), min_size=2, max_size=12))
@settings(max_examples=40, deadline=None)
def test_rloo_subtracts_the_mean_of_the_others(rewards):
    expected = [r - (sum(rewards) - r) / (len(rewards) - 1) for r in rewards]
    close(rloo(*one_group([float(r) for r in rewards])), expected, atol=1e-5)


@pytest.mark.parametrize("function", [centered, rloo, zscore, ot_normal])
@pytest.mark.parametrize("infinity", [math.inf, -math.inf])
def test_infinite_reward_is_an_error_that_names_the_row(function, infinity):
    with pytest.raises(ValueError, match=r"`rewards` must be finite.*\[1\]"):
        function(*one_group([0.0, infinity]))


@pytest.mark.parametrize("function", [centered, rloo, zscore, ot_normal])
def test_no_rows_give_no_advantages(function):
    assert function(torch.empty(0), torch.empty(0, dtype=torch.int64)).shape == (0,)


# Mean of ndtri((j - 1/2) / 8) over the block of ties, j from 1 to 8: quantiles +-1.5341, +-.8871, +-.4888, +-.1573.
@pytest.mark.parametrize(
    ("correct", "wrong_score", "correct_score"),
    [(1, -0.2192, 1.5341), (2, -0.4035, 1.2106), (3, -0.5820, 0.9700), (4, -0.7668, 0.7668), (7, -1.5341, 0.2192)],
)
def test_ot_normal_golden_of_binary_groups(correct, wrong_score, correct_score):
    rewards = [0.0] * (8 - correct) + [1.0] * correct
    close(ot_normal(*one_group(rewards)), [wrong_score] * (8 - correct) + [correct_score] * correct)


# n (phi(ndtri(L/n)) - phi(ndtri(R/n))) / (R - L); one correct of 8: 8 phi(1.1503) = 8 x .2059.
@pytest.mark.parametrize(
    ("correct", "wrong_score", "correct_score"), [(1, -0.2353, 1.6468), (2, -0.4237, 1.2711), (4, -0.7979, 0.7979)]
)
def test_barycentric_golden_of_binary_groups(correct, wrong_score, correct_score):
    rewards = [0.0] * (8 - correct) + [1.0] * correct
    close(ot_normal(*one_group(rewards), position="bary"), [wrong_score] * (8 - correct) + [correct_score] * correct)


def test_ot_normal_golden_of_three_values():
    rewards = [0.0, 0, 0.5, 1, 1, 1, 0.5, 0]
    hazen, bary = ot_normal(*one_group(rewards)), ot_normal(*one_group(rewards), position="bary")
    close(hazen, [-0.97, -0.97, 0, 0.97, 0.97, 0.97, 0, -0.97], atol=1e-3)
    close(bary, [-1.0112, -1.0112, 0, 1.0112, 1.0112, 1.0112, 0, -1.0112])
    assert hazen[2] == 0  # the block in the middle is at zero exactly


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ("hazen", [-1.1503, -0.3186, 0.3186, 1.1503]),  # ndtri of 1/8, 3/8, 5/8, 7/8
        ("vdw", [-0.8416, -0.2533, 0.2533, 0.8416]),  # ndtri of 1/5 .. 4/5
        ("blom", [-1.0491, -0.2993, 0.2993, 1.0491]),  # ndtri of .625/4.25, 1.625/4.25, ...
        ("bary", [-1.2711, -0.3247, 0.3247, 1.2711]),  # 4 phi(ndtri(1/4)) = 1.2711; 4 (phi(0) - .31778) = .3247
    ],
)
def test_distinct_rewards_get_the_quantiles_of_their_positions(position, expected):
    close(ot_normal(*one_group([1.0, 2, 3, 4]), position=position), expected)


@pytest.mark.parametrize("position", POSITIONS)
def test_sixty_four_distinct_rewards_are_finite_centered_and_strictly_increasing(position):
    advantages = ot_normal(*one_group(torch.arange(64.0)), position=position)
    assert advantages.isfinite().all()
    assert advantages.diff().min() > 0
    assert abs(advantages.sum()) < 1e-5


@pytest.mark.parametrize("position", POSITIONS)
@given(rewards=GRADED)
@settings(max_examples=25, deadline=None)
def test_scores_sum_to_zero_whatever_the_ties(position, rewards):
    assert abs(scores_of(rewards, position).sum()) < 1e-9


def test_midranks_would_break_the_sum_that_block_means_keep():
    # The tempting shortcut Phi^-1((midrank - .5) / n): one correct of 8 gives 1.5341 and -.1573, mean +.0541.
    rewards, groups = one_group([0.0] * 7 + [1.0])
    less, less_or_equal = group_ranks(rewards, groups)
    midranks = torch.special.ndtri((less + less_or_equal).double() / 16)
    assert midranks.mean().item() == pytest.approx(0.0541, abs=1e-4)


@pytest.mark.parametrize("position", POSITIONS)
@given(rewards=GRADED)
@settings(max_examples=25, deadline=None)
def test_reversing_the_order_negates_every_score_exactly(position, rewards):
    assert scores_of([-r for r in rewards], position).equal(-scores_of(rewards, position))


@pytest.mark.parametrize(
    "transform", [lambda r: r.exp(), lambda r: r**3, lambda r: 5 * r - 2], ids=["exp", "cube", "ax+b"]
)
@given(rewards=st.lists(st.integers(-8, 8), min_size=2, max_size=16))
@settings(max_examples=25, deadline=None)
def test_increasing_transforms_leave_ot_normal_unchanged(transform, rewards):
    rewards, groups = one_group(torch.tensor(rewards) / 4)
    expected = ot_normal(rewards, groups, tie_tol=0)
    assert ot_normal(transform(rewards), groups, tie_tol=0).equal(expected)


@given(rewards=st.lists(st.sampled_from([0.0, 0.5, 1.0, -2.0, 1e30]), min_size=2, max_size=64))
@settings(max_examples=40, deadline=None)
def test_no_outlier_passes_the_cap(rewards):
    n = len(rewards)
    cap = torch.special.ndtri(torch.tensor(1 - 0.5 / n, dtype=torch.float64)).item()
    assert scores_of(rewards).abs().max() <= cap + 1e-12
    assert cap <= math.sqrt(2 * math.log(n))
    assert ot_normal(*one_group(torch.tensor(rewards))).abs().max() <= cap + 1e-6


# Largest scores: hazen ndtri(1 - 1/(2n)), bary n phi(ndtri(1 - 1/n)), vdw ndtri(n / (n+1)), blom ndtri((n - 3/8) /
# (n + 1/4)). c_n for vdw and n = 8: scores 1.2206, .7647, .4307, .1397, mean square 2.2797 / 4 = .7549^2.
@pytest.mark.parametrize(
    ("n", "position", "cap", "std"),
    [
        (2, "hazen", 0.6745, 0.6745),
        (8, "hazen", 1.5341, 0.9225),
        (64, "hazen", 2.4176, 0.9901),
        (2, "bary", 0.7979, 0.7979),
        (8, "bary", 1.6468, 0.9721),
        (64, "bary", 2.5102, 0.9980),
        (8, "vdw", 1.2206, 0.7549),
        (8, "blom", 1.4342, 0.8704),
    ],
)
def test_cap_and_untied_deviation_golden(n, position, cap, std):
    rewards, groups = one_group(torch.ones(n))
    assert score_cap(torch.tensor([n]), position).item() == pytest.approx(cap, abs=1e-4)
    assert untied_std(rewards, groups, position)[0].item() == pytest.approx(std, abs=1e-4)
    untied = ot_normal(*one_group(torch.arange(float(n))), position=position, scale="c_n")
    assert untied.std(correction=0).item() == pytest.approx(1, abs=1e-6)


def test_rounding_noise_is_a_tie():
    noisy = torch.tensor([0, 1e-9, 1, 1 + 1e-9], dtype=torch.float64)
    assert ot_normal(*one_group(noisy)).equal(ot_normal(*one_group([0.0, 0, 1, 1])))
    near_a_half_step = torch.tensor([0.1234565, 0.1234565 + 1e-9, 1.1234565], dtype=torch.float64)
    assert ot_normal(*one_group(near_a_half_step)).equal(ot_normal(*one_group([0.0, 0, 1])))
    assert not ot_normal(*one_group(noisy), tie_tol=0).equal(ot_normal(*one_group([0.0, 0, 1, 1])))


def test_tie_tol_is_relative_to_the_range_of_the_group():
    rewards, groups = torch.tensor([0.0, 0.4, 100.0, 0.0, 0.4, 1.0]), torch.tensor([0, 0, 0, 1, 1, 1])
    advantages = ot_normal(rewards, groups, tie_tol=1e-2)
    assert advantages[0] == advantages[1]
    assert advantages[3] < advantages[4]


def test_continuous_rewards_of_any_law_have_the_same_moments():
    # n = 8: the scores are a permutation of one fixed set, variance c_8^2 = .9225^2 = .8511; z-score moments differ.
    g = torch.Generator().manual_seed(0)
    groups = torch.arange(4000).repeat_interleave(8)
    normal = torch.randn(32000, generator=g, dtype=torch.float64)
    laws = {"uniform": torch.special.ndtr(normal), "lognormal": (3 * normal).exp()}
    scores = {name: ot_normal(rewards, groups, tie_tol=0) for name, rewards in laws.items()}
    assert scores["uniform"].view(4000, 8).sort().values.equal(scores["lognormal"].view(4000, 8).sort().values)
    assert scores["uniform"].var().item() == pytest.approx(0.8511, abs=2e-3)
    standard = {name: zscore(rewards, groups).double() for name, rewards in laws.items()}
    kurtosis = {name: ((z**4).mean() / (z**2).mean() ** 2).item() for name, z in standard.items()}
    assert kurtosis["lognormal"] - kurtosis["uniform"] > 1


def test_population_scores_equal_group_scores_when_the_group_is_the_sample():
    rewards, groups = one_group([0.0, 2, 2, 5, 1])
    expected = ot_normal(rewards, groups)
    torch.testing.assert_close(population_scores(rewards, rewards).float(), expected)


def test_population_scores_are_bounded_and_strict_where_the_sample_tells_apart():
    sample = torch.arange(0.0, 20.0)
    rewards = torch.tensor([-1e9, 0, 0.5, 1, 18.5, 19, 1e9])
    scores = population_scores(rewards, sample)
    assert scores.diff().min() > 0
    assert scores.abs().max() <= score_cap(torch.tensor(21))


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 2)), min_size=1, max_size=20), st.data())
@settings(max_examples=40, deadline=None)
def test_gain_keeps_sign_zero_center_and_cap(rows, data):
    rewards, groups = torch.tensor([r for r, _ in rows]), torch.tensor([g for _, g in rows])
    sigma = torch.full((len(rows),), data.draw(st.sampled_from([0.1, 0.5, 2.0, NAN])), dtype=torch.float64)
    scores = ot_normal(rewards, groups)
    equalized = scores * rms_gain(scores, rewards, groups, sigma)
    assert equalized.sign().equal(scores.sign())
    assert group_sum(equalized, groups).abs().max() < 1e-5
    assert (equalized.abs() <= score_cap(group_count(rewards, groups)).nan_to_num(0) + 1e-6).all()
    assert equalized.equal(scores) or not sigma.isnan().any()


def test_gain_is_one_scalar_that_reaches_the_target_or_the_cap():
    # c_8 = .9225, sigma = .6. Four correct: .9225 / .6 = 1.5376 < 1.5341 / .7668 = 2.0007. One correct: at the cap.
    rewards = torch.tensor([1.0] * 4 + [0.0] * 4 + [1.0] + [0.0] * 7)
    groups = torch.tensor([0] * 8 + [1] * 8)
    gain = rms_gain(ot_normal(rewards, groups), rewards, groups, torch.full((16,), 0.6))
    close(gain, [1.5376] * 8 + [1.0] * 8, atol=2e-4)


def test_reservoir_is_the_same_for_any_split_and_row_order():
    g = torch.Generator().manual_seed(0)
    rewards, seeds = torch.rand(100, generator=g), torch.arange(100)
    whole = extend_reservoir(torch.empty(2, 0), rewards, seeds, size=10)
    parts = torch.empty(2, 0)
    for rows in torch.randperm(100, generator=g).split(17):
        parts = extend_reservoir(parts, rewards[rows], seeds[rows], size=10)
    assert parts.equal(whole)
    assert whole.shape == (2, 10)
    assert whole[0].diff().min() > 0


def test_reservoir_of_neighbouring_seeds_does_not_prefer_early_rows():
    kept = extend_reservoir(torch.empty(2, 0), torch.arange(4000.0), torch.arange(4000), size=400)[1]
    assert kept.mean().item() == pytest.approx(2000, abs=200)  # standard error 4000 / sqrt(12 x 400) = 58
