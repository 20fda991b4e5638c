"""What a training step logs about rewards, advantages, credit, policy and completions: the same tags for all arms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed
from torch import Tensor

from lightning_rlvr.functional.groups import group_std, is_constant_group
from lightning_rlvr.metrics.step import StepMetrics
from lightning_rlvr.pipeline import Collection
from lightning_rlvr.types import Rollout
from lightning_rlvr.verify.base import STATUSES

if TYPE_CHECKING:
    from lightning_rlvr.credit.base import CreditAssigner


@dataclass(frozen=True, kw_only=True, eq=False)
class StepRecord:
    """A finished training step, as callbacks get it: ``outputs["record"]`` in ``on_train_batch_end``."""

    collection: Collection
    """The rollout as sampled, with texts and verdicts."""
    rollout: Rollout
    """The rows as they entered the loss; those forwarded with the trainer's log-probs and every declared statistic,
    the others with the sampler's log-probs and statistics of 0."""
    advantages: Tensor
    """float32 ``[B]``."""
    token_advantages: Tensor
    """float32 ``[B, T]``; 0 in rows that were not forwarded."""
    forwarded: Tensor
    """bool ``[B]``: rows that went through the policy (the others have advantage 0)."""


def log_record(
    metrics: StepMetrics, record: StepRecord, assigner: CreditAssigner, part_names: Sequence[str] = ()
) -> None:
    """Add everything that can be said about a step without another forward.

    Args:
        metrics: Where to.
        record: The finished step.
        assigner: What assigned the credit.
        part_names: Parts of composed rewards in any task, the same on all ranks.
    """
    _log_rewards(metrics, record, part_names)
    _log_completions(metrics, record)
    _log_advantages(metrics, record)
    _log_credit(metrics, record, assigner)


def _log_rewards(metrics: StepMetrics, record: StepRecord, part_names: Sequence[str]) -> None:
    rollout, collection = record.rollout, record.collection
    scored = ~rollout.rewards.isnan()
    metrics.mean("reward/mean", rollout.rewards)
    metrics.mean("reward/group_std", group_std(rollout.rewards, rollout.group_index), scored)
    metrics.mean("reward/unscored", (~scored).float())
    metrics.maximum("reward/max", rollout.rewards[scored])
    names = collection.prompts.task_names
    if len(names) > 1:
        for task, name in enumerate(names):
            metrics.mean(f"reward/mean_{name}", rollout.rewards, rollout.task_id == task)
    statuses = [verdict.status for verdict in collection.verdicts]
    for status in STATUSES:
        metrics.mean(f"verify/{status}", torch.tensor([float(status == got) for got in statuses]))
    for name in part_names:
        parts = [verdict.parts.get(name, torch.nan) for verdict in collection.verdicts]
        metrics.mean(f"reward/part_{name}", torch.tensor(parts))


def _log_completions(metrics: StepMetrics, record: StepRecord) -> None:
    rollout = record.collection.rollout
    lengths = rollout.completion_mask.sum(1).float()
    correct = torch.tensor([v.status == "correct" for v in record.collection.verdicts], device=lengths.device)
    metrics.mean("completion/length", lengths)
    metrics.mean("completion/length_correct", lengths, correct)
    metrics.mean("completion/length_wrong", lengths, ~correct)
    metrics.mean("completion/length_terminated", lengths, ~rollout.truncated)
    metrics.maximum("completion/length_max", lengths)
    metrics.mean("completion/truncated", rollout.truncated.float())


def _log_advantages(metrics: StepMetrics, record: StepRecord) -> None:
    advantages, rollout = record.advantages, record.rollout
    constant = is_constant_group(rollout.rewards, rollout.group_index)
    sizes = torch.bincount(rollout.group_index)[rollout.group_index]
    metrics.ratio("advantage/groups_without_signal", (constant / sizes).sum(), (1 / sizes).sum())
    metrics.mean("advantage/mean", advantages)
    metrics.rms("advantage/rms", advantages)
    metrics.maximum("advantage/abs_max", advantages.abs())
    metrics.mean("advantage/rows_forwarded", record.forwarded.float())
    names = record.collection.prompts.task_names
    if len(names) > 1:
        for task, name in enumerate(names):
            metrics.rms(f"advantage/rms_{name}", advantages, rollout.task_id == task)


def _log_credit(metrics: StepMetrics, record: StepRecord, assigner: CreditAssigner) -> None:
    rollout, advantages, credit = record.rollout, record.advantages, record.token_advantages
    live = (advantages != 0) & rollout.completion_mask.any(1) & record.forwarded
    mask = rollout.completion_mask & live[:, None]
    lengths = mask.sum(1).clamp(min=1)
    weights = credit / torch.where(live, advantages, 1.0)[:, None]
    total, squares = weights.sum(1), weights.square().sum(1)
    metrics.mean("credit/ess", total.square() / (lengths * squares.clamp(min=1e-12)), live)
    metrics.maximum("credit/mass_error", (credit.sum(1) / lengths - advantages).abs()[live])
    metrics.maximum("credit/weight_max", weights[mask])
    metrics.mean("credit/sign_flipped", (weights < 0).float(), mask)
    for name, values in assigner.diagnostics(rollout).items():
        metrics.mean(f"credit/{name}", values.float(), rollout.completion_mask & record.forwarded[:, None])
    metrics.correlation("credit/weight_entropy_correlation", weights[mask], rollout.statistics["entropy"][mask])
