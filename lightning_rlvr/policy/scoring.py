"""The chunked LM head: log-probs, entropy and token statistics without a tensor over all tokens and all words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from lightning_rlvr.functional.statistics import TOKEN_STATISTICS
from lightning_rlvr.functional.statistics import entropy as shannon_entropy

LARGEST_CHUNK = {"cpu": 24 * 2**18, "cuda": 2**28}
"""Logits at a time, so that memory does not grow with the vocabulary: 24 MiB in float32, which caches still help with,
and 1 GiB for a GPU, which is to be busy with products and not with starting them."""


class HeadScores(NamedTuple):
    """What one pass through the head yields for n tokens."""

    logprobs: Tensor
    """``[n]`` float32, nats at the sampling temperature; differentiable."""
    entropy: Tensor | None
    """``[n]`` float32, nats; differentiable; None unless asked for."""
    statistics: dict[str, Tensor]
    """Registry name -> ``[n]`` float32, detached."""


def token_scores(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    temperature: float,
    scale: float = 1.0,
    softcap: float | None = None,
    statistics: Sequence[str] = (),
    entropy: bool = False,
    chunk: int | None = None,
) -> HeadScores:
    """Log-probs of the targets and whatever else is read from the same distributions.

    The logits are ``softcap * tanh(scale * (hidden @ weight.T + bias) / softcap) / temperature``: a product in the
    dtype of the model, the rest in float32 (float64 where ``hidden`` is float64). One log-softmax of ``chunk`` rows at
    a time yields every output; the backward pass recomputes it, so no activation is ever larger than ``[chunk, V]``.
    Gradients flow to ``hidden``, and to ``weight`` and ``bias`` where they require one, through products in the dtype
    of the model. There is no second derivative.

    Args:
        hidden: ``[n, D]`` float, the states that predict the targets.
        weight: ``[V, D]``, same dtype.
        bias: ``[V]`` or None.
        targets: ``[n]`` int64 in ``[0, V)``.
        temperature: Divides the logits; positive.
        scale: Multiplies the logits before the cap.
        softcap: Bound on the absolute logits, reached smoothly; None = none.
        statistics: Names in ``TOKEN_STATISTICS``.
        entropy: Whether to return the differentiable entropy.
        chunk: Rows at a time, which bounds the memory and changes no value; None = those of ``LARGEST_CHUNK`` logits.

    Raises:
        ValueError: ``temperature`` is not positive, or a statistic is unknown.

    Example:
        >>> hidden, weight, target = torch.tensor([[2.0, 1.0, 0.0]]), torch.eye(3), torch.tensor([0])
        >>> scores = token_scores(hidden, weight, None, target, temperature=0.5, statistics=["margin"])
        >>> scores.logprobs, scores.statistics["margin"]
        (tensor([-0.1429]), tensor([0.7495]))
    """
    if not temperature > 0:
        raise ValueError(f"`temperature` must be positive, got {temperature}")
    names = tuple(statistics)
    for name in names:
        TOKEN_STATISTICS[name]  # an unknown name fails here, also for n = 0
    rows = chunk or rows_at_a_time(len(weight), hidden.device)
    head = _Head(temperature, scale, softcap, names, entropy, rows)
    logprobs, entropies, *values = _ChunkedHead.apply(hidden, weight, bias, targets, head)  # type: ignore[no-untyped-call]  # as in torch
    return HeadScores(logprobs, entropies, dict(zip(names, values, strict=True)))


def rows_at_a_time(num_words: int, device: torch.device) -> int:
    """Rows of ``num_words`` logits that go through the head together.

    Example:
        >>> [rows_at_a_time(151936, torch.device(kind)) for kind in ("cpu", "cuda")]
        [41, 1766]
    """
    return max(1, LARGEST_CHUNK.get(device.type, LARGEST_CHUNK["cuda"]) // num_words)


class _Head(NamedTuple):
    """Everything about the head that is not a tensor."""

    temperature: float
    scale: float
    softcap: float | None
    statistics: tuple[str, ...]
    entropy: bool
    chunk: int

    def logits(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """``[chunk, V]`` in float32 or better, in as few passes over memory as the head allows."""
        logits = F.linear(hidden, weight, bias)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.softcap is not None:
            return logits.mul_(self.scale / self.softcap).tanh_().mul_(self.softcap / self.temperature)
        return logits if self.scale == self.temperature else logits.mul_(self.scale / self.temperature)


class _ChunkedHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, head: _Head
    ) -> tuple[Tensor | None, ...]:
        precision = torch.promote_types(hidden.dtype, torch.float32)
        logprobs, entropies, *statistics = (
            hidden.new_empty(len(hidden), dtype=precision) for _ in range(2 + len(head.statistics))
        )
        for rows in _chunks(len(hidden), head.chunk):
            words = head.logits(hidden[rows], weight, bias).log_softmax(-1)
            logprobs[rows] = words.gather(1, targets[rows, None]).squeeze(1)
            if head.entropy:
                entropies[rows] = shannon_entropy(words)
            for name, values in zip(head.statistics, statistics, strict=True):
                values[rows] = TOKEN_STATISTICS[name](words)
        ctx.save_for_backward(hidden, weight, bias, targets, entropies)
        ctx.head = head
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*statistics)
        return logprobs, entropies if head.entropy else None, *statistics

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logprobs: Tensor | None, grad_entropy: Tensor | None, *_: None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, entropies = ctx.saved_tensors
        head: _Head = ctx.head
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias) if ctx.needs_input_grad[2] else None
        # d logprob / d logits = onehot - p,   d entropy / d logits = -p * (logprobs + entropy)
        slope = -head.scale / head.temperature
        by_logprob = slope * (torch.zeros_like(entropies) if grad_logprobs is None else grad_logprobs)[:, None]
        by_entropy = None if grad_entropy is None else slope * grad_entropy[:, None]
        for rows in _chunks(len(hidden), head.chunk):
            logits = head.logits(hidden[rows], weight, bias)
            if by_entropy is None:
                grad = logits.softmax(-1).mul_(by_logprob[rows])
            else:
                words = logits.log_softmax(-1)
                grad = words.exp()
                grad *= words.add_(entropies[rows, None]).mul_(by_entropy[rows]).add_(by_logprob[rows])
            grad.scatter_add_(1, targets[rows, None], -by_logprob[rows])
            if head.softcap is not None:
                grad *= 1 - logits.mul_(head.temperature / head.softcap).square_()
            grad = grad.to(hidden.dtype)
            torch.mm(grad, weight, out=grad_hidden[rows])
            if grad_weight is not None:
                grad_weight.addmm_(grad.T, hidden[rows])
            if grad_bias is not None:
                grad_bias += grad.sum(0)
        return grad_hidden, grad_weight, grad_bias, None, None


def _chunks(num: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, num, size)]
