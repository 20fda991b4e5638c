"""What n samples of a problem say about k of them: pass@k and maj@k, both unbiased."""

from __future__ import annotations

import torch
from torch import Tensor


def pass_at_k(num_samples: Tensor, num_correct: Tensor, k: int) -> Tensor:
    """Probability that at least one of ``k`` samples is correct, estimated without bias for each problem.

    ``1 - C(n-c, k) / C(n, k)``, the share of the subsets of size k with a correct sample: arXiv:2107.03374 eq. 1. At
    ``k = 1`` it is ``c / n``; at ``k = n`` it is whether any sample is correct, one Bernoulli draw for each problem.

    Args:
        num_samples: ``[P]`` int64, n; may differ between problems.
        num_correct: ``[P]`` int64, c.
        k: At least 1 and at most the smallest n.

    Returns:
        ``[P]`` float64 in [0, 1].

    Raises:
        ValueError: ``k`` or a count is out of range.

    Example:
        >>> pass_at_k(torch.tensor([8, 16]), torch.tensor([3, 2]), k=4)
        tensor([0.9286, 0.4500], dtype=torch.float64)
    """
    _check_k(k, num_samples)
    outside = (num_correct < 0) | (num_correct > num_samples)
    if bool(outside.any()):
        c, n = int(num_correct[outside][0]), int(num_samples[outside][0])
        raise ValueError(f"`num_correct` must be between 0 and the {n} samples of its problem, got {c}")
    left = num_samples[:, None] - torch.arange(k, device=num_samples.device)
    hit = (num_correct[:, None].double() / left).clamp(max=1)  # drawing one by one, after misses alone
    return 1 - (1 - hit).prod(1)


def majority_at_k(votes: Tensor, k: int) -> Tensor:
    """Probability that the most frequent answer of ``k`` samples is the correct one, estimated for each problem.

    The mean over the ``n // k`` disjoint blocks of k successive samples. Blocks share no sample and every one is k
    draws of the policy, so the mean is unbiased and needs neither resampling nor random numbers. Ties are broken
    fairly, in expectation: a block counts as the share of the correct answer among the most frequent ones.

    Args:
        votes: ``[P, n]`` int64: 0 = no vote, 1 = the correct answer, any other number = a wrong answer; equal numbers
            are equal answers. A block without votes counts 0.
        k: At least 1 and at most n.

    Returns:
        ``[P]`` float64 in [0, 1].

    Raises:
        ValueError: ``k`` is out of range.

    Example:
        >>> majority_at_k(torch.tensor([[1, 7, 1, 5], [1, 7, 0, 0]]), k=4)
        tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    problems, n = votes.shape
    _check_k(k, torch.full((problems,), n))
    blocks = votes[:, : n // k * k].reshape(problems, n // k, k).sort(-1).values
    counts = torch.searchsorted(blocks, blocks, right=True) - torch.searchsorted(blocks, blocks)
    counts = counts.masked_fill(blocks == 0, 0)
    most = counts.amax(-1)
    answers = (counts == most[..., None]).sum(-1) / most.clamp(min=1)  # tied for most; each fills `most` positions
    won = ((blocks == 1).sum(-1) == most) & (most > 0)
    return (won / answers.double()).mean(-1)


def _check_k(k: int, num_samples: Tensor) -> None:
    if k < 1:
        raise ValueError(f"`k` must be at least 1, got {k}")
    if bool((num_samples < k).any()):
        raise ValueError(f"`k` must be at most the {int(num_samples.min())} samples of every problem, got {k}")
