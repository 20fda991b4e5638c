"""The data of a run: loading, checking, encoding, batching, and verification against the gold records."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from transformers import PreTrainedTokenizerBase
from typing_extensions import override

from lightning_rlvr.checks import require
from lightning_rlvr.data.loader import PromptLoader, PromptSet
from lightning_rlvr.data.selection import Selection
from lightning_rlvr.data.sources import Problem, ProblemSource, Split, normalized
from lightning_rlvr.data.templates import EncodedPrompt, PromptTemplate
from lightning_rlvr.hashing import problem_hash
from lightning_rlvr.types import PromptBatch, layouts
from lightning_rlvr.verify.base import Attempt, Verdict, Verifier


class PromptDataModule(LightningDataModule):
    """Problems of one or several tasks as prompts, and the verifiers that score their completions.

    Prompts are rendered and tokenized once, in ``setup``, with the tokenizer of the LightningModule (its attribute
    ``tokenizer``). Held-out problems that occur in the training data are left out, and so are training problems that
    overlap with the problems of `test`.

    Args:
        train: Where training problems come from, one source for each task.
        val: Where held-out problems come from; by default the sources of `train`.
        test: Benchmarks, one source for each; by default the held-out problems are what is tested on.
        prompts_per_step: Prompts of a rollout batch, over all devices.
        val_prompts_per_step: Prompts of a validation batch, over all devices.
        template: How problems are shown, unless their source says otherwise.
        max_prompt_length: Longer prompts (tokens, template included) are left out, with a warning that counts them.
        data_seed: Seed of which problems there are and of their order.
        num_problems: Train on so many problems, drawn by data seed; by default on all.
        val_problems: Validate on so many, drawn by data seed (short for `validate`: `--limit`); 0 for no validation;
            by default on all.
        test_problems: Test on at most so many of each benchmark, the same whatever the data seed, or of the held-out
            problems where there is none (short: `--limit`); by default on all.
        decontamination_ngram_size: Leave out training problems that share so many successive words with a problem of
            `test`, or equal one, with a warning; null reads no benchmark for training.
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
        test: list[ProblemSource] | ProblemSource | None = None,
        prompts_per_step: int = 8,
        val_prompts_per_step: int = 32,
        template: PromptTemplate = PromptTemplate(),
        max_prompt_length: int = 512,
        data_seed: int = 0,
        num_problems: int | None = None,
        val_problems: int | None = None,
        test_problems: int | None = None,
        decontamination_ngram_size: int | None = 13,
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
            ("test_problems", test_problems, 1),
            ("decontamination_ngram_size", decontamination_ngram_size, 1),
        ):
            require(value is None or value >= least, name, f"at least {least}", value)
        self.train_sources = _as_list(train)
        self.val_sources = self.train_sources if val is None else _as_list(val)
        self.test_sources = [] if test is None else _as_list(test)
        self.prompts_per_step = prompts_per_step
        self.val_prompts_per_step = val_prompts_per_step
        self.template = template
        self.max_prompt_length = max_prompt_length
        self.data_seed = data_seed
        self.num_problems = num_problems
        self.val_problems = val_problems
        self.test_problems = test_problems
        self.decontamination_ngram_size = decontamination_ngram_size
        self.longest_first = longest_first
        self.skip_bad_golds = skip_bad_golds
        sources = [*self.train_sources, *(self.val_sources if val is not None else []), *self.test_sources]
        self._train_loader: PromptLoader | None = None
        self._resume_from: dict[str, Any] = {}
        self._sources = {source.task: source for source in sources}
        if not self.train_sources or len(self._sources) < len(sources):
            names = ", ".join(source.task for source in sources) or "none"
            raise ValueError(f"`train`, `val` and `test` must hold sources with different `task` names, got {names}")

    @property
    def task_names(self) -> tuple[str, ...]:
        """All tasks, training first."""
        return tuple(self._sources)

    @property
    def verifiers(self) -> dict[str, Verifier]:
        """The verifier of each task."""
        return {task: source.verifier for task, source in self._sources.items()}

    def set_names(self, split: Split) -> tuple[str, ...]:
        """Tasks whose problems are in a split; a row's task id is the position in here, as is a benchmark's loader."""
        if split == "test" and self.test_sources:
            return tuple(source.task for source in self.test_sources)
        if split != "train" and self.val_problems == 0:
            return ()
        return tuple(source.task for source in (self.train_sources if split == "train" else self.val_sources))

    @property
    def problem_ids(self) -> dict[str, tuple[str, ...]]:
        """Identifiers of the problems of each split that was set up."""
        return {split: tuple(problem.id for problem, _ in rows) for split, rows in self._rows().items()}

    def longest_prompt(self, split: Split) -> int:
        """Tokens of the longest prompt of a split; 0 if there is none, or if the split was not set up."""
        shown: Split = "val" if split == "test" and not self.test_sources else split
        return max((len(prompt.ids) for _, prompt in self._rows().get(shown, [])), default=0)

    @property
    def data_hash(self) -> str:
        """SHA-256 over the problems of all splits that were set up, as they are shown and scored."""
        digest = hashlib.sha256()
        for split, rows in self._rows().items():
            for problem, prompt in rows:
                digest.update(f"{split} {problem_hash(problem.id, prompt.text, problem.columns)} ".encode())
        return digest.hexdigest()

    @property
    def cleaning(self) -> dict[str, dict[str, int]]:
        """Counts by `split/task`, after ``setup``: what was read, left out by reason, and chosen."""
        return self._selection.cleaning

    @override
    def setup(self, stage: str) -> None:
        self._train_loader, self._resume_from = None, {}
        self._prompts: dict[Split, list[PromptSet]] = {}
        self._selection = Selection(
            self._sources,
            self._tokenizer(),
            self.template,
            max_prompt_length=self.max_prompt_length,
            skip_bad_golds=self.skip_bad_golds,
        )
        if stage == "test" and self.test_sources:
            sets = (self._choose(_benchmark(source), "test", self.test_problems) for source in self.test_sources)
            self._prompts["test"] = list(sets)
            return
        train = [problem for source in self.train_sources for problem in source.load("train", self.data_seed)]
        known = {normalized(problem) for problem in train}
        if stage == "fit":
            self._prompts["train"] = [self._choose(self._decontaminated(train), "train", self.num_problems)]
        if self.val_problems == 0:
            if stage == "test":
                raise ValueError("nothing to test on: `val_problems` is 0, and `test` names no benchmark")
            self._prompts["val"] = []
            return
        loaded = [problem for source in self.val_sources for problem in source.load("val", self.data_seed)]
        held_out = [problem for problem in loaded if normalized(problem) not in known]
        if len(held_out) < len(loaded):
            rank_zero_warn(
                f"{len(loaded) - len(held_out)} of {len(loaded)} held-out problems are also training data: left out"
            )
        if not held_out:
            raise ValueError(
                "no held-out problem is left; hold some out in the sources of `train` (`held_out`), give others as "
                "`val`, or set `val_problems` to 0 for no validation"
            )
        limit = self.val_problems if self.test_problems is None or stage != "test" else self.test_problems
        self._prompts["val"] = [self._choose(held_out, "val", limit)]

    @override
    def train_dataloader(self) -> PromptLoader:
        if self._train_loader is None:
            [prompts] = self._prompts["train"]
            self._train_loader = self._loader(prompts, self.prompts_per_step, shuffle=True)
            if self._resume_from:
                self._train_loader.load_state_dict(self._resume_from)
        return self._train_loader

    @override
    def val_dataloader(self) -> PromptLoader | list[PromptLoader]:
        loaders = self._evaluation_loaders("val")
        return loaders[0] if loaders else []

    @override
    def test_dataloader(self) -> PromptLoader | list[PromptLoader]:
        return self._evaluation_loaders("test") if self.test_sources else self.val_dataloader()

    @override
    def transfer_batch_to_device(self, batch: PromptBatch, device: torch.device, dataloader_idx: int) -> PromptBatch:
        # Lightning's own transfer refuses frozen dataclasses
        return replace(
            batch,
            **{name: getattr(batch, name).to(device) for name in layouts(PromptBatch)},
            model_inputs={name: tuple(row.to(device) for row in rows) for name, rows in batch.model_inputs.items()},
        )

    def judge(self, tasks: Sequence[str], attempts: Sequence[Attempt]) -> list[Verdict]:
        """One verdict for each attempt, in order, by the verifier of its task."""
        verdicts: dict[int, Verdict] = {}
        for task in dict.fromkeys(tasks):
            verifier, rows = self.verifiers[task], [row for row, name in enumerate(tasks) if name == task]
            judged = verifier.verify([attempts[row] for row in rows])
            if len(judged) != len(rows) or not all(isinstance(verdict, Verdict) for verdict in judged):
                raise TypeError(f"{type(verifier).__name__} must return one Verdict for each of {len(rows)} attempts")
            verdicts |= zip(rows, judged, strict=True)
        return [verdicts[row] for row in range(len(attempts))]

    @property
    def row_local_tasks(self) -> frozenset[str]:
        """Tasks whose verifier judges an attempt by itself, in any thread."""
        return frozenset(name for name, verifier in self.verifiers.items() if verifier.row_local)

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
                "PromptDataModule works with a Trainer only: pass it as `datamodule` of `fit`, `validate` or `test`"
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

    def _rows(self) -> dict[Split, list[tuple[Problem, EncodedPrompt]]]:
        return {
            split: [row for prompts in sets for row in zip(prompts.problems, prompts.prompts, strict=True)]
            for split, sets in self._prompts.items()
        }

    def _decontaminated(self, problems: list[Problem]) -> list[Problem]:
        if not self.test_sources or self.decontamination_ngram_size is None:
            return problems
        try:
            tested = [problem for source in self.test_sources for problem in _benchmark(source)]
        except ValueError as error:
            raise ValueError(
                f"{error}; `decontamination_ngram_size` null trains without reading the benchmarks"
            ) from error
        return self._selection.clear_of(tested, problems, self.decontamination_ngram_size)

    def _choose(self, problems: list[Problem], split: Split, count: int | None) -> PromptSet:
        seed = 0 if split == "test" else self.data_seed
        return self._selection.choose(problems, split, self.set_names(split), count, seed)

    def _evaluation_loaders(self, split: Split) -> list[PromptLoader]:
        return [self._loader(prompts, self.val_prompts_per_step) for prompts in self._prompts[split]]

    def _loader(self, prompts: PromptSet, prompts_per_step: int, shuffle: bool = False) -> PromptLoader:
        return PromptLoader(
            prompts,
            prompts_per_step,
            data_seed=self.data_seed,
            rank=self._attached.global_rank,
            world_size=self._attached.world_size,
            shuffle=shuffle,
            longest_first=shuffle and self.longest_first,
        )


def _benchmark(source: ProblemSource) -> list[Problem]:
    try:
        problems = source.load("test", seed=0)  # whatever the data seed: runs are compared on them
    except ValueError as error:
        raise ValueError(f"benchmark {source.task}: {error}") from error
    if not problems:
        raise ValueError(f"benchmark {source.task} has no problem")
    return problems


def _as_list(sources: list[ProblemSource] | ProblemSource) -> list[ProblemSource]:
    return [sources] if isinstance(sources, ProblemSource) else list(sources)
