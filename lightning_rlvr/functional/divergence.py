"""Divergences between policies, estimated from the sampled tokens."""

from __future__ import annotations

from torch import Tensor


def k3(logprobs: Tensor, ref_logprobs: Tensor, clamp: float = 20.0) -> Tensor:
    """Estimate of KL(policy || reference) for each token, ``exp(d) - d - 1`` with ``d = ref_logprobs - logprobs``.

    Never negative, unbiased for tokens sampled from the policy; arXiv:2402.03300 eq. 4. ``d`` is clamped before the
    exponential, so value and gradient are finite for any pair of log-probs (beyond the clamp the gradient is 0).

    Args:
        logprobs: ``[b, T]`` float, nats.
        ref_logprobs: ``[b, T]`` float, nats.
        clamp: Largest absolute value of ``d``, nats.

    Returns:
        ``[b, T]`` float32, nats; 0 where both arguments are equal (as outside the mask, where both are 0).

    Example:
        >>> import torch
        >>> k3(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -2.0]]))
        tensor([[0.0000, 0.3679]])
    """
    d = (ref_logprobs.float() - logprobs.float()).clamp(-clamp, clamp)
    return (d.expm1() - d).clamp_min(0)  # rounding of expm1 may be one unit below d


def approx_kl(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """Estimate of KL(old policy || policy) for each token sampled by the old policy, without gradient, for logs.

    Args:
        logprobs: ``[b, T]`` float, nats.
        old_logprobs: ``[b, T]`` float, nats.

    Returns:
        ``[b, T]`` float32, nats, not negative.

    Example:
        >>> import torch
        >>> approx_kl(torch.tensor([[-2.0]]), torch.tensor([[-1.0]]))
        tensor([[0.3679]])
    """
    return k3(old_logprobs, logprobs).detach()
