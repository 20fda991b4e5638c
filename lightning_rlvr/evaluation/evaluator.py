"""Held-out and test problems: sampled, kept, verified and summed up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities import rank_zero_info

from lightning_rlvr.distributed import gather_list
from lightning_rlvr.evaluation.samples import Sample
from lightning_rlvr.evaluation.store import SampleStore
from lightning_rlvr.evaluation.summary import EvaluationSummary
from lightning_rlvr.hashing import problem_hash
from lightning_rlvr.pipeline import draw
from lightning_rlvr.policy.policy import Policy
from lightning_rlvr.rollout.base import RolloutEngine, Sampling
from lightning_rlvr.types import PromptBatch
from lightning_rlvr.verification import Judge, attempt
from lightning_rlvr.verify.base import Verdict

_ROWS_AT_ONCE = 256
"""Samples that are drawn before they are kept: at most so many are lost with a process that dies."""


class _Judged(NamedTuple):
    """A sample that was counted; the first four say where it stands in the data."""

    batch: int
    row: int
    rank: int
    number: int
    set_name: str
    problem_id: str
    problem_hash: str
    verdict: Verdict
    reused: bool


class Evaluator:
    """Draws the samples that are still missing, and judges and counts them with those that a store knows.

    The seed of a sample is made of ``sample_seed``, its problem and its number: arms that share the seed share the
    random numbers, and a larger ``num_samples`` begins with the same samples.

    Args:
        policy: Samples and decodes.
        engine: How it samples.
        judge: Attempts to verdicts.
        sampling: Temperature and budget.
        num_samples: Completions for each problem.
        sample_seed: Seed of the sampling.
        summary: Where the samples are summed up.
        stores: Where they are kept, by set; none are kept of a set that is missing here.
        conditions: What samples depend on beside problem and number, for people.
        rank: Number of this process.
    """

    def __init__(
        self,
        policy: Policy,
        engine: RolloutEngine,
        judge: Judge,
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
        self.judge = judge
        self.sampling = sampling
        self.num_samples = num_samples
        self.sample_seed = sample_seed
        self.summary = summary
        self.stores = stores
        self.conditions = conditions
        self.rank = rank
        self.num_reused = 0
        """Samples of all processes that were in the stores before, after ``finish``."""
        self._reused: set[tuple[str, int]] = set()
        self._num_batches = 0
        self._judged: list[_Judged] = []

    def evaluate(self, prompts: PromptBatch) -> None:
        """Sample, verify and count this rank's prompts."""
        try:
            samples = self._complete(prompts)
            self._count(prompts, samples)
        except BaseException:
            self.close()
            if self.stores:
                rank_zero_info("the samples so far are kept: the same command goes on with them")
            raise

    def close(self) -> None:
        """Let other processes at the stores."""
        for store in self.stores.values():
            store.close()

    def _complete(self, prompts: PromptBatch) -> list[tuple[int, Sample]]:
        """All samples of the prompts, each with the row of its prompt; new ones are in the store by then."""
        sets = [prompts.task_names[task] for task in prompts.task_id.tolist()]
        hashes = list(_hashes(prompts))
        samples: list[tuple[int, Sample]] = []
        missing: list[tuple[int, int]] = []
        for row, (name, shown) in enumerate(zip(sets, hashes, strict=True)):
            done = self.stores[name].done if name in self.stores else {}
            for number in range(self.num_samples):
                if (shown, number) in done:
                    samples.append((row, done[shown, number]))
                    self._reused.add((shown, number))
                else:
                    missing.append((row, number))
        for start in range(0, len(missing), _ROWS_AT_ONCE):
            drawn = list(self._draw(prompts, hashes, missing[start : start + _ROWS_AT_ONCE]))
            for name in dict.fromkeys(sets[row] for row, _ in drawn):
                if name in self.stores:
                    self.stores[name].add([sample for row, sample in drawn if sets[row] == name], self.rank)
            samples += drawn
        return samples

    def _draw(
        self, prompts: PromptBatch, hashes: Sequence[str], wanted: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[int, Sample]]:
        parts = (self.sample_seed, "evaluation")
        drawn = draw(self.policy, self.engine, prompts, self.sampling, wanted=wanted, seed_parts=parts)
        for (place, ids, truncated), seed in zip(drawn.rows, drawn.completions.seeds.tolist(), strict=True):
            row, number = wanted[place]
            yield (
                row,
                Sample(
                    problem_id=prompts.problem_ids[row],
                    problem_hash=hashes[row],
                    sample=number,
                    tokens=len(ids),
                    truncated=truncated,
                    seed=seed,
                    text=self.policy.decode(ids),
                    completion_ids=ids,
                ),
            )

    def _count(self, prompts: PromptBatch, samples: Sequence[tuple[int, Sample]]) -> None:
        tasks = prompts.task_id.tolist()
        sets = [prompts.task_names[tasks[row]] for row, _ in samples]
        attempts = [
            attempt(
                prompts,
                row,
                sample.text or "",
                sample.completion_ids or (),
                truncated=sample.truncated,
                max_completion_length=self.sampling.max_completion_length,
            )
            for row, sample in samples
        ]
        counted: dict[str, list[Sample]] = {name: [] for name in sets}
        for name, (row, sample), verdict in zip(sets, samples, self.judge(sets, attempts), strict=True):
            counted[name].append(sample.judged(verdict))
            place = self._num_batches, row, self.rank, sample.sample
            key = sample.problem_hash, sample.sample
            self._judged.append(
                _Judged(*place, name, prompts.problem_ids[row], key[0], verdict, reused=key in self._reused)
            )
        for name, of_set in counted.items():
            self.summary.update(name, of_set)
        self._num_batches += 1

    def finish(self, strategy: Strategy) -> dict[str, dict[str, float]]:
        """Complete the stores and sum up over all processes, by set; a collective call."""
        if self.stores:
            everything = sorted(gather_list(strategy, self._judged), key=lambda one: one[:4])
            self.num_reused = sum(one.reused for one in everything)
            for name, store in self.stores.items():
                of_set = [one for one in everything if one.set_name == name]
                problems = list(dict.fromkeys((one.problem_id, one.problem_hash) for one in of_set))
                verdicts = {(one.problem_hash, one.number): one.verdict for one in of_set}
                if self.rank == 0:
                    store.finish(problems, self.num_samples, verdicts)
        return self.summary.compute()


def _hashes(prompts: PromptBatch) -> Iterator[str]:
    """What tells the problems of a batch apart, as the policy is shown them."""
    ids, mask = prompts.prompt_ids.cpu(), prompts.prompt_mask.cpu()
    for row, (problem_id, prompt) in enumerate(zip(prompts.problem_ids, prompts.prompts, strict=True)):
        yield problem_hash(problem_id, prompt, {"prompt_ids": ids[row][mask[row]].tolist()})
