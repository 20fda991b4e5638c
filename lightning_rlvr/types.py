"""The records that travel through a step: frozen, complete when made, checked at the border."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

RowInputs = Mapping[str, tuple[Tensor, ...]]
"""Further model inputs: name -> one tensor for each row, concatenated along dimension 0 for the forward."""


class UndeclaredStatisticError(KeyError):
    """A plug-in read a token statistic that nobody declared in ``requires``."""

    def __str__(self) -> str:
        return str(self.args[0])


class TokenStatistics(Mapping[str, Tensor]):
    """Declared token statistics of a rollout: name -> ``[B, T]`` float32.

    Args:
        values: The statistics that were declared and hence computed.

    Example:
        >>> statistics = TokenStatistics({"margin": torch.zeros(1, 2)})
        >>> statistics["entropy"]
        Traceback (most recent call last):
            ...
        lightning_rlvr.types.UndeclaredStatisticError: token statistic 'entropy' was not declared; ...
    """

    def __init__(self, values: Mapping[str, Tensor] | None = None) -> None:
        self._values = dict(values or {})

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._values:
            declared = ", ".join(sorted(self._values)) or "none"
            raise UndeclaredStatisticError(
                f"token statistic {name!r} was not declared; name it in `requires` (declared: {declared})"
            )
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


Layout = Literal["row", "prompt", "completion"]
"""What a tensor holds for each row: one value; prompt tokens, left-padded; completion tokens, right-padded."""

_FIELDS: Mapping[str, tuple[torch.dtype, Layout]] = {
    "prompt_ids": (torch.int64, "prompt"),
    "prompt_mask": (torch.bool, "prompt"),
    "evidence_mask": (torch.bool, "prompt"),
    "completion_ids": (torch.int64, "completion"),
    "completion_mask": (torch.bool, "completion"),
    "logprobs": (torch.float32, "completion"),
    "old_logprobs": (torch.float32, "completion"),
    "group_index": (torch.int64, "row"),
    "task_id": (torch.int64, "row"),
    "prompt_index": (torch.int64, "row"),
    "seeds": (torch.int64, "row"),
    "rewards": (torch.float32, "row"),
    "truncated": (torch.bool, "row"),
}
"""A name means the same in every record."""


def layouts(record: type) -> dict[str, Layout]:
    """The tensor fields of a record class by name, with what they hold for each row.

    Example:
        >>> layouts(Completions)["truncated"], layouts(Rollout)["evidence_mask"]
        ('row', 'prompt')
    """
    return {item.name: _FIELDS[item.name][1] for item in fields(record) if item.name in _FIELDS}


def _check_tensors(record: Any, rows: int, widths: Mapping[Layout, int]) -> None:
    for name, layout in layouts(type(record)).items():
        shape = (rows,) if layout == "row" else (rows, widths[layout])
        _check(name, getattr(record, name), _FIELDS[name][0], shape)


def _check(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"`{name}` must be a tensor, got {type(tensor).__name__}")
    if tensor.dtype != dtype:
        raise TypeError(f"`{name}` must be {dtype}, got {tensor.dtype}")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"`{name}` must have shape {list(shape)}, got {list(tensor.shape)}")


@dataclass(frozen=True, kw_only=True, eq=False)
class PromptBatch:
    """N prompts, rendered and tokenized, with everything that their verifier will read."""

    prompt_ids: Tensor
    """int64 ``[N, P]``, left-padded."""
    prompt_mask: Tensor
    """bool ``[N, P]``."""
    evidence_mask: Tensor
    """bool ``[N, P]``: the tokens that carry the problem itself (not the template around it)."""
    task_id: Tensor
    """int64 ``[N]``: index into ``task_names``."""
    task_names: tuple[str, ...]
    """All task names of the split, in the order of ``task_id``."""
    problem_ids: tuple[str, ...]
    """N identifiers, stable over runs."""
    prompts: tuple[str, ...]
    """N rendered prompts."""
    columns: tuple[Mapping[str, Any], ...]
    """N records of the data set ("answer" and whatever else the verifier reads)."""
    model_inputs: RowInputs = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.prompt_ids.ndim != 2:
            raise ValueError(f"`prompt_ids` must have shape [N, P], got {list(self.prompt_ids.shape)}")
        n, p = self.prompt_ids.shape
        _check_tensors(self, n, {"prompt": p})
        _check_lengths(
            n, problem_ids=self.problem_ids, prompts=self.prompts, columns=self.columns, **self.model_inputs
        )

    def __len__(self) -> int:
        return len(self.prompt_ids)


def _check_lengths(expected: int, **sequences: Sequence[Any]) -> None:
    for name, values in sequences.items():
        if len(values) != expected:
            raise ValueError(f"`{name}` must have {expected} entries, one for each row, got {len(values)}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Completions:
    """What an engine sampled: B rows, T completion tokens, in any row order."""

    completion_ids: Tensor
    """int64 ``[B, T]``, right-padded, as sampled: never re-tokenized text."""
    completion_mask: Tensor
    """bool ``[B, T]``: True up to and including the end token."""
    truncated: Tensor
    """bool ``[B]``: no end token within the budget."""
    logprobs: Tensor
    """float32 ``[B, T]``, nats at the sampling temperature, as the engine saw them; 0 outside the mask."""
    prompt_index: Tensor
    """int64 ``[B]``: the row of the prompt batch that each completion answers."""
    seeds: Tensor
    """int64 ``[B]``: the seed that each row was sampled with."""

    def __post_init__(self) -> None:
        b, t = self.completion_ids.shape
        _check_tensors(self, b, {"completion": t})


@dataclass(frozen=True, kw_only=True, eq=False)
class Rollout:
    """B sampled and verified completions: all that calibrators and assigners may look at.

    Example:
        >>> from lightning_rlvr.types import TokenStatistics
        >>> rollout = Rollout(
        ...     prompt_ids=torch.ones(2, 3, dtype=torch.int64), prompt_mask=torch.ones(2, 3, dtype=torch.bool),
        ...     evidence_mask=torch.zeros(2, 3, dtype=torch.bool),
        ...     completion_ids=torch.ones(2, 4, dtype=torch.int64), completion_mask=torch.ones(2, 4, dtype=torch.bool),
        ...     group_index=torch.tensor([0, 0]), task_id=torch.tensor([0, 0]), rewards=torch.tensor([1.0, 0.0]),
        ...     truncated=torch.tensor([False, False]), seeds=torch.tensor([1, 2]), old_logprobs=torch.zeros(2, 4),
        ...     statistics=TokenStatistics(),
        ... )
        >>> rollout.rows(torch.tensor([1])).rewards
        tensor([0.])
    """

    prompt_ids: Tensor
    """int64 ``[B, P]``, left-padded."""
    prompt_mask: Tensor
    """bool ``[B, P]``."""
    evidence_mask: Tensor
    """bool ``[B, P]``: the prompt tokens that carry the problem itself."""
    completion_ids: Tensor
    """int64 ``[B, T]``, right-padded, as sampled."""
    completion_mask: Tensor
    """bool ``[B, T]``: the tokens that enter the loss."""
    group_index: Tensor
    """int64 ``[B]``: rows of one prompt share a number; ragged groups, any row order."""
    task_id: Tensor
    """int64 ``[B]``."""
    rewards: Tensor
    """float32 ``[B]``: raw verifier score; NaN = could not be scored."""
    truncated: Tensor
    """bool ``[B]``: no end token within the budget."""
    seeds: Tensor
    """int64 ``[B]``: sampling seed of the row; whatever must be random in a plug-in is derived from it."""
    old_logprobs: Tensor
    """float32 ``[B, T]``, nats at the sampling temperature; 0 outside the mask."""
    statistics: TokenStatistics
    """Declared token statistics, each float32 ``[B, T]``."""
    model_inputs: RowInputs = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.completion_ids.ndim != 2 or self.prompt_ids.ndim != 2:
            raise ValueError("`prompt_ids` and `completion_ids` must have two dimensions, rows and tokens")
        b, t = self.completion_ids.shape
        _check_tensors(self, b, {"prompt": self.prompt_ids.shape[1], "completion": t})
        for name, values in self.statistics.items():
            _check(f"statistics[{name}]", values, torch.float32, (b, t))
        _check_lengths(b, **self.model_inputs)

    def __len__(self) -> int:
        return len(self.completion_ids)

    def rows(self, index: Tensor) -> Rollout:
        """The chosen rows, in the order of ``index``, without columns that are padding in all of them.

        Args:
            index: ``[b]`` int64 row numbers.
        """
        prompt_columns = self.prompt_mask[index].any(0)
        used = self.completion_mask[index].any(0).nonzero()
        tokens = int(used.amax()) + 1 if len(used) else 0
        kept = {
            "row": slice(None),
            "prompt": (slice(None), prompt_columns),
            "completion": (slice(None), slice(tokens)),
        }
        tensors = {name: getattr(self, name)[index][kept[layout]] for name, layout in layouts(Rollout).items()}
        return Rollout(
            **tensors,
            statistics=TokenStatistics({k: v[index, :tokens] for k, v in self.statistics.items()}),
            model_inputs={k: tuple(v[i] for i in index.tolist()) for k, v in self.model_inputs.items()},
        )

    def scored(self, old_logprobs: Tensor, statistics: TokenStatistics) -> Rollout:
        """The same rows with log-probs and statistics of the trainer's own forward (float32 ``[B, T]``)."""
        return replace(self, old_logprobs=old_logprobs, statistics=statistics)
