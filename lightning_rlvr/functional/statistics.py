"""Token statistics: functions of the next-token distribution that assigners may declare."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lightning_rlvr.registry import Registry

TokenStatistic = Callable[[Tensor], Tensor]
"""``[n, V]`` float32 log-probs of the temperature-scaled next-token distribution -> ``[n]`` float32."""

TOKEN_STATISTICS: Registry[TokenStatistic] = Registry("token statistic", "lightning_rlvr.token_statistics")

_FOLD = 16


@TOKEN_STATISTICS.register("margin")
def margin(logprobs: Tensor) -> Tensor:
    """Probability of the likeliest token minus that of the second likeliest: ``p1 - p2``.

    ``|exp(l1) expm1(l2 - l1)|`` is exactly 0 on a tie and keeps its precision near 1.

    Args:
        logprobs: ``[n, V]`` float32, nats.

    Returns:
        ``[n]`` float32 in ``[0, 1]``.

    Example:
        >>> margin(torch.tensor([[2.0, 1.5, 0.0, -1.0], [0.0, 0.0, 0.0, 0.0]]).log_softmax(-1))
        tensor([0.2196, 0.0000])
    """
    first, second = _two_largest(logprobs).unbind(-1)
    return (first.exp() * torch.expm1(second - first)).abs()


@TOKEN_STATISTICS.register("entropy")
def entropy(logprobs: Tensor) -> Tensor:
    """Shannon entropy of the next token; impossible tokens (log-prob ``-inf``) contribute exactly 0.

    Args:
        logprobs: ``[n, V]`` float32, nats.

    Returns:
        ``[n]`` float32 in ``[0, log V]``, nats.

    Example:
        >>> entropy(torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]).log())
        tensor([0.6931, 0.0000])
    """
    finite = logprobs.clamp(min=torch.finfo(logprobs.dtype).min)
    return (finite.exp() * finite).sum(-1).clamp(max=0.0).abs()


def _two_largest(values: Tensor) -> Tensor:
    """``[n, 2]``: what ``values.topk(2)`` finds, in one pass over ``values``, which is faster on a CPU.

    Columns are dealt into ``V // 16`` bins. The largest value leads its bin; the second largest leads another bin, or
    shares the first one's bin, or is in the few columns left over.
    """
    num_bins = values.shape[-1] // _FOLD
    if num_bins < 2:
        return values.topk(2).values
    binned = torch.unflatten(values[:, : num_bins * _FOLD], 1, (_FOLD, num_bins))
    leaders, bins = binned.amax(1).topk(2)
    first_bin = binned.gather(2, bins[:, None, :1].expand(-1, _FOLD, 1)).squeeze(2)
    return torch.cat([first_bin, leaders[:, 1:], values[:, num_bins * _FOLD :]], 1).topk(2).values
