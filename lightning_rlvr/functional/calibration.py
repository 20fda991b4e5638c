"""Reward calibration: raw rewards of ragged groups to advantages."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from lightning_rlvr.functional.groups import (
    group_count,
    group_max,
    group_mean,
    group_min,
    group_ranks,
    group_std,
    is_constant_group,
)
from lightning_rlvr.functional.random import uniform

Position = Literal["hazen", "bary", "vdw", "blom"]
Scale = Literal["none", "c_n"]

_RESERVOIR_STREAM = -2  # sampling uses streams from 0 up, permuted credit -1: no draw may depend on another
# Plotting positions (j - a) / (n + 1 - 2a) of the j-th of n sorted rewards.
_OFFSET: dict[Position, float] = {"hazen": 0.5, "vdw": 0.0, "blom": 0.375}


def check_rewards(rewards: Tensor) -> Tensor:
    """The rewards in float64, NaN (no score) included.

    Raises:
        ValueError: A reward is infinite.

    Example:
        >>> check_rewards(torch.tensor([0.5, torch.nan]))
        tensor([0.5000,    nan], dtype=torch.float64)
    """
    infinite = rewards.isinf()
    if infinite.any():
        rows = infinite.nonzero().flatten().tolist()
        raise ValueError(f"`rewards` must be finite, or NaN where there is no score, got infinity in rows {rows}")
    return rewards.double()


def signal_only(advantages: Tensor, rewards: Tensor, group_index: Tensor) -> Tensor:
    """The advantages in float32 ``[B]``, exactly 0 for rows without a score and for constant groups.

    Example:
        >>> signal_only(torch.tensor([1e-9, -1e-9]), torch.tensor([0.7, 0.7]), torch.tensor([0, 0]))
        tensor([0., 0.])
    """
    silent = rewards.isnan() | is_constant_group(rewards, group_index)
    return advantages.masked_fill(silent, 0).float()


def centered(rewards: Tensor, group_index: Tensor) -> Tensor:
    """Reward minus the mean of its group: the advantage of Dr. GRPO, arXiv:2503.20783.

    Args:
        rewards: ``[B]`` raw scores; NaN = no score.
        group_index: ``[B]`` int64.

    Returns:
        ``[B]`` float32; mean 0 in every group, exactly 0 for NaN rows and constant groups.

    Raises:
        ValueError: A reward is infinite.

    Example:
        >>> centered(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([0, 0, 0, 0]))
        tensor([ 0.7500, -0.2500, -0.2500, -0.2500])
    """
    values = check_rewards(rewards)
    return signal_only(values - group_mean(values, group_index), values, group_index)


def rloo(rewards: Tensor, group_index: Tensor) -> Tensor:
    """Reward minus the mean of the *other* rows of its group, arXiv:2402.14740: ``n / (n - 1)`` times ``centered``.

    Args:
        rewards: ``[B]`` raw scores; NaN = no score.
        group_index: ``[B]`` int64.

    Returns:
        ``[B]`` float32; mean 0 in every group, exactly 0 for NaN rows and constant groups.

    Raises:
        ValueError: A reward is infinite.

    Example:
        >>> rloo(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([0, 0, 0, 0]))
        tensor([ 1.0000, -0.3333, -0.3333, -0.3333])
    """
    n = group_count(rewards, group_index)
    return centered(rewards, group_index) * n / (n - 1).clamp(min=1)


def zscore(rewards: Tensor, group_index: Tensor, ddof: int = 1, eps: float = 1e-4) -> Tensor:
    """Standardized reward of GRPO, ``(r - mean) / (std + eps)`` in each group; arXiv:2402.03300 section 4.1.2.

    Args:
        rewards: ``[B]`` raw scores; NaN = no score.
        group_index: ``[B]`` int64.
        ddof: Degrees of freedom taken from the standard deviation.
        eps: Added to the standard deviation, in units of reward.

    Returns:
        ``[B]`` float32; mean 0 in every group, exactly 0 for NaN rows and constant groups.

    Raises:
        ValueError: A reward is infinite.

    Example:
        >>> zscore(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([0, 0, 0, 0]))
        tensor([ 1.4997, -0.4999, -0.4999, -0.4999])
    """
    values = check_rewards(rewards)
    deviations = values - group_mean(values, group_index)
    return signal_only(deviations / (group_std(values, group_index, ddof) + eps), values, group_index)


def _upper_sum(number: Tensor, count: Tensor, position: Position) -> Tensor:
    """Sum of the ``n - m`` highest of n normal scores, float64; by symmetry also that of the m highest."""
    tail = torch.minimum(number, count - number)
    if position == "bary":
        quantile: Tensor = torch.special.ndtri(tail.double() / count)
        return count * (-0.5 * quantile**2).exp() / math.sqrt(2 * math.pi)
    offset = _OFFSET[position]
    sizes, row = torch.unique(count, return_inverse=True)
    sizes = sizes.cpu()  # a cumulative sum on a GPU is not deterministic
    j = torch.arange(1, max(sizes.tolist(), default=0) // 2 + 1, dtype=torch.float64)
    scores = torch.special.ndtri((j - offset) / (sizes[:, None] + 1 - 2 * offset))
    sums = torch.cat([scores.new_zeros(len(sizes), 1), -scores.cumsum(1)], 1)
    return sums.to(count.device)[row, tail]


def normal_scores(less: Tensor, less_or_equal: Tensor, count: Tensor, position: Position = "hazen") -> Tensor:
    """Standard normal score of the block of ties at sorted positions ``less + 1 .. less_or_equal`` of ``count``.

    ``hazen``, ``vdw`` and ``blom`` average ``ndtri((j - a) / (n + 1 - 2a))`` with a = 1/2, 0, 3/8 over the block;
    ``bary`` is the mean of the normal law over the block's share of probability, the barycentric projection of the
    optimal transport plan. Laws: the scores of a group sum to 0 whatever the ties, and reversing the order negates
    every score, because each rule is a difference of one symmetric function of the position.

    Args:
        less: int64, rows of the population that are less.
        less_or_equal: int64, same shape, rows that are less or equal.
        count: int64, same shape, size of the population.
        position: Rule for the score of a sorted position.

    Returns:
        float64, same shape; NaN for an empty block.

    Example:
        >>> normal_scores(torch.tensor([0, 7]), torch.tensor([7, 8]), torch.tensor([8, 8]))
        tensor([-0.2192,  1.5341], dtype=torch.float64)
    """
    scores = _upper_sum(less, count, position) - _upper_sum(less_or_equal, count, position)
    return scores / (less_or_equal - less)


def score_cap(count: Tensor, position: Position = "hazen") -> Tensor:
    """Largest normal score that a group of ``count`` rows can hold (float64); ``ndtri(1 - 1 / (2n))`` for hazen.

    Example:
        >>> score_cap(torch.tensor([2, 8]))
        tensor([0.6745, 1.5341], dtype=torch.float64)
    """
    return normal_scores(count - 1, count, count, position)


def untied_std(rewards: Tensor, group_index: Tensor, position: Position = "hazen") -> Tensor:
    """The constant c_n: standard deviation of a group's normal scores if no two rewards were tied.

    Args:
        rewards: ``[B]`` raw scores; NaN rows are not counted.
        group_index: ``[B]`` int64.
        position: Rule of the scores.

    Returns:
        ``[B]`` float64, without the correction for degrees of freedom; NaN for a group without scored rows.

    Example:
        >>> untied_std(torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.tensor([0, 0, 0, 0]))
        tensor([0.8440, 0.8440, 0.8440, 0.8440], dtype=torch.float64)
    """
    row_number = torch.arange(len(rewards), device=rewards.device).double().masked_fill(rewards.isnan(), torch.nan)
    scores = normal_scores(*group_ranks(row_number, group_index), group_count(rewards, group_index), position)
    return group_mean(scores**2, group_index).sqrt()


def _snap(values: Tensor, low: Tensor, high: Tensor, tie_tol: float) -> Tensor:
    """Values on a grid of ``tie_tol`` times the range, so that what rounding pulled apart is tied again."""
    if tie_tol == 0:
        return values
    step = (tie_tol * (high - low)).clamp_min(torch.finfo(values.dtype).tiny)
    return ((values - low) / step).round()


def ot_normal(
    rewards: Tensor,
    group_index: Tensor,
    position: Position = "hazen",
    tie_tol: float = 1e-6,
    scale: Scale = "none",
) -> Tensor:
    """Rewards moved to a standard normal law by the monotone (optimal transport) map of each group.

    The advantage is a function of ranks: any increasing transform of the rewards leaves it unchanged, up to
    ``tie_tol``, and no outlier passes ``score_cap``. The population map is ``ndtri(F(r))``; ties share the mean score
    of their block.

    Args:
        rewards: ``[B]`` raw scores; NaN = no score.
        group_index: ``[B]`` int64; pass task numbers to rank whole tasks.
        position: Rule for the score of a sorted position, see ``normal_scores``.
        tie_tol: Rewards are rounded to this share of their group's range before they are ranked; 0 = no rounding.
        scale: ``c_n`` divides by ``untied_std``: unit variance in a group without ties.

    Returns:
        ``[B]`` float32; mean 0 in every group, exactly 0 for NaN rows and constant groups.

    Raises:
        ValueError: A reward is infinite.

    Example:
        >>> ot_normal(torch.tensor([1.0, 2.0, 3.0, 400.0]), torch.tensor([0, 0, 0, 0]))
        tensor([-1.1503, -0.3186,  0.3186,  1.1503])
    """
    values = check_rewards(rewards)
    snapped = _snap(values, group_min(values, group_index), group_max(values, group_index), tie_tol)
    scores = normal_scores(*group_ranks(snapped, group_index), group_count(values, group_index), position)
    if scale == "c_n":
        scores = scores / untied_std(values, group_index, position)
    return signal_only(scores, values, group_index)


def population_scores(rewards: Tensor, sample: Tensor, position: Position = "hazen", tie_tol: float = 1e-6) -> Tensor:
    """Normal scores of rewards in the law of another sample.

    A reward that the sample holds gets the score of its block there, any other the score it would have as one more
    element; so the map is increasing, strictly where the sample tells two rewards apart.

    Args:
        rewards: ``[B]`` raw scores; NaN stays NaN.
        sample: ``[N]`` finite rewards, N > 0, in any order.
        position: Rule for the score of a sorted position, see ``normal_scores``.
        tie_tol: Rewards are rounded to this share of the sample's range.

    Returns:
        ``[B]`` float64, bounded by ``score_cap`` of N + 1.

    Example:
        >>> population_scores(torch.tensor([0.0, 1.0, 9.0]), torch.tensor([0.0, 0.0, 1.0, 1.0]))
        tensor([-0.7345,  0.7345,  1.2816], dtype=torch.float64)
    """
    values, sample = check_rewards(rewards), sample.double()
    low, high = sample.aminmax()
    ordered = _snap(sample, low, high, tie_tol).sort().values
    snapped = _snap(values, low, high, tie_tol)
    less = torch.searchsorted(ordered, snapped)
    less_or_equal = torch.searchsorted(ordered, snapped, right=True)
    new = less == less_or_equal
    scores = normal_scores(less, less_or_equal + new.long(), len(sample) + new.long(), position)
    return scores.masked_fill(values.isnan(), torch.nan)


def rms_gain(
    scores: Tensor, rewards: Tensor, group_index: Tensor, sigma: Tensor, position: Position = "hazen"
) -> Tensor:
    """One factor for each group that moves tasks toward a common second moment without passing the cap.

    ``min(c_n / sigma, cap_n / max |score|)`` with c_n of ``untied_std`` and cap_n of ``score_cap``. It is positive and
    the same for all rows of a group, so signs, zeros and the mean 0 of every group stay.

    Args:
        scores: ``[B]`` output of ``ot_normal``, unscaled.
        rewards: ``[B]`` raw scores from which ``scores`` were made; NaN = no score.
        group_index: ``[B]`` int64.
        sigma: ``[B]`` float, root mean square of the scores of the row's task; NaN = not known yet.
        position: Rule of the scores.

    Returns:
        ``[B]`` float32; 1 where ``sigma`` is NaN and for constant groups.

    Example:
        >>> rewards, groups = torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.tensor([0, 0, 0, 0])
        >>> rms_gain(ot_normal(rewards, groups), rewards, groups, torch.full((4,), 0.6))
        tensor([1.4067, 1.4067, 1.4067, 1.4067])
    """
    cap = score_cap(group_count(rewards, group_index), position) / group_max(scores.abs().double(), group_index)
    gain = torch.minimum(untied_std(rewards, group_index, position) / sigma, cap)
    return gain.masked_fill(sigma.isnan() | is_constant_group(rewards, group_index), 1).float()


def extend_reservoir(reservoir: Tensor, rewards: Tensor, seeds: Tensor, size: int) -> Tensor:
    """A uniform sample of all rewards seen so far, without any random state.

    Every row has a key hashed from its seed, and the ``size`` smallest keys stay: the result does not depend on the
    order of rows or on how they were split.

    Args:
        reservoir: ``[2, N]`` float64, keys over rewards; ``[2, 0]`` to begin.
        rewards: ``[B]`` raw scores; NaN rows are not kept.
        seeds: ``[B]`` int64 sampling seeds of the rows.
        size: Largest number of rewards to keep.

    Returns:
        ``[2, min(size, N + scored)]`` float64, sorted by key.

    Raises:
        ValueError: A reward is infinite.

    Example:
        >>> kept = extend_reservoir(torch.empty(2, 0), torch.tensor([0.5, torch.nan]), torch.tensor([3, 4]), size=8)
        >>> kept[1]
        tensor([0.5000], dtype=torch.float64)
    """
    values = check_rewards(rewards)
    scored = ~values.isnan()
    keys = uniform(seeds, num=1, stream=_RESERVOIR_STREAM)[:, 0]
    merged = torch.cat([reservoir.double(), torch.stack([keys, values])[:, scored]], 1)
    return merged[:, merged[0].argsort(stable=True)[:size]]
