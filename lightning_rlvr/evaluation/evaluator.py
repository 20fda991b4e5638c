"""Held-out and test problems: sampled, verified, kept and summed up."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lightning.pytorch.strategies import Strategy

from lightning_rlvr.distributed import gather_list
from lightning_rlvr.evaluation.samples import Sample
from lightning_rlvr.evaluation.store import SampleStore
from lightning_rlvr.evaluation.summary import EvaluationSummary
from lightning_rlvr.pipeline import Collection, Verify, collect
from lightning_rlvr.policy.policy import Policy
from lightning_rlvr.rollout.base import RolloutEngine, Sampling
from lightning_rlvr.types import PromptBatch

_Shown = tuple[int, int, int, str, str, str]
"""Batch, row and rank of a problem, which give its place in the data; its set, id and hash."""


class Evaluator:
    """Draws the samples that are still missing and adds them, with those that a store knows, to the summary.

    The seed of a sample is made of ``sample_seed``, its problem and its number: arms that share the seed share the
    random numbers, and a larger ``num_samples`` begins with the same samples.

    Args:
        policy: Samples and decodes.
        engine: How it samples.
        verify: Completions to verdicts.
        sampling: Temperature and budget.
        num_samples: Completions for each problem.
        sample_seed: Seed of the sampling.
        summary: Where the samples are summed up.
        stores: Where they are kept, by set; none are kept of a set that is missing here.
        rank: Number of this process.
    """

    def __init__(
        self,
        policy: Policy,
        engine: RolloutEngine,
        verify: Verify,
        sampling: Sampling,
        *,
        num_samples: int,
        sample_seed: int,
        summary: EvaluationSummary,
        stores: Mapping[str, SampleStore],
        rank: int = 0,
    ) -> None:
        self.policy = policy
        self.engine = engine
        self.verify = verify
        self.sampling = sampling
        self.num_samples = num_samples
        self.sample_seed = sample_seed
        self.summary = summary
        self.stores = stores
        self.rank = rank
        self._num_batches = 0
        self._shown: list[_Shown] = []

    def evaluate(self, prompts: PromptBatch) -> None:
        """Sample, verify and count this rank's prompts."""
        try:
            self._evaluate(prompts)
        except BaseException:
            for store in self.stores.values():
                store.close()
            raise

    def _evaluate(self, prompts: PromptBatch) -> None:
        sets = [prompts.task_names[task] for task in prompts.task_id.tolist()]
        hashes = list(map(problem_hash, prompts.problem_ids, prompts.prompts, prompts.columns))
        for row, (name, problem, shown) in enumerate(zip(sets, prompts.problem_ids, hashes, strict=True)):
            self._shown.append((self._num_batches, row, self.rank, name, problem, shown))
        self._num_batches += 1
        known: dict[str, list[Sample]] = {name: [] for name in sets}
        missing: list[list[int]] = []
        for name, shown in zip(sets, hashes, strict=True):
            done = self.stores[name].done if name in self.stores else {}
            numbers = range(self.num_samples)
            known[name] += [done[shown, number] for number in numbers if (shown, number) in done]
            missing.append([number for number in numbers if (shown, number) not in done])
        drawn: dict[str, list[Sample]] = {name: [] for name in sets}
        if any(missing):
            collection = collect(
                self.policy,
                self.engine,
                self.verify,
                prompts,
                self.sampling,
                samples=missing,
                seed_parts=(self.sample_seed, "evaluation"),
            )
            for prompt, sample in zip(collection.prompt_index.tolist(), _samples(collection, hashes), strict=True):
                drawn[sets[prompt]].append(sample)
        for name, samples in drawn.items():
            if samples and name in self.stores:
                self.stores[name].add(samples, self.rank)
            self.summary.update(name, known[name] + samples)

    def finish(self, strategy: Strategy) -> dict[str, dict[str, float]]:
        """Complete the stores and sum up over all processes, by set; a collective call."""
        everything = sorted(gather_list(strategy, self._shown))  # hence everybody's samples are on disk
        if self.rank == 0:
            for name, store in self.stores.items():
                problems = [(problem, shown) for *_, set_name, problem, shown in everything if set_name == name]
                store.finish(list(dict.fromkeys(problems)), self.num_samples)
        return self.summary.compute()


def problem_hash(problem_id: str, prompt: str, columns: Mapping[str, Any]) -> str:
    """What tells a problem from every other, and from itself once prompt, gold answer or another column changed.

    Example:
        >>> problem_hash("sums/1", "1 + 1 = ?", {"answer": "2"})
        '4cf26192df852b4f'
    """
    record = json.dumps([problem_id, prompt, columns], sort_keys=True, default=repr)
    return hashlib.sha256(record.encode()).hexdigest()[:16]


def described(part: Any) -> Any:
    """What a part is and how it is set, as plain values; functions by their import path.

    Example:
        >>> from lightning_rlvr.verify.exact import ExactVerifier
        >>> described([ExactVerifier(extract="last_line"), len])
        [{'class': 'lightning_rlvr.verify.exact.ExactVerifier', 'extract': 'last_line', 'after': None}, 'builtins.len']
    """
    if part is None or isinstance(part, (str, int, float)):
        return part
    if isinstance(part, Mapping):
        return {str(name): described(value) for name, value in part.items()}
    if isinstance(part, (list, tuple)):
        return [described(value) for value in part]
    if callable(part) and hasattr(part, "__qualname__"):
        return f"{part.__module__}.{part.__qualname__}"
    settings = {name: value for name, value in vars(part).items() if not name.startswith("_")}
    return {"class": f"{type(part).__module__}.{type(part).__qualname__}", **described(settings)}


def _samples(collection: Collection, hashes: Sequence[str]) -> Iterator[Sample]:
    rollout = collection.rollout
    rows = zip(
        collection.prompt_index.tolist(),
        collection.samples,
        collection.verdicts,
        collection.texts,
        rollout.completion_mask.sum(1).tolist(),
        rollout.truncated.tolist(),
        rollout.seeds.tolist(),
        strict=True,
    )
    for prompt, number, verdict, text, tokens, truncated, seed in rows:
        yield Sample(
            problem_id=collection.prompts.problem_ids[prompt],
            problem_hash=hashes[prompt],
            sample=number,
            status=verdict.status,
            reward=verdict.reward,
            answer=verdict.answer,
            tokens=tokens,
            truncated=truncated,
            seed=seed,
            text=text,
        )
