"""Statistics of ragged groups in any row order; rows that are NaN count nowhere."""

from __future__ import annotations

import torch
from torch import Tensor


def _dense(group_index: Tensor) -> Tensor:
    numbers: Tensor = torch.unique(group_index, return_inverse=True)[1]
    return numbers


def group_sum(values: Tensor, group_index: Tensor) -> Tensor:
    """Sum of each row's group, broadcast back to the rows.

    Args:
        values: ``[B]`` numbers; NaN rows are left out.
        group_index: ``[B]`` non-negative int64; groups may be ragged, rows in any order, numbers with gaps.

    Returns:
        ``[B]`` in the dtype of ``values``; 0 for a group without scored rows.

    Example:
        >>> group_sum(torch.tensor([1.0, 4.0, 2.0]), torch.tensor([7, 3, 7]))
        tensor([3., 4., 3.])
    """
    groups = _dense(group_index)
    return torch.zeros_like(values).index_add_(0, groups, values.masked_fill(values.isnan(), 0))[groups]


def group_count(values: Tensor, group_index: Tensor) -> Tensor:
    """Number of scored rows (int64 ``[B]``) in each row's group.

    Example:
        >>> group_count(torch.tensor([1.0, torch.nan, 2.0]), torch.tensor([0, 0, 1]))
        tensor([1, 1, 1])
    """
    return group_sum((~values.isnan()).long(), group_index)


def group_mean(values: Tensor, group_index: Tensor) -> Tensor:
    """Mean of each row's group, broadcast back to the rows.

    Args:
        values: ``[B]`` float; NaN rows are left out.
        group_index: ``[B]`` non-negative int64; groups may be ragged and rows in any order.

    Returns:
        ``[B]`` float; row ``i`` holds the mean of ``values`` over its group, NaN for a group without scored rows.

    Example:
        >>> group_mean(torch.tensor([1.0, 0.0, 3.0]), torch.tensor([0, 0, 1]))
        tensor([0.5000, 0.5000, 3.0000])
    """
    return group_sum(values, group_index) / group_count(values, group_index)


def group_std(values: Tensor, group_index: Tensor, ddof: int = 1) -> Tensor:
    """Standard deviation of each row's group (float ``[B]``); NaN for a group of at most ``ddof`` scored rows.

    Example:
        >>> group_std(torch.tensor([1.0, 0.0, 3.0]), torch.tensor([0, 0, 1]))
        tensor([0.7071, 0.7071,    nan])
    """
    squares = group_sum((values - group_mean(values, group_index)) ** 2, group_index)
    return (squares / (group_count(values, group_index) - ddof).clamp_min(0)).sqrt()


def group_max(values: Tensor, group_index: Tensor) -> Tensor:
    """Largest value of each row's group (float ``[B]``); -inf for a group without scored rows.

    Example:
        >>> group_max(torch.tensor([1.0, torch.nan, 3.0]), torch.tensor([0, 0, 1]))
        tensor([1., 1., 3.])
    """
    groups = _dense(group_index)
    lowest = torch.full_like(values, -torch.inf)
    return lowest.scatter_reduce(0, groups, values.masked_fill(values.isnan(), -torch.inf), "amax")[groups]


def group_min(values: Tensor, group_index: Tensor) -> Tensor:
    """Smallest value of each row's group (float ``[B]``); inf for a group without scored rows.

    Example:
        >>> group_min(torch.tensor([1.0, torch.nan, 3.0]), torch.tensor([0, 0, 1]))
        tensor([1., 1., 3.])
    """
    return -group_max(-values, group_index)


def is_constant_group(values: Tensor, group_index: Tensor, rtol: float = 1e-6) -> Tensor:
    """Rows of groups whose scores cannot be told apart, among them all groups with fewer than two scored rows.

    Args:
        values: ``[B]`` numbers; NaN rows are left out.
        group_index: ``[B]`` non-negative int64.
        rtol: A group is constant when ``max - min <= rtol * max(1, max abs)``: float32 rounding must not pass for a
            difference.

    Returns:
        bool ``[B]``.

    Example:
        >>> is_constant_group(torch.tensor([0.7, 0.7, 1.0, 0.0]), torch.tensor([0, 0, 1, 1]))
        tensor([ True,  True, False, False])
    """
    values = values.double()
    spread = group_max(values, group_index) - group_min(values, group_index)
    return spread <= rtol * group_max(values.abs(), group_index).clamp_min(1)


def group_ranks(values: Tensor, group_index: Tensor) -> tuple[Tensor, Tensor]:
    """How many scored rows of a row's group are less, and how many are less or equal.

    Args:
        values: ``[B]`` numbers; NaN rows are left out.
        group_index: ``[B]`` non-negative int64.

    Returns:
        Two int64 ``[B]``: the block of a row's ties takes the sorted positions ``less + 1 .. less_or_equal`` of its
        group. Both are 0 for NaN rows.

    Example:
        >>> group_ranks(torch.tensor([0.0, 1.0, 0.0, 5.0]), torch.tensor([4, 4, 4, 9]))
        (tensor([0, 2, 0, 0]), tensor([2, 3, 2, 1]))
    """
    scored = ~values.isnan()
    groups = _dense(group_index[scored])
    levels = _dense(values[scored])
    # The number of a (group, value) pair grows with the group first and the value second, so blocks come out sorted.
    _, block, sizes = torch.unique(groups * len(levels) + levels, return_inverse=True, return_counts=True)
    before_group = groups.bincount().cumsum(0) - groups.bincount()
    less = torch.zeros_like(group_index)
    less_or_equal = torch.zeros_like(group_index)
    less_or_equal[scored] = sizes.cumsum(0)[block] - before_group[groups]
    less[scored] = less_or_equal[scored] - sizes[block]
    return less, less_or_equal
