"""Policy-gradient losses: importance ratio x clipped surrogate x aggregation, each loss type a choice of the three."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lightning_rlvr.registry import Registry

Ratio = Literal["token", "gspo_token"]
Surrogate = Literal["clip", "cispo"]
Aggregation = Literal["sequence_mean", "token_mean", "minibatch_token_mean", "constant_length"]
Correction = Literal["token_truncate", "sequence_truncate"]


@dataclass(frozen=True)
class LossType:
    """A loss by its three parts; formulas in ``importance_ratio``, ``policy_losses`` and ``token_weights``.

    Args:
        ratio: What stands for the likelihood ratio of a token.
        surrogate: How ratio and advantage are joined.
        aggregation: What the token losses are divided by.
    """

    ratio: Ratio
    surrogate: Surrogate
    aggregation: Aggregation


_GRPO = LossType("token", "clip", "sequence_mean")

LOSS_TYPES: Registry[LossType] = Registry("loss type", "lightning_rlvr.loss_types")
LOSS_TYPES.register("grpo")(_GRPO)  # arXiv:2402.03300
LOSS_TYPES.register("dapo")(replace(_GRPO, aggregation="token_mean"))  # arXiv:2503.14476
LOSS_TYPES.register("dr_grpo")(replace(_GRPO, aggregation="constant_length"))  # arXiv:2503.20783
LOSS_TYPES.register("bnpo")(replace(_GRPO, aggregation="minibatch_token_mean"))  # name and definition as in TRL
LOSS_TYPES.register("cispo")(LossType("token", "cispo", "token_mean"))  # arXiv:2506.13585
LOSS_TYPES.register("gspo_token")(replace(_GRPO, ratio="gspo_token"))  # arXiv:2507.18071


def importance_ratio(
    logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, *, ratio: Ratio = "token", clamp: float = 20.0
) -> Tensor:
    """Likelihood ratio of new to old policy for each token.

    With ``l = clamp(logprobs - old_logprobs)`` and ``sg`` for stop-gradient:

    * ``token``: ``exp(l)``.
    * ``gspo_token``: ``sg[exp(mean of l over the row)] * pi / sg[pi]``, arXiv:2507.18071. The value is that of the
      sequence, the gradient that of the token, so token credit keeps its meaning.

    Args:
        logprobs: ``[b, T]`` float, nats.
        old_logprobs: ``[b, T]`` float, nats.
        mask: ``[b, T]`` bool, valid tokens.
        ratio: Which ratio.
        clamp: Largest absolute value of ``l``, nats; beyond it the gradient is 0, never infinite.

    Returns:
        ``[b, T]`` float32.

    Example:
        >>> old, mask = torch.tensor([[-1.0, -1.0]]), torch.tensor([[True, True]])
        >>> importance_ratio(torch.tensor([[-1.0, -2.0]]), old, mask)
        tensor([[1.0000, 0.3679]])
        >>> importance_ratio(torch.tensor([[-1.0, -2.0]]), old, mask, ratio="gspo_token")
        tensor([[0.6065, 0.6065]])
    """
    log_ratio = torch.where(mask, logprobs.float() - old_logprobs.float(), 0.0).clamp(-clamp, clamp)
    if ratio == "gspo_token":
        sequence = log_ratio.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp_min(1)
        log_ratio = log_ratio - log_ratio.detach() + sequence.detach()
    return log_ratio.exp()


class TokenLosses(NamedTuple):
    """Loss of each token before aggregation, and what the clip did to it, ``[b, T]`` each."""

    losses: Tensor
    """float32, with gradient; exactly 0 outside the mask."""
    clipped_low: Tensor
    """bool: the lower bound binds."""
    clipped_high: Tensor
    """bool: the upper bound binds."""
    ratio: Tensor
    """float32, detached: the ratio before the clip; 1 outside the mask."""


def policy_losses(
    logprobs: Tensor,
    old_logprobs: Tensor,
    token_advantages: Tensor,
    mask: Tensor,
    *,
    loss_type: str,
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    delta: float | None = None,
) -> TokenLosses:
    """Loss of each token, before aggregation, and where the clip binds.

    With ``A = token_advantages``, ``rho = importance_ratio(...)`` and ``sg`` for stop-gradient:

    * ``clip``: ``-min(rho A, clip(rho, 1 - epsilon, 1 + epsilon_high) A)``, arXiv:2402.03300 eq. 3; the upper bound of
      its own is arXiv:2503.14476 eq. 8. With ``delta`` (dual clip, arXiv:1912.09729) at most ``-delta A`` where
      ``A < 0``. It binds below only where the advantage is negative, above only where it is positive, or where it is
      negative and the ratio above ``delta``.
    * ``cispo``: ``-sg[min(rho, 1 + epsilon_high)] A logprobs``, arXiv:2506.13585 with the upper bound only, which
      binds wherever the advantage is not 0.

    Law: both are positively homogeneous in ``A``, so weighting the advantage is weighting the loss.

    Args:
        logprobs: ``[b, T]`` float, nats, with gradient.
        old_logprobs: ``[b, T]`` float, nats.
        token_advantages: ``[b, T]`` float.
        mask: ``[b, T]`` bool, valid tokens.
        loss_type: Name in ``LOSS_TYPES``; its aggregation is left to ``token_weights``.
        epsilon: Lower clip, 1 minus the smallest ratio. Not read by ``cispo`` except as default of the next.
        epsilon_high: Upper clip, the largest ratio minus 1; None = ``epsilon``.
        delta: Largest ratio for negative advantages, greater than 1; None = unbounded. Not read by ``cispo``.

    Raises:
        ValueError: No such loss type.

    Example:
        >>> old, mask = torch.zeros(1, 3), torch.tensor([[True, True, False]])
        >>> new, token_advantages = torch.tensor([[2.0, 2.0, 2.0]]).log(), torch.tensor([[1.0, -1.0, 0.0]])
        >>> token_losses = policy_losses(new, old, token_advantages, mask, loss_type="grpo")
        >>> token_losses.losses, token_losses.clipped_high
        (tensor([[-1.2000,  2.0000,  0.0000]]), tensor([[ True, False, False]]))
    """
    kind = LOSS_TYPES[loss_type]
    highest = 1 + (epsilon if epsilon_high is None else epsilon_high)
    ratio = importance_ratio(logprobs, old_logprobs, mask, ratio=kind.ratio)
    value = ratio.detach()
    low, high = torch.zeros_like(mask), (value > highest) & mask
    if kind.surrogate == "cispo":
        losses = -value.clamp(max=highest) * token_advantages * logprobs.float()
        high &= token_advantages != 0
    else:
        clipped = ratio.clamp(1 - epsilon, highest)
        losses = -torch.minimum(ratio * token_advantages, clipped * token_advantages)
        negative = token_advantages < 0
        low = (value < 1 - epsilon) & negative & mask
        high &= token_advantages > 0
        if delta is not None:
            losses = torch.where(negative, torch.minimum(losses, -delta * token_advantages), losses)
            high |= (value > delta) & negative & mask
    return TokenLosses(torch.where(mask, losses, 0.0), low, high, value.masked_fill(~mask, 1))


@torch.no_grad()
def sampling_weights(
    logprobs: Tensor, sampler_logprobs: Tensor, mask: Tensor, *, correction: Correction, cap: float = 2.0
) -> Tensor:
    """Truncated importance weights that turn samples of the engine's distribution into samples of the trainer's.

    With ``l = logprobs - sampler_logprobs``, both of the weights that sampled:

    * ``token_truncate``: ``min(exp(l), cap)`` (truncated importance sampling, Ionides 2008, for each token).
    * ``sequence_truncate``: ``min(exp(sum of l over the row), cap)`` for all of its tokens.

    Laws: equal log-probs weigh exactly 1; no gradient; a weight never exceeds ``cap``. The truncating modes of TRL's
    `vllm_importance_sampling_correction` are these without a lower bound.

    Args:
        logprobs: ``[b, T]`` float, nats, of the trainer.
        sampler_logprobs: ``[b, T]`` float, nats, of the engine.
        mask: ``[b, T]`` bool, valid tokens.
        correction: Which weight.
        cap: Largest weight, at least 1.

    Returns:
        ``[b, T]`` float32, 1 outside the mask.

    Example:
        >>> own, engine = torch.tensor([[0.6, 0.5, 0.5]]).log(), torch.tensor([[0.2, 0.5, 1.0]]).log()
        >>> mask = torch.tensor([[True, True, True]])
        >>> sampling_weights(own, engine, mask, correction="token_truncate")
        tensor([[2.0000, 1.0000, 0.5000]])
        >>> sampling_weights(own, engine, mask, correction="sequence_truncate")
        tensor([[1.5000, 1.5000, 1.5000]])
    """
    difference = torch.where(mask, logprobs.float() - sampler_logprobs.float(), 0.0)
    if correction == "sequence_truncate":
        difference = difference.sum(1, keepdim=True).expand_as(difference)
    return difference.exp().clamp(max=cap).masked_fill(~mask, 1.0)


def token_weights(
    mask: Tensor,
    *,
    aggregation: Aggregation,
    num_sequences: float,
    num_tokens: float,
    max_completion_length: int,
) -> Tensor:
    """Weight of each token, such that the loss of an optimizer step is ``(token_weights * losses).sum()``.

    With ``L`` a token loss, ``T_i`` the valid tokens of row i, ``N = num_sequences`` and sums over valid tokens:

    * ``sequence_mean``: ``1/N sum_i 1/T_i sum_t L``, arXiv:2402.03300 eq. 3.
    * ``token_mean``: ``1/num_tokens sum_i sum_t L``, arXiv:2503.14476 eq. 8.
    * ``minibatch_token_mean``: the same formula; the caller counts the tokens of this optimizer step.
    * ``constant_length``: ``1/(N max_completion_length) sum_i sum_t L``, arXiv:2503.20783.

    The counts are those of the whole step, over all micro-batches and ranks, so the sum does not depend on how the
    rows are split. (DDP averages gradients: multiply by the world size.) When a rollout is cut into several optimizer
    steps, ``token_mean`` takes all its tokens divided by the number of steps.

    Args:
        mask: ``[b, T]`` bool, valid tokens of this micro-batch.
        aggregation: What the token losses are divided by.
        num_sequences: Rows with at least one valid token, in the whole step.
        num_tokens: Valid tokens in the whole step.
        max_completion_length: Tokens of the completion budget.

    Returns:
        ``[b, T]`` float32, exactly 0 outside the mask and where the denominator is 0.

    Example:
        >>> mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
        >>> counts = {"num_sequences": 2, "num_tokens": 6, "max_completion_length": 4}
        >>> token_weights(mask, aggregation="sequence_mean", **counts)
        tensor([[0.2500, 0.2500, 0.0000, 0.0000],
                [0.1250, 0.1250, 0.1250, 0.1250]])
    """
    weights = mask.float()
    if aggregation == "sequence_mean":
        weights = weights / mask.sum(1, keepdim=True).clamp_min(1)
    denominators: dict[Aggregation, float] = {
        "sequence_mean": num_sequences,
        "token_mean": num_tokens,
        "minibatch_token_mean": num_tokens,
        "constant_length": num_sequences * max_completion_length,
    }
    denominator = denominators[aggregation]
    return weights / denominator if denominator > 0 else torch.zeros_like(weights)
