"""Which rows share a forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


def micro_batches(
    prompt_lengths: Tensor,
    completion_lengths: Tensor,
    *,
    max_tokens: int,
    groups: Tensor | None = None,
    forward_cost: int = 64,
) -> list[Tensor]:
    """Row numbers in micro-batches of at most ``max_tokens`` padded tokens, longest rows first.

    Rows are cut where that saves more padding than another forward costs, in the order of their lengths or, where it
    is cheaper, group by group, so that a group's prompt is computed seldom.

    Args:
        prompt_lengths: int64 ``[b]``, tokens.
        completion_lengths: int64 ``[b]``, tokens.
        max_tokens: Budget of rows times longest completion and prompts times longest prompt; a single row may exceed
            it.
        groups: int64 ``[b]``: rows of a group have the same prompt, and a forward computes it once. None: for every
            row.
        forward_cost: What a forward costs beside its tokens, in tokens.

    Example:
        >>> prompts, completions = torch.tensor([4, 4, 2, 2]), torch.tensor([2, 90, 88, 1])
        >>> [rows.tolist() for rows in micro_batches(prompts, completions, max_tokens=1000)]
        [[1, 2], [0, 3]]
        >>> [rows.tolist() for rows in micro_batches(prompts, completions, max_tokens=10)]
        [[1], [2], [0], [3]]
    """
    num = len(prompt_lengths)
    group = list(range(num)) if groups is None else groups.tolist()
    lengths = (prompt_lengths + completion_lengths).tolist()
    by_length = sorted(range(num), key=lambda row: -lengths[row])
    first: dict[int, int] = {}
    for place, row in enumerate(by_length):
        first.setdefault(group[row], place)
    by_group = sorted(by_length, key=lambda row: first[group[row]])
    rows = _Rows(prompt_lengths.cpu(), completion_lengths.cpu(), group)
    plans = (_cheapest_cut(rows, order, max_tokens, forward_cost) for order in (by_length, by_group))
    _, parts = min(plans, key=lambda plan: plan[0])
    parts.sort(key=lambda part: -part[0])
    return [torch.tensor(part, device=prompt_lengths.device) for _, part in parts]


class _Rows(NamedTuple):
    """Tokens ``[b]``, on the CPU, and groups."""

    prompt: Tensor
    completion: Tensor
    group: Sequence[int]


def _cheapest_cut(
    rows: _Rows, order: Sequence[int], max_tokens: int, forward_cost: int
) -> tuple[float, list[tuple[int, list[int]]]]:
    """What the best cut of ``order`` costs, and the padded tokens and rows of each of its parts.

    ``cost[end]`` is that of the first ``end`` rows; for each start, the costs of all parts that begin there and fit
    are computed at once.
    """
    prompt, completion = rows.prompt[list(order)], rows.completion[list(order)]
    before = torch.tensor(list(_places_before([rows.group[row] for row in order])))
    cost = torch.full((len(order) + 1,), torch.inf, dtype=torch.float64)
    starts, sizes = torch.zeros(2, len(order) + 1, dtype=torch.int64)
    cost[0] = 0.0
    for start in range(len(order)):
        most = max(1, max_tokens // max(1, int(completion[start])))
        part = slice(start, start + most)
        prompts = (before[part] < start).cumsum(0)
        count = torch.arange(1, len(prompts) + 1)
        tokens = prompts * prompt[part].cummax(0).values + count * completion[part].cummax(0).values
        tokens = tokens[: max(1, int((tokens <= max_tokens).sum()))]
        ends = slice(start + 1, start + 1 + len(tokens))
        total = cost[start] + tokens + forward_cost
        better = total < cost[ends]
        cost[ends] = torch.where(better, total, cost[ends])
        sizes[ends] = torch.where(better, tokens, sizes[ends])
        starts[ends].masked_fill_(better, start)
    parts, end = [], len(order)
    while end:
        parts.append((int(sizes[end]), list(order[starts[end] : end])))
        end = int(starts[end])
    return float(cost[-1]), parts[::-1]


def _places_before(groups: Sequence[int]) -> Iterator[int]:
    """Where the same group was seen last, for each place; -1 at its first."""
    last: dict[int, int] = {}
    for place, group in enumerate(groups):
        yield last.get(group, -1)
        last[group] = place
