"""Held-out and test problems: sampled, verified, kept and summed up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lightning.pytorch.strategies import Strategy

from lightning_rlvr.distributed import gather_list
from lightning_rlvr.evaluation.samples import Sample
from lightning_rlvr.evaluation.store import SampleStore
from lightning_rlvr.evaluation.summary import EvaluationSummary
from lightning_rlvr.hashing import problem_hash
from lightning_rlvr.pipeline import Collection, Verify, collect
from lightning_rlvr.policy.policy import Policy
from lightning_rlvr.registry import class_path, settings_of
from lightning_rlvr.rollout.base import RolloutEngine, Sampling
from lightning_rlvr.types import PromptBatch


class _Shown(NamedTuple):
    """A problem that was evaluated; the first three give its place in the data."""

    batch: int
    row: int
    rank: int
    set_name: str
    problem_id: str
    problem_hash: str


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
        conditions: What samples depend on beside problem, verifier and number, for people.
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
        conditions: Mapping[str, Any],
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
        self.conditions = conditions
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
        for row, problem in enumerate(zip(sets, prompts.problem_ids, hashes, strict=True)):
            self._shown.append(_Shown(self._num_batches, row, self.rank, *problem))
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
                problems = [(one.problem_id, one.problem_hash) for one in everything if one.set_name == name]
                store.finish(list(dict.fromkeys(problems)), self.num_samples)
        return self.summary.compute()


def described(part: Any) -> Any:
    """What a part is and how it was set, as plain values; functions by their import path.

    Raises:
        ValueError: The part does not keep its settings as attributes of the same names.

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
    if hasattr(part, "__qualname__"):
        return f"{part.__module__}.{part.__qualname__}"
    settings, unknown = settings_of(part)
    if unknown:
        raise ValueError(
            f"{type(part).__name__} must keep its settings as attributes of their names, so that an evaluation knows "
            f"what it continues, got none called {', '.join(unknown)}; `evaluation.keep` nothing does without"
        )
    return {"class": class_path(type(part)), **described(settings)}


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
            reason=verdict.reason,
            parts=verdict.parts,
        )
