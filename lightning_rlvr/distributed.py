"""Collectives on records: what ranks have to tell each other."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed
from lightning.pytorch.strategies import ParallelStrategy, Strategy
from torch import Tensor
from torch.nn.functional import pad

from lightning_rlvr.types import Rollout, TokenStatistics

_PADDED_LEFT = ("prompt_ids", "prompt_mask", "evidence_mask")
_PADDED_RIGHT = ("completion_ids", "completion_mask", "old_logprobs")
_PER_ROW = ("group_index", "task_id", "rewards", "truncated", "seeds")


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


def gather_rollouts(rollout: Rollout, rank: int) -> tuple[Rollout, slice]:
    """Rows of all ranks, in rank order and padded to common widths; and which of them are this rank's.

    Args:
        rollout: Rows of this rank; its model inputs are left behind.
        rank: This rank.
    """
    device = rollout.rewards.device
    own: dict[str, Tensor] = {n: getattr(rollout, n).cpu() for n in (*_PADDED_LEFT, *_PADDED_RIGHT, *_PER_ROW)}
    own |= {f"statistics.{name}": values.cpu() for name, values in rollout.statistics.items()}
    everyone: list[dict[str, Tensor]] = [{} for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather_object(everyone, own)
    sizes = [len(rows["rewards"]) for rows in everyone]
    joined = {name: _joined([rows[name] for rows in everyone], name in _PADDED_LEFT).to(device) for name in own}
    statistics = {n.removeprefix("statistics."): joined.pop(n) for n in list(joined) if n.startswith("statistics.")}
    start = sum(sizes[:rank])
    return (
        Rollout(**joined, statistics=TokenStatistics(statistics)),  # type: ignore[arg-type]  # names checked above
        slice(start, start + sizes[rank]),
    )


def gather_rows(values: Tensor) -> Tensor:
    """``[B]`` values of all ranks, in rank order; ranks may hold different numbers of rows."""
    everyone: list[Tensor] = [values] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everyone, values.cpu())
    return torch.cat(everyone).to(values.device)


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
    for weight in weights:
        torch.distributed.all_reduce(weight.grad)
