"""The data of a run: loading, checking, encoding, batching, and verification against the gold records."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from transformers import PreTrainedTokenizerBase
from typing_extensions import override

from lightning_rlvr.checks import require
from lightning_rlvr.data.loader import PromptLoader, PromptSet
from lightning_rlvr.data.sources import Problem, ProblemSource, Split, normalized, shuffled
from lightning_rlvr.data.templates import EncodedPrompt, PromptTemplate
from lightning_rlvr.functional.random import derive_seed
from lightning_rlvr.types import Completions, PromptBatch, layouts
from lightning_rlvr.verify.base import Attempt, Verdict


class PromptDataModule(LightningDataModule):
    """Problems of one or several tasks as prompts, and the verifiers that score their completions.

    Prompts are rendered and tokenized once, in ``setup``, with the tokenizer of the LightningModule (its attribute
    ``tokenizer``). Held-out problems that occur in the training data are left out.

    Args:
        train: Where training problems come from, one source for each task.
        val: Where held-out problems come from; by default the sources of `train`.
        prompts_per_step: Prompts of a rollout batch, over all devices.
        val_prompts_per_step: Prompts of a validation batch, over all devices.
        template: How problems are shown, unless their source says otherwise.
        max_prompt_length: Longer prompts (tokens, template included) are left out, with a warning that counts them.
        data_seed: Seed of which problems there are and of their order.
        num_problems: Train on so many problems, drawn by data seed; by default on all.
        val_problems: Validate on so many, drawn by data seed; 0 for no validation; by default on all.
        longest_first: Begin every epoch with the batch that holds the longest prompt, so that running out of memory
            shows at once.
        skip_bad_golds: Leave out problems whose gold answer the verifier cannot read, with a warning, instead of
            stopping.

    Raises:
        ValueError: A number is out of range, or two sources have the same task name.
    """

    def __init__(
        self,
        train: list[ProblemSource] | ProblemSource,
        val: list[ProblemSource] | ProblemSource | None = None,
        prompts_per_step: int = 8,
        val_prompts_per_step: int = 32,
        template: PromptTemplate = PromptTemplate(),
        max_prompt_length: int = 512,
        data_seed: int = 0,
        num_problems: int | None = None,
        val_problems: int | None = None,
        longest_first: bool = False,
        skip_bad_golds: bool = False,
    ) -> None:
        super().__init__()
        for name, value, least in (
            ("prompts_per_step", prompts_per_step, 1),
            ("val_prompts_per_step", val_prompts_per_step, 1),
            ("max_prompt_length", max_prompt_length, 1),
            ("num_problems", num_problems, 1),
            ("val_problems", val_problems, 0),
        ):
            require(value is None or value >= least, name, f"at least {least}", value)
        self.train_sources = _as_list(train)
        self.val_sources = self.train_sources if val is None else _as_list(val)
        self.prompts_per_step = prompts_per_step
        self.val_prompts_per_step = val_prompts_per_step
        self.template = template
        self.max_prompt_length = max_prompt_length
        self.data_seed = data_seed
        self.num_problems = num_problems
        self.val_problems = val_problems
        self.longest_first = longest_first
        self.skip_bad_golds = skip_bad_golds
        sources = self.train_sources if val is None else [*self.train_sources, *self.val_sources]
        self._train_loader: PromptLoader | None = None
        self._resume_from: dict[str, Any] = {}
        self._sources = {source.task: source for source in sources}
        if not self.train_sources or len(self._sources) < len(sources):
            names = ", ".join(source.task for source in sources) or "none"
            raise ValueError(f"`train` and `val` must hold sources with different `task` names, got {names}")

    @property
    def task_names(self) -> tuple[str, ...]:
        """All tasks, training first; a row's task id is the position in here."""
        return tuple(self._sources)

    @property
    def problem_ids(self) -> dict[str, tuple[str, ...]]:
        """Identifiers of the problems of each split, after ``setup``."""
        return {split: tuple(problem.id for problem in prompts.problems) for split, prompts in self._prompts.items()}

    def longest_prompt(self, split: Split) -> int:
        """Tokens of the longest prompt of a split, after ``setup``; 0 if there is none."""
        return max((len(prompt.ids) for prompt in self._prompts[split].prompts), default=0)

    @property
    def data_hash(self) -> str:
        """SHA-256 over the problems of both splits as they are shown and scored, after ``setup``."""
        digest = hashlib.sha256()
        for split, prompts in self._prompts.items():
            for problem, prompt in zip(prompts.problems, prompts.prompts, strict=True):
                record = [split, problem.id, prompt.text, problem.columns]
                digest.update(json.dumps(record, sort_keys=True, default=repr).encode())
        return digest.hexdigest()

    @override
    def setup(self, stage: str) -> None:
        self._train_loader, self._resume_from = None, {}
        tokenizer = self._tokenizer()
        train = [problem for source in self.train_sources for problem in source.load("train", self.data_seed)]
        known = {normalized(problem) for problem in train}
        self._prompts = {"train": self._chosen(train, tokenizer, self.num_problems, "num_problems")}
        if self.val_problems == 0:
            self._prompts["val"] = self._prompt_set([], [], tokenizer)
            return
        loaded = [problem for source in self.val_sources for problem in source.load("val", self.data_seed)]
        held_out = [problem for problem in loaded if normalized(problem) not in known]
        if len(held_out) < len(loaded):
            rank_zero_warn(
                f"{len(loaded) - len(held_out)} of {len(loaded)} held-out problems are also training data: left out"
            )
        if not held_out:
            raise ValueError(
                "no held-out problem is left; hold some out in the sources of `train`, give other sources as `val`, "
                "or set `val_problems` to 0 for no validation"
            )
        self._prompts["val"] = self._chosen(held_out, tokenizer, self.val_problems, "val_problems")

    @override
    def train_dataloader(self) -> PromptLoader:
        if self._train_loader is None:
            self._train_loader = self._loader("train", self.prompts_per_step, self.longest_first)
            if self._resume_from:
                self._train_loader.load_state_dict(self._resume_from)
        return self._train_loader

    @override
    def val_dataloader(self) -> PromptLoader | list[PromptLoader]:
        if not len(self._prompts["val"]):
            return []
        return self._loader("val", self.val_prompts_per_step)

    @override
    def test_dataloader(self) -> PromptLoader | list[PromptLoader]:
        return self.val_dataloader()

    @override
    def transfer_batch_to_device(self, batch: PromptBatch, device: torch.device, dataloader_idx: int) -> PromptBatch:
        # Lightning's own transfer refuses frozen dataclasses
        return replace(
            batch,
            **{name: getattr(batch, name).to(device) for name in layouts(PromptBatch)},
            model_inputs={name: tuple(row.to(device) for row in rows) for name, rows in batch.model_inputs.items()},
        )

    def verify(self, prompts: PromptBatch, completions: Completions, texts: Sequence[str]) -> list[Verdict]:
        """One verdict for each completion, in row order, each by the verifier of its task.

        Args:
            prompts: The prompts that were answered.
            completions: B sampled rows.
            texts: B completion texts, without special tokens.
        """
        attempts: dict[int, Attempt] = {}
        rows_of_task: dict[str, list[int]] = {name: [] for name in self.task_names}
        lengths, ids = completions.completion_mask.sum(1).tolist(), completions.completion_ids.tolist()
        truncated, tasks = completions.truncated.tolist(), prompts.task_id.tolist()
        for row, prompt in enumerate(completions.prompt_index.tolist()):
            rows_of_task[self.task_names[tasks[prompt]]].append(row)
            attempts[row] = Attempt(
                prompt=prompts.prompts[prompt],
                completion=texts[row],
                completion_ids=tuple(ids[row][: lengths[row]]),
                truncated=truncated[row],
                columns=prompts.columns[prompt],
            )
        verdicts: dict[int, Verdict] = {}
        for task, rows in rows_of_task.items():
            verifier = self._sources[task].verifier
            judged = verifier.verify([attempts[row] for row in rows]) if rows else []
            if len(judged) != len(rows) or not all(isinstance(verdict, Verdict) for verdict in judged):
                raise TypeError(f"{type(verifier).__name__} must return one Verdict for each of {len(rows)} attempts")
            verdicts |= zip(rows, judged, strict=True)
        return [verdicts[row] for row in range(len(attempts))]

    @override
    def state_dict(self) -> dict[str, Any]:
        return {} if self._train_loader is None else self._train_loader.state_dict()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # Lightning restores loaders too, but not where `trainer.estimated_stepping_batches` was read before
        self._resume_from = state_dict

    @property
    def _attached(self) -> Trainer:
        if self.trainer is None:
            raise TypeError(
                "PromptDataModule works with a Trainer only: pass it as `datamodule` of `fit` or `validate`"
            )
        return self.trainer

    def _tokenizer(self) -> PreTrainedTokenizerBase:
        module = self._attached.lightning_module
        tokenizer = getattr(module, "tokenizer", None)
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise TypeError(
                f"PromptDataModule needs a LightningModule whose attribute `tokenizer` is a transformers tokenizer, "
                f"got {type(module).__name__} with {type(tokenizer).__name__}"
            )
        return tokenizer

    def _chosen(
        self, problems: list[Problem], tokenizer: PreTrainedTokenizerBase, count: int | None, setting: str
    ) -> PromptSet:
        """The first ``count`` problems, in an order by data seed, that fit and can be verified; or all that do."""
        chosen: dict[int, EncodedPrompt] = {}
        complaints: dict[str, str] = {}
        lengths: list[int] = []
        for number in shuffled(len(problems), derive_seed(setting, self.data_seed)):
            if len(chosen) == count:
                break
            problem = problems[number]
            if complaint := self._sources[problem.task].verifier.check_columns(problem.columns):
                complaints[problem.id] = complaint
                continue
            prompt = self._prompt(problem, tokenizer)
            lengths.append(len(prompt.ids))
            if lengths[-1] <= self.max_prompt_length:
                chosen[number] = prompt
        self._report(complaints, lengths)
        if not chosen:
            kind = "training" if setting == "num_problems" else "held-out"
            raise ValueError(
                f"`max_prompt_length` {self.max_prompt_length} leaves no {kind} prompt: "
                f"the shortest has {min(lengths, default=0)} tokens"
            )
        if count is not None and len(chosen) < count:
            raise ValueError(f"`{setting}` must be at most the {len(chosen)} usable problems, got {count}")
        order = sorted(chosen)
        return self._prompt_set([problems[number] for number in order], [chosen[n] for n in order], tokenizer)

    def _report(self, complaints: Mapping[str, str], lengths: Sequence[int]) -> None:
        if complaints:
            first = "; ".join(f"{name}: {complaint}" for name, complaint in sorted(complaints.items())[:3])
            looked_at = len(complaints) + len(lengths)
            message = f"{len(complaints)} of {looked_at} problems cannot be verified ({first})"
            if not self.skip_bad_golds:
                raise ValueError(f"{message}; mend them, or set `skip_bad_golds` to leave them out")
            rank_zero_warn(f"{message}: left out")
        if long := sum(length > self.max_prompt_length for length in lengths):
            rank_zero_warn(
                f"{long} of {len(lengths)} prompts are longer than `max_prompt_length` {self.max_prompt_length}: "
                f"left out"
            )

    def _prompt(self, problem: Problem, tokenizer: PreTrainedTokenizerBase) -> EncodedPrompt:
        template = self._sources[problem.task].template or self.template
        return template.encode(tokenizer, {**problem.columns, "problem": problem.problem})

    def _prompt_set(
        self, problems: Iterable[Problem], prompts: Iterable[EncodedPrompt], tokenizer: PreTrainedTokenizerBase
    ) -> PromptSet:
        pads = [i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if isinstance(i, int)]
        return PromptSet(
            problems=tuple(problems), prompts=tuple(prompts), task_names=self.task_names, pad_token_id=pads[0]
        )

    def _loader(self, split: Split, prompts_per_step: int, longest_first: bool = False) -> PromptLoader:
        return PromptLoader(
            self._prompts[split],
            prompts_per_step,
            data_seed=self.data_seed,
            rank=self._attached.global_rank,
            world_size=self._attached.world_size,
            shuffle=split == "train",
            longest_first=longest_first,
        )


def _as_list(sources: list[ProblemSource] | ProblemSource) -> list[ProblemSource]:
    return [sources] if isinstance(sources, ProblemSource) else list(sources)
