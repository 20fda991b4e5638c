"""From prompts to token advantages: collect, score, calibrate, assign; one function for each line of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from lightning_rlvr.calibration.base import RewardCalibrator
from lightning_rlvr.credit.ablation.base import AblatedPrompt
from lightning_rlvr.credit.base import CreditAssigner
from lightning_rlvr.functional.random import derive_seed
from lightning_rlvr.plugins import Needs
from lightning_rlvr.policy.policy import Policy
from lightning_rlvr.rollout.base import Finished, RolloutEngine, Sampling
from lightning_rlvr.stopwatch import Timed
from lightning_rlvr.types import Completions, PromptBatch, Rollout, TokenStatistics
from lightning_rlvr.verification import Judge, SampledRow, Verification
from lightning_rlvr.verify.base import Verdict

Gather = Callable[[Rollout], tuple[Rollout, slice]]
"""Rows of this rank -> rows of all ranks, and where those of this rank are."""


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Completions as sampled: padded, and row by row, each with its place among those asked for."""

    completions: Completions
    rows: tuple[SampledRow, ...]


@dataclass(frozen=True, kw_only=True)
class Collection:
    """A rollout with what only logs need: texts and verdicts."""

    rollout: Rollout
    prompts: PromptBatch
    prompt_index: Tensor
    texts: tuple[str, ...]
    verdicts: tuple[Verdict, ...]


def draw(
    policy: Policy,
    engine: RolloutEngine,
    prompts: PromptBatch,
    sampling: Sampling,
    *,
    wanted: Sequence[tuple[int, int]],
    seed_parts: tuple[int | str, ...],
    finished: Finished | None = None,
    timed: Timed = nullcontext,
) -> Draw:
    """Sample the completions that are asked for.

    Args:
        policy: Samples and decodes.
        engine: How it samples.
        prompts: N prompts.
        sampling: Temperature and budget.
        wanted: Prompt of each row, and its number among the samples of that prompt.
        seed_parts: With problem and sample number, what a row's seed is made of (run seed, step).
        finished: Told of rows as they end, by their place in ``wanted``.
        timed: Where the seconds go.

    Raises:
        ValueError: The engine did not return one non-empty completion for each row.
        FloatingPointError: Its log-probs are not finite.
    """
    device = prompts.prompt_ids.device
    prompt_index = torch.tensor([prompt for prompt, _ in wanted], dtype=torch.int64, device=device)
    parts = [(*seed_parts, prompts.problem_ids[prompt], sample) for prompt, sample in wanted]
    seeds = torch.tensor([derive_seed(*of_row) for of_row in parts], dtype=torch.int64, device=device)
    with timed("sync"):
        engine.sync(policy)
    with timed("rollout"):
        completions = engine.generate(policy, prompts, prompt_index, seeds, sampling, finished)
    if len(completions.completion_ids) != len(seeds) or not bool(completions.completion_mask.any(1).all()):
        raise ValueError(
            f"{type(engine).__name__} must return one non-empty completion for each of {len(seeds)} rows, got "
            f"{int(completions.completion_mask.any(1).sum())} (prompts: {', '.join(prompts.problem_ids)})"
        )
    if not bool(completions.logprobs[completions.completion_mask].isfinite().all()):
        raise FloatingPointError(
            f"the log-probs of {type(engine).__name__} must be finite, got "
            f"{completions.logprobs[~completions.logprobs.isfinite()][0].item()}; check the model's weights and dtype"
        )
    return Draw(completions=completions, rows=tuple(_rows(completions, prompt_index, seeds)))


def _rows(completions: Completions, prompt_index: Tensor, seeds: Tensor) -> Iterator[SampledRow]:
    """Completions without padding; their places are found by prompt and seed, for engines may change the order."""
    places = {asked: place for place, asked in enumerate(zip(prompt_index.tolist(), seeds.tolist(), strict=True))}
    for prompt, seed, ids, length, truncated in zip(
        completions.prompt_index.tolist(),
        completions.seeds.tolist(),
        completions.completion_ids.tolist(),
        completions.completion_mask.sum(1).tolist(),
        completions.truncated.tolist(),
        strict=True,
    ):
        yield SampledRow(places[prompt, seed], tuple(ids[:length]), truncated)


def collect(
    policy: Policy,
    engine: RolloutEngine,
    judge: Judge,
    prompts: PromptBatch,
    sampling: Sampling,
    *,
    row_local: AbstractSet[str] = frozenset(),
    num_generations: int,
    seed_parts: tuple[int | str, ...],
    first_group: int = 0,
    group_stride: int = 1,
    timed: Timed = nullcontext,
) -> Collection:
    """Sample ``num_generations`` completions for each prompt and verify them.

    Args:
        policy: Samples and decodes.
        engine: How it samples.
        judge: Attempts to verdicts.
        prompts: N prompts.
        sampling: Temperature and budget.
        row_local: Tasks whose rows may be judged while others still decode.
        num_generations: Completions for each prompt; rows of a prompt are neighbours.
        seed_parts: With problem and sample number, what a row's seed is made of (run seed, step).
        first_group: Number of the first prompt in the global batch.
        group_stride: Distance between the numbers of neighbouring prompts.
        timed: Where the seconds go.
    """
    wanted = [(prompt, sample) for prompt in range(len(prompts)) for sample in range(num_generations)]
    with Verification(
        judge,
        policy.decode,
        prompts,
        [prompt for prompt, _ in wanted],
        row_local=row_local,
        max_completion_length=sampling.max_completion_length,
    ) as verification:
        finished = verification.finished if verification.wants_finished else None
        drawn = draw(
            policy, engine, prompts, sampling, wanted=wanted, seed_parts=seed_parts, finished=finished, timed=timed
        )
        completions = drawn.completions
        with timed("verify"):
            texts, verdicts = verification.complete(drawn.rows)
    index = completions.prompt_index
    rollout = Rollout(
        prompt_ids=prompts.prompt_ids[index],
        prompt_mask=prompts.prompt_mask[index],
        evidence_mask=prompts.evidence_mask[index],
        completion_ids=completions.completion_ids,
        completion_mask=completions.completion_mask,
        group_index=index * group_stride + first_group,
        task_id=prompts.task_id[index],
        rewards=torch.tensor([verdict.reward for verdict in verdicts], dtype=torch.float32, device=index.device),
        truncated=completions.truncated,
        seeds=completions.seeds,
        old_logprobs=completions.logprobs,
        statistics=TokenStatistics(),
        model_inputs={name: tuple(rows[i] for i in index.tolist()) for name, rows in prompts.model_inputs.items()},
    )
    return Collection(
        rollout=rollout,
        prompts=prompts,
        prompt_index=index,
        texts=texts,
        verdicts=verdicts,
    )


def without_truncated(rollout: Rollout) -> Rollout:
    """The same rows, but truncated ones keep no valid token: they leave loss, statistics and normalisers alike."""
    mask = rollout.completion_mask & ~rollout.truncated[:, None]
    return replace(rollout, completion_mask=mask, old_logprobs=rollout.old_logprobs * mask)


@torch.no_grad()
def calibrate(calibrator: RewardCalibrator, rollout: Rollout, gather: Gather) -> Tensor:
    """Advantages ``[B]`` float32 of this rank's rows, after the calibrator has observed the rollout.

    Raises:
        ValueError: The calibrator returned another shape or dtype, or a value that is not finite.
    """
    seen, own = (rollout, slice(None)) if calibrator.group_local else gather(rollout)
    calibrator.observe(seen)
    return _checked(calibrator, "calibrate", calibrator.calibrate(seen), seen.rewards)[own]


@torch.no_grad()
def assign(assigner: CreditAssigner, rollout: Rollout, advantages: Tensor) -> Tensor:
    """Token advantages ``[B, T]`` float32.

    Raises:
        ValueError: The assigner returned another shape or dtype, a value that is not finite, or credit outside the
            mask.
    """
    credit = _checked(assigner, "assign", assigner.assign(rollout, advantages), rollout.old_logprobs)
    if bool((credit * ~rollout.completion_mask).any()):
        raise ValueError(f"`{type(assigner).__name__}.assign` gave credit to tokens outside `completion_mask`")
    return credit


def _checked(plugin: RewardCalibrator | CreditAssigner, method: str, values: Tensor, like: Tensor) -> Tensor:
    name = f"`{type(plugin).__name__}.{method}`"
    if not isinstance(values, Tensor):
        raise TypeError(f"{name} must return a tensor, got {type(values).__name__}")
    if values.shape != like.shape or values.dtype != torch.float32:
        raise ValueError(
            f"{name} must return float32 of shape {list(like.shape)}, got {values.dtype} of shape {list(values.shape)}"
        )
    if not bool(values.isfinite().all()):
        raise ValueError(f"{name} returned values that are not finite in rows {_rows_not_finite(values)}")
    return values


def _rows_not_finite(values: Tensor) -> list[int]:
    return (~values.isfinite()).reshape(len(values), -1).any(1).nonzero().flatten().tolist()[:8]


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What forwards say about the tokens of some rows, each ``[b, T]`` float32, 0 outside the mask."""

    logprobs: Tensor
    """Nats at the sampling temperature; with gradient where one was asked for."""
    entropy: Tensor | None
    """Nats, with gradient; only if the entropy enters the loss."""
    reference_logprobs: Tensor | None
    """Nats under the reference policy; only if the loss has a KL term."""
    statistics: TokenStatistics
    """Every declared statistic, detached."""


def score(policy: Policy, rollout: Rollout, needs: Needs, *, temperature: float) -> Scores:
    """Log-probs and every declared statistic: one forward, and one without gradient for each thing that needs it."""
    completions = partial(
        policy.score,
        completion_ids=rollout.completion_ids,
        completion_mask=rollout.completion_mask,
        temperature=temperature,
    )
    same = AblatedPrompt(
        prompt_ids=rollout.prompt_ids, prompt_mask=rollout.prompt_mask, model_inputs=rollout.model_inputs
    )
    own = completions(
        **vars(same),
        statistics=sorted(needs.statistics),
        entropy=needs.entropy_gradient and torch.is_grad_enabled(),
    )
    statistics = dict(own.statistics)
    reference: Tensor | None = None
    with torch.no_grad():
        if needs.reads_reference:
            with policy.reference():
                reference = completions(**vars(same)).logprobs
        for ablation in needs.ablations:
            if ablation.reference:
                assert reference is not None
                statistics[ablation.statistic] = reference
                continue
            ablated = ablation.ablate(rollout, policy.encode, policy.pad_token_id)
            statistics[ablation.statistic] = completions(**vars(ablated)).logprobs
    return Scores(
        logprobs=own.logprobs,
        entropy=own.entropy,
        reference_logprobs=reference if needs.reference else None,
        statistics=TokenStatistics(statistics),
    )
