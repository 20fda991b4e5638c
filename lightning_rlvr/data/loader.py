"""Prompts in batches: this rank's share of every global batch, in an order that survives a restart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lightning_rlvr.checks import require
from lightning_rlvr.data.sources import Problem, shuffled
from lightning_rlvr.data.templates import EncodedPrompt
from lightning_rlvr.functional.random import derive_seed
from lightning_rlvr.types import PromptBatch


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    """Problems with their encoded prompts, ready to be cut into batches."""

    problems: tuple[Problem, ...]
    prompts: tuple[EncodedPrompt, ...]
    task_names: tuple[str, ...]
    """All tasks of the split; a row's task id is the position of its task in them."""
    pad_token_id: int

    def __len__(self) -> int:
        return len(self.problems)

    def batch(self, rows: Sequence[int]) -> PromptBatch:
        """The chosen rows, left-padded to the longest of them."""
        problems = [self.problems[row] for row in rows]
        prompts = [self.prompts[row] for row in rows]
        width = max(len(prompt.ids) for prompt in prompts)
        ids = torch.full((len(rows), width), self.pad_token_id)
        mask, evidence = torch.zeros(2, len(rows), width, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            start = width - len(prompt.ids)
            ids[row, start:] = prompt.ids
            mask[row, start:] = True
            evidence[row, start:] = prompt.evidence
        return PromptBatch(
            prompt_ids=ids,
            prompt_mask=mask,
            evidence_mask=evidence,
            task_id=torch.tensor([self.task_names.index(problem.task) for problem in problems]),
            task_names=self.task_names,
            problem_ids=tuple(problem.id for problem in problems),
            prompts=tuple(prompt.text for prompt in prompts),
            columns=tuple(problem.columns for problem in problems),
        )


class PromptLoader:
    """This rank's part of the global batches of an epoch: a sized iterable that can say and restore where it is.

    Rank ``r`` gets the prompts ``r::world_size`` of each global batch, so any number of ranks sees the same global
    batches. Training (``shuffle``): a permutation by data seed and epoch, cut into ``prompts_per_step``, so that every
    problem comes once in an epoch; what is left at the end makes a shorter batch, or is left out of that epoch where
    it would not give every rank a prompt. Validation: the given order, cut into batches of nearly equal size, so that
    all ranks get the same number of batches, none is empty, and every problem comes exactly once.

    It is no torch ``DataLoader``, hence Lightning adds no sampler of its own. It counts its epochs itself: Lightning
    counts one that ``max_steps`` cut short as complete, so that a longer run resumed from there would skip the rest.

    Args:
        prompts: What to cut into batches.
        prompts_per_step: Prompts of a global batch, over all ranks.
        data_seed: Seed of the order.
        rank: Number of this process.
        world_size: Number of processes.
        shuffle: Training rather than validation.
        longest_first: Begin every epoch with the batch that holds the longest prompt, so that running out of memory
            shows at once.

    Raises:
        ValueError: ``prompts_per_step`` or the number of prompts does not give every rank a prompt.
    """

    def __init__(
        self,
        prompts: PromptSet,
        prompts_per_step: int,
        *,
        data_seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        longest_first: bool = False,
    ) -> None:
        least = world_size if shuffle else 1
        each = "one for each rank"
        require(prompts_per_step >= least, "prompts_per_step", f"at least {least}, {each}", prompts_per_step)
        if len(prompts) < world_size:
            tasks = ", ".join(dict.fromkeys(problem.task for problem in prompts.problems))
            raise ValueError(
                f"{tasks} must have at least {world_size} problems, {each}, got {len(prompts)}: "
                "set `trainer.devices` lower, or use more problems"
            )
        self.prompts = prompts
        self.prompts_per_step = prompts_per_step
        self.data_seed = data_seed
        self.rank = rank
        self.world_size = world_size
        self.shuffle = shuffle
        self.longest_first = longest_first
        self._epoch = 0
        self._taken = 0

    def __len__(self) -> int:
        """Batches of an epoch, the same on all ranks."""
        whole, rest = divmod(len(self.prompts), self.prompts_per_step)
        if self.shuffle:
            return whole + (rest >= self.world_size)
        return max(1, min(whole + (rest > 0), len(self.prompts) // self.world_size))

    def __iter__(self) -> Iterator[PromptBatch]:
        """What is left of the current epoch, or the next one when nothing is; validation always begins anew."""
        if self._taken == len(self):
            self._epoch += 1
        if self._taken == len(self) or not self.shuffle:
            self._taken = 0
        batches = self.global_batches(self._epoch)
        while self._taken < len(batches):
            rows = batches[self._taken]
            self._taken += 1
            yield self.prompts.batch(rows[self.rank :: self.world_size])

    def global_batches(self, epoch: int) -> list[list[int]]:
        """Row numbers of every global batch of an epoch, the same on all ranks."""
        if not self.shuffle:
            return [rows.tolist() for rows in torch.tensor_split(torch.arange(len(self.prompts)), len(self))]
        order = shuffled(len(self.prompts), derive_seed("order", self.data_seed, epoch))
        starts = range(0, len(self) * self.prompts_per_step, self.prompts_per_step)
        batches = [order[start : start + self.prompts_per_step] for start in starts]
        if self.longest_first:
            lengths = [max(len(self.prompts.prompts[row].ids) for row in rows) for rows in batches]
            batches.insert(0, batches.pop(lengths.index(max(lengths))))
        return batches

    def state_dict(self) -> dict[str, Any]:
        """Where this loader is: the epoch and the batches that were taken from it."""
        return {"epoch": self._epoch, "batches": self._taken, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue there with the next iterator.

        Raises:
            ValueError: The state is that of other data or of another batch size.
        """
        for name, value in self._identity().items():
            if state[name] != value:
                raise ValueError(f"`{name}` must be {state[name]}, as in the checkpoint to resume from, got {value}")
        self._epoch = state["epoch"]
        self._taken = state["batches"]

    def _identity(self) -> dict[str, Any]:
        return {
            "data_seed": self.data_seed,
            "num_problems": len(self.prompts),
            "prompts_per_step": self.prompts_per_step,
            "longest_first": self.longest_first,
        }
