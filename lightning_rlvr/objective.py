"""The loss of a micro-batch: surrogate, KL and entropy terms under denominators of the global batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_rlvr.functional.divergence import k3
from lightning_rlvr.functional.losses import LOSS_TYPES, TokenLosses, policy_losses, sampling_weights, token_weights
from lightning_rlvr.pipeline import Scores
from lightning_rlvr.settings import LossSettings


@dataclass(frozen=True, kw_only=True)
class Denominators:
    """What the losses of one optimizer step are divided by, counted over all ranks.

    Counting before the first forward is what makes the gradient the same for any micro-batch and any world size.
    """

    num_sequences: float
    """Rows of the minibatch with at least one valid token."""
    num_tokens: float
    """Valid tokens: of the minibatch for `bnpo`, else of the rollout batch divided by the number of minibatches."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The loss of some rows as their share of the global loss, and the sums that logs need."""

    total: Tensor
    """Scalar with gradient; summed over micro-batches and ranks it is the loss of the optimizer step."""
    policy: Tensor
    kl: Tensor
    entropy: Tensor
    tokens: TokenLosses
    """The surrogate token by token."""


def objective(
    scores: Scores,
    old_logprobs: Tensor,
    sampler_logprobs: Tensor,
    token_advantages: Tensor,
    mask: Tensor,
    settings: LossSettings,
    denominators: Denominators,
    max_completion_length: int,
) -> Objective:
    """Clipped surrogate of ``token_advantages`` plus unweighted KL and entropy terms.

    Args:
        scores: Log-probs with gradient, and what the other terms need.
        old_logprobs: float32 ``[b, T]``, nats, of the policy that sampled, as the trainer sees it; detached.
        sampler_logprobs: float32 ``[b, T]``, nats, of the same policy, as the engine saw it.
        token_advantages: float32 ``[b, T]``.
        mask: bool ``[b, T]``.
        settings: The loss.
        denominators: Counts over the global batch.
        max_completion_length: The constant length of `dr_grpo`.
    """
    weights = token_weights(
        mask,
        aggregation=LOSS_TYPES[settings.loss_type].aggregation,
        num_sequences=denominators.num_sequences,
        num_tokens=denominators.num_tokens,
        max_completion_length=max_completion_length,
    )
    tokens = policy_losses(
        scores.logprobs,
        old_logprobs,
        token_advantages,
        mask,
        loss_type=settings.loss_type,
        epsilon=settings.epsilon,
        epsilon_high=settings.epsilon_high,
        delta=settings.delta,
    )
    losses = tokens.losses
    if (correction := settings.importance_sampling) is not None:
        cap = settings.importance_sampling_cap
        losses = losses * sampling_weights(old_logprobs, sampler_logprobs, mask, correction=correction, cap=cap)
    policy = (weights * losses).sum()
    kl = torch.zeros_like(policy)
    entropy = torch.zeros_like(policy)
    if scores.reference_logprobs is not None:
        kl = (weights * k3(scores.logprobs, scores.reference_logprobs)).sum()
    if scores.entropy is not None:
        entropy = (weights * scores.entropy).sum()
    return Objective(
        total=policy + settings.beta * kl - settings.entropy_coef * entropy,
        policy=policy.detach(),
        kl=kl.detach(),
        entropy=entropy.detach(),
        tokens=tokens,
    )
