"""Which problems a run uses: clear of benchmarks, verifiable, short enough, drawn by seed; and what was left out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import compress, islice

from lightning.pytorch.utilities import rank_zero_warn
from transformers import PreTrainedTokenizerBase

from lightning_rlvr.data.loader import PromptSet
from lightning_rlvr.data.overlap import overlapping
from lightning_rlvr.data.sources import Problem, ProblemSource, Split, shuffled
from lightning_rlvr.data.templates import EncodedPrompt, PromptTemplate
from lightning_rlvr.functional.random import derive_seed

_OUTCOMES = ("overlapping", "unverifiable", "too_long", "chosen")


class Selection:
    """Chooses the problems of each split and encodes their prompts; what it leaves out is counted, and said.

    Args:
        sources: Where problems come from, by task.
        tokenizer: Makes the prompts.
        template: How problems are shown, unless their source says otherwise.
        max_prompt_length: Longer prompts (tokens) are left out.
        skip_bad_golds: Leave out problems that cannot be verified, instead of stopping.
    """

    def __init__(
        self,
        sources: Mapping[str, ProblemSource],
        tokenizer: PreTrainedTokenizerBase,
        template: PromptTemplate,
        *,
        max_prompt_length: int,
        skip_bad_golds: bool,
    ) -> None:
        self.sources = sources
        self.tokenizer = tokenizer
        self.template = template
        self.max_prompt_length = max_prompt_length
        self.skip_bad_golds = skip_bad_golds
        self._counts: dict[tuple[Split, str], Counter[str]] = defaultdict(Counter)

    @property
    def cleaning(self) -> dict[str, dict[str, int]]:
        """Counts by `split/task`: what was read, left out by reason, and chosen."""
        return {
            f"{split}/{task}": {**self.sources[task].cleaning, **{outcome: counts[outcome] for outcome in _OUTCOMES}}
            for (split, task), counts in self._counts.items()
        }

    def clear_of(self, tested: Sequence[Problem], problems: Sequence[Problem], num_words: int) -> list[Problem]:
        """The training problems that do not overlap with those that are tested on.

        Raises:
            ValueError: None is left.
        """
        overlaps = overlapping([one.problem for one in problems], [one.problem for one in tested], num_words)
        for problem in compress(problems, overlaps):
            self._counts["train", problem.task]["overlapping"] += 1
        if found := sum(overlaps):
            message = f"{found} of {len(problems)} training problems share {num_words} successive words with `test`"
            if found == len(problems):
                raise ValueError(f"{message}: none is left")
            rank_zero_warn(f"{message}: left out")
        return [problem for problem, overlap in zip(problems, overlaps, strict=True) if not overlap]

    def choose(
        self, problems: Sequence[Problem], split: Split, task_names: tuple[str, ...], count: int | None, seed: int
    ) -> PromptSet:
        """The first ``count`` problems that fit and can be verified, in an order by ``seed``; with None all that do.

        Raises:
            ValueError: There are not so many (of a benchmark all are taken then), or there is none; two have the same
                id; a problem cannot be shown; or it cannot be verified and none may be skipped.
        """
        self._require_distinct(problems)
        kind = {"train": "training", "val": "held-out"}.get(split) or problems[0].task
        setting = "num_problems" if split == "train" else f"{split}_problems"
        chosen: dict[int, EncodedPrompt] = {}
        complaints: dict[str, str] = {}
        lengths: list[int] = []
        order = iter(shuffled(len(problems), derive_seed(setting, seed)))
        while len(chosen) != count and (rows := list(islice(order, None if count is None else count - len(chosen)))):
            for row, complaint in zip(rows, self._complaints([problems[row] for row in rows]), strict=True):
                problem = problems[row]
                counts = self._counts[split, problem.task]
                if complaint is not None:
                    complaints[problem.id] = complaint
                    counts["unverifiable"] += 1
                    continue
                prompt = self._prompt(problem)
                lengths.append(len(prompt.ids))
                if lengths[-1] > self.max_prompt_length:
                    counts["too_long"] += 1
                    continue
                chosen[row] = prompt
                counts["chosen"] += 1
        self._report(complaints, lengths, kind)
        if not lengths:
            raise ValueError(f"none of {len(problems)} {kind} problems can be verified")
        if not chosen:
            raise ValueError(
                f"`max_prompt_length` {self.max_prompt_length} leaves no {kind} prompt: "
                f"the shortest has {min(lengths)} tokens"
            )
        if split != "test" and count is not None and len(chosen) < count:
            raise ValueError(f"`{setting}` must be at most the {len(chosen)} usable problems, got {count}")
        kept = sorted(chosen)
        pads = [i for i in (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0) if isinstance(i, int)]
        return PromptSet(
            problems=tuple(problems[row] for row in kept),
            prompts=tuple(chosen[row] for row in kept),
            task_names=task_names,
            pad_token_id=pads[0],
        )

    def _require_distinct(self, problems: Sequence[Problem]) -> None:
        first: dict[str, Problem] = {}
        for problem in problems:
            if first.setdefault(problem.id, problem) is not problem:
                source = type(self.sources[problem.task]).__name__
                raise ValueError(
                    f"problems must have different ids, got {problem.id!r} again from {source} (task {problem.task})"
                )

    def _complaints(self, problems: Sequence[Problem]) -> list[str | None]:
        found: dict[str, str | None] = {}
        for task in {problem.task for problem in problems}:
            of_task = [problem for problem in problems if problem.task == task]
            complaints = self.sources[task].verifier.check_rows([problem.columns for problem in of_task])
            found |= zip((problem.id for problem in of_task), complaints, strict=True)
        return [found[problem.id] for problem in problems]

    def _prompt(self, problem: Problem) -> EncodedPrompt:
        template = self.sources[problem.task].template or self.template
        try:
            return template.encode(self.tokenizer, {**problem.columns, "problem": problem.problem})
        except ValueError as error:
            raise ValueError(f"problem {problem.id}: {error}") from error

    def _report(self, complaints: Mapping[str, str], lengths: Sequence[int], kind: str) -> None:
        if complaints:
            first = "; ".join(f"{name}: {complaint}" for name, complaint in sorted(complaints.items())[:3])
            looked_at = len(complaints) + len(lengths)
            message = f"{len(complaints)} of {looked_at} {kind} problems cannot be verified ({first})"
            if not self.skip_bad_golds:
                raise ValueError(f"{message}; mend them, or set `skip_bad_golds` to leave them out")
            rank_zero_warn(f"{message}: left out")
        if long := sum(length > self.max_prompt_length for length in lengths):
            rank_zero_warn(
                f"{long} of {len(lengths)} {kind} prompts are longer than `max_prompt_length` "
                f"{self.max_prompt_length}: left out"
            )
