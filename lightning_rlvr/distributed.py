"""Collectives on records: what ranks have to tell each other."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
import torch.distributed
from lightning.pytorch.strategies import ParallelStrategy, Strategy
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from lightning_rlvr.types import Rollout, TokenStatistics, layouts

Item = TypeVar("Item")


def leave_group_at_exit() -> None:
    """Leave the process group when the interpreter exits, however often it is asked.

    Lightning does so for NCCL only. A thread of gloo that is still letting go of tensors would otherwise abort a
    process whose work is done ("terminate called without an active exception").
    """
    atexit.unregister(_leave_group)
    atexit.register(_leave_group)


def _leave_group() -> None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def gather_rollouts(strategy: Strategy, rollout: Rollout) -> tuple[Rollout, slice]:
    """Rows of all ranks, in rank order and padded to common widths; and which of them are this rank's.

    Of several ranks the model inputs stay behind: no plug-in that looks at the whole batch may depend on them.
    """
    if not isinstance(strategy, ParallelStrategy) or strategy.world_size == 1:
        return rollout, slice(None)
    device = rollout.rewards.device
    own: dict[str, Tensor] = {name: getattr(rollout, name).cpu() for name in layouts(Rollout)}
    statistics = {name: values.cpu() for name, values in rollout.statistics.items()}
    everyone: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everyone, (own, statistics))
    joined: dict[str, Any] = {
        name: _joined([tensors[name] for tensors, _ in everyone], left=layout == "prompt").to(device)
        for name, layout in layouts(Rollout).items()
    }
    shared = {name: _joined([s[name] for _, s in everyone], left=False).to(device) for name in statistics}
    sizes = [len(tensors["rewards"]) for tensors, _ in everyone]
    start = sum(sizes[: strategy.global_rank])
    own_rows = slice(start, start + sizes[strategy.global_rank])
    return Rollout(**joined, statistics=TokenStatistics(shared)), own_rows


def gather_rows(strategy: Strategy, values: Tensor) -> Tensor:
    """``[B]`` values of all ranks, in rank order; ranks may hold different numbers of rows."""
    if not isinstance(strategy, ParallelStrategy) or strategy.world_size == 1:
        return values
    everyone: list[Tensor] = [values] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everyone, values.cpu())
    return torch.cat(everyone).to(values.device)


def gather_list(strategy: Strategy, items: list[Item]) -> list[Item]:
    """Plain values of all ranks, in rank order."""
    if not isinstance(strategy, ParallelStrategy) or strategy.world_size == 1:
        return items
    everyone: list[list[Item]] = [items] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everyone, items)
    return [item for part in everyone for item in part]


def _joined(parts: Sequence[Tensor], left: bool) -> Tensor:
    if parts[0].ndim == 1:
        return torch.cat(list(parts))
    width = max(part.shape[1] for part in parts)
    missing = [width - part.shape[1] for part in parts]
    return torch.cat([pad(p, (m, 0) if left else (0, m)) for p, m in zip(parts, missing, strict=True)])


def reduced(strategy: Strategy, values: Sequence[float], operation: str) -> list[float]:
    """``values`` summed ("sum") or maximised ("max") over ranks, element by element."""
    result = strategy.reduce(
        torch.tensor(values, dtype=torch.float64, device=strategy.root_device), reduce_op=operation
    )
    assert isinstance(result, Tensor)
    return [float(value) for value in result]


def without_gradient_sync(strategy: Strategy) -> AbstractContextManager[None]:
    """Backward passes inside leave gradients to this rank; ``sum_gradients`` joins them once for each step."""
    return strategy.block_backward_sync() if isinstance(strategy, ParallelStrategy) else nullcontext()


def sum_gradients(strategy: Strategy, weights: Sequence[Tensor]) -> None:
    """Sum gradients over ranks, in place; a missing gradient counts as zero."""
    for weight in weights:
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
    if not isinstance(strategy, ParallelStrategy) or strategy.world_size == 1:
        return
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    together = parameters_to_vector(gradients)
    torch.distributed.all_reduce(together)
    vector_to_parameters(together, gradients)
