"""Masks of completion tokens, and means that look at nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def completion_mask(completion_ids: Tensor, eos_token_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Which tokens a completion consists of, and whether it was cut off before an end token.

    Padding is recognized by its place after the first end token, never by its id: pad and end token may be equal.

    Args:
        completion_ids: ``[B, T]`` int64, right-padded.
        eos_token_ids: All ids that end a completion.

    Returns:
        ``[B, T]`` bool, True up to and including the first end token, and ``[B]`` bool, True without any end token.

    Example:
        >>> mask, truncated = completion_mask(torch.tensor([[5, 2, 2], [5, 6, 7]]), eos_token_ids=[2])
        >>> mask.int(), truncated
        (tensor([[1, 1, 0],
                [1, 1, 1]], dtype=torch.int32), tensor([False,  True]))
    """
    ends = torch.isin(completion_ids, torch.tensor(eos_token_ids, dtype=torch.int64, device=completion_ids.device))
    ends_before = ends.cumsum(1) - ends.long()
    return ends_before == 0, ~ends.any(1)


def masked_mean(values: Tensor, mask: Tensor, dim: int | tuple[int, ...] = -1) -> Tensor:
    """Mean over the positions of ``mask``; 0 where there are none.

    Args:
        values: Float tensor; NaN and infinity outside the mask do no harm.
        mask: bool, same shape.
        dim: Dimension or dimensions to average over.

    Example:
        >>> masked_mean(torch.tensor([[1.0, 3.0, torch.nan]]), torch.tensor([[True, True, False]]))
        tensor([2.])
    """
    return values.where(mask, 0.0).sum(dim) / mask.sum(dim).clamp(min=1)
