"""Credit: from scores of tokens to weights with mean one over the valid tokens of every row."""

# Weights are constants of the loss: whatever makes them passes no gradient. Positions outside the mask may hold
# anything (NaN and infinity included) and come out exactly 0; rows without a valid token come out as zeros.

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from lightning_rlvr.functional.masking import masked_mean
from lightning_rlvr.functional.random import uniform

ScoreMap = Literal["ramp", "step"]
Spread = Literal["ratio", "additive", "pure"]
ContrastStatistic = Literal["signed", "abs", "k3"]
WeightMap = Literal["exp", "linear", "gauss", "power"]
Renorm = Literal["divide", "project"]

_PERMUTATION_STREAM = -1  # sampling uses streams from 0 up


def ramp(values: Tensor, lo: float, hi: float) -> Tensor:
    """Score 0 up to ``lo``, 1 from ``hi`` on, linear in between.

    Example:
        >>> ramp(torch.tensor([0.1, 0.5, 0.9]), lo=0.2, hi=0.8)
        tensor([0.0000, 0.5000, 1.0000])
    """
    return ((values - lo) / (hi - lo)).clamp(0.0, 1.0)


def step(values: Tensor, lo: float, hi: float) -> Tensor:
    """Score 0 up to ``lo``, 1 from ``hi`` on, one half in between.

    Example:
        >>> step(torch.tensor([0.1, 0.4, 0.9]), lo=0.2, hi=0.8)
        tensor([0.0000, 0.5000, 1.0000])
    """
    return ((values > lo).float() + (values >= hi).float()) / 2


SCORE_MAPS: Mapping[ScoreMap, Callable[[Tensor, float, float], Tensor]] = {"ramp": ramp, "step": step}


def mean_one(weights: Tensor, mask: Tensor) -> Tensor:
    """Non-negative weights divided by their mean over the valid tokens of the row.

    Rows of equal weights, zeros included, give exactly 1 at every valid token.

    Args:
        weights: ``[B, T]`` float, non-negative inside the mask.
        mask: ``[B, T]`` bool.

    Returns:
        ``[B, T]`` float32; the masked mean of every non-empty row is 1.

    Example:
        >>> mean_one(torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[True, True, False]]))
        tensor([[0.5000, 1.5000, 0.0000]])
    """
    weights = weights.detach().float()
    largest = _largest(weights, mask)
    relative = (weights / largest).where(largest != 0, 1.0)  # equal weights are now exactly 1, and so is their mean
    return (relative / masked_mean(relative, mask).unsqueeze(-1)).where(mask, 0.0)


def spread(scores: Tensor, mask: Tensor, kind: Spread = "ratio", *, floor: float = 0.2, lam: float = 0.5) -> Tensor:
    """Weights with mean one that grow with the score.

    ``ratio``: ``floor + (1 - floor) * score``, divided by its mean, hence within ``[floor, 1 / floor]``.
    ``additive``: ``1 + lam * (score - mean score)``, hence within ``[1 - lam, 1 + lam]``.
    ``pure``: ``ratio`` with floor 0, unbounded; a row whose scores are all 0 gets weights 1.

    Args:
        scores: ``[B, T]`` float in ``[0, 1]``.
        mask: ``[B, T]`` bool.
        kind: How scores become weights.
        floor: Share of the weight that a score of 0 keeps, in ``(0, 1]``; ``ratio`` only.
        lam: Strength, in ``(0, 1]``; ``additive`` only.

    Returns:
        ``[B, T]`` float32; the masked mean of every non-empty row is 1, rows of equal scores are exactly 1.

    Example:
        >>> spread(torch.tensor([[0.0, 1.0, 0.5]]), torch.tensor([[True, True, True]]), floor=0.2)
        tensor([[0.3333, 1.6667, 1.0000]])
    """
    scores = scores.detach().float()
    if kind == "additive":
        excess = scores + _largest(-scores, mask)  # exactly 0 in rows of equal scores
        return (1 + lam * (excess - masked_mean(excess, mask).unsqueeze(-1))).where(mask, 0.0)
    floor = 0.0 if kind == "pure" else floor
    return mean_one(floor + (1 - floor) * scores, mask)


def contrast(logprobs: Tensor, ablated_logprobs: Tensor, statistic: ContrastStatistic = "signed") -> Tensor:
    """What the evidence did for each sampled token.

    ``signed``: ``e = logprobs - ablated_logprobs``, the pointwise mutual information of token and evidence.
    ``abs``: ``|e|``. ``k3``: ``exp(-e) + e - 1``, capped at 10 as in VPPO and GCPO.

    Args:
        logprobs: ``[B, T]`` float32, nats.
        ablated_logprobs: ``[B, T]`` float32, nats, of the same tokens without the evidence.
        statistic: Which function of the two.

    Example:
        >>> contrast(torch.tensor([-1.0]), torch.tensor([-4.0])), contrast(torch.tensor([-1.0]), torch.zeros(1), "abs")
        (tensor([3.]), tensor([1.]))
    """
    evidence = (logprobs - ablated_logprobs).detach()
    if statistic == "signed":
        return evidence
    if statistic == "abs":
        return evidence.abs()
    loss = -evidence.clamp(-20.0, 20.0)
    return (torch.expm1(loss) - loss).clamp(max=10.0)


def midranks(values: Tensor, mask: Tensor, tie_tol: float = 1e-4) -> Tensor:
    """Share of the row's valid tokens below each value, ties counted half: ``(#less + #less_or_equal) / (2 T)``.

    The mean over the valid tokens is one half whatever the ties, and a strictly increasing transform of ``values``
    changes nothing. A NaN inside the mask stays NaN.

    Args:
        values: ``[B, T]`` float.
        mask: ``[B, T]`` bool.
        tie_tol: Values are rounded to multiples of it, in their unit, before they are compared; 0 is off.

    Returns:
        ``[B, T]`` float32 in ``(0, 1)`` at valid tokens, 0 elsewhere.

    Example:
        >>> midranks(torch.tensor([[0.3, -2.0, 0.3, 7.0]]), torch.tensor([[True, True, True, False]]))
        tensor([[0.6667, 0.1667, 0.6667, 0.0000]])
    """
    values = values.float()
    rounded = (values / tie_tol).round() if tie_tol > 0 else values
    rounded = rounded.where(mask, torch.inf)
    ordered = rounded.sort(-1).values
    num_valid = mask.sum(-1, keepdim=True)
    less = torch.searchsorted(ordered, rounded)
    less_or_equal = torch.searchsorted(ordered, rounded, right=True).minimum(num_valid)  # padding sorts last
    shares = (less + less_or_equal).float() / (2 * num_valid.clamp(min=1))
    return shares.where(~values.isnan(), torch.nan).where(mask, 0.0)


WEIGHT_MAPS: Mapping[WeightMap, Callable[[Tensor, float], Tensor]] = {
    "exp": lambda ranks, tau: torch.exp(tau * (2 * ranks - 1)),
    "linear": lambda ranks, tau: 1 + tau * (2 * ranks - 1),
    "gauss": lambda ranks, tau: 1 + tau * torch.special.ndtri(ranks),
    "power": lambda ranks, tau: (1 + tau) * ranks**tau,
}
"""Midranks in (0, 1) and ``tau`` -> weights whose mean is near 1, before clipping; increasing in the rank."""


def renormalise(
    weights: Tensor, mask: Tensor, how: Renorm = "divide", *, low: float = 0.5, high: float = 2.0
) -> Tensor:
    """Weights clipped to ``[low, high]`` with mean one over the valid tokens of every row.

    ``divide``: clip, then divide by the mean; the result lies within ``[low / high, high / low]``.
    ``project``: ``clip(weights * c)`` with the one constant ``c`` of each row that makes the mean 1; the result lies
    within ``[low, high]`` and minimizes ``sum w log(w / weights)`` there. Both keep order and ties.

    Args:
        weights: ``[B, T]`` float; what is not positive counts as least possible.
        mask: ``[B, T]`` bool.
        how: Order of clipping and normalising.
        low: Lower clip bound, in ``(0, 1]``.
        high: Upper clip bound, at least 1.

    Returns:
        ``[B, T]`` float32; the masked mean of every non-empty row is 1, rows of equal weights are exactly 1.

    Example:
        >>> weights, mask = torch.tensor([[0.1, 1.0, 1.5, 4.0]]), torch.ones(1, 4, dtype=torch.bool)
        >>> renormalise(weights, mask), renormalise(weights, mask, "project")
        (tensor([[0.4000, 0.8000, 1.2000, 1.6000]]), tensor([[0.5000, 0.6000, 0.9000, 2.0000]]))
    """
    if how == "divide":
        return mean_one(weights.clamp(low, high), mask)
    shape = weights.detach().double().where(mask, 1.0).clamp(min=1e-6)
    below = math.log(low) - _largest(shape, mask).log()
    above = math.log(high) + _largest(1 / shape, mask).log()
    for _ in range(40):  # bisection: the bracket shrinks to 1e-10, far below float32
        middle = (below + above) / 2
        too_small = masked_mean((shape * middle.exp()).clamp(low, high), mask).unsqueeze(-1) < 1
        below, above = middle.where(too_small, below), above.where(too_small, middle)
    return (shape * ((below + above) / 2).exp()).clamp(low, high).where(mask, 0.0).float()


def permute_rows(values: Tensor, mask: Tensor, seeds: Tensor) -> Tensor:
    """The values of each row in a random order over its valid tokens.

    Args:
        values: ``[B, T]`` float.
        mask: ``[B, T]`` bool.
        seeds: ``[B]`` int64; the order depends on the row's seed and mask alone, not on padding.

    Returns:
        ``[B, T]`` float; every row holds the same valid values as before, and 0 outside the mask.

    Example:
        >>> mask = torch.tensor([[True, True, True, False]])
        >>> permute_rows(torch.tensor([[1.0, 2.0, 3.0, 9.0]]), mask, seeds=torch.tensor([3]))
        tensor([[1., 3., 2., 0.]])
    """
    keys = uniform(seeds, values.shape[-1], stream=_PERMUTATION_STREAM).where(mask, torch.inf)
    source = keys.argsort(dim=-1, stable=True)
    target = (~mask).long().argsort(dim=-1, stable=True)
    return torch.zeros_like(values).scatter(-1, target, values.gather(-1, source)).where(mask, 0.0)


def reflect(values: Tensor, mask: Tensor) -> Tensor:
    """The values of each row turned upside down, ``max + min - value``, and scaled back to the row's mean.

    A row with values of both signs, which no scaling can bring back, is mirrored at its mean instead.

    Args:
        values: ``[B, T]`` float.
        mask: ``[B, T]`` bool.

    Returns:
        ``[B, T]`` float with the masked means of ``values``; rows of equal values stay exactly as they are.

    Example:
        >>> reflect(torch.tensor([[0.5, 0.5, 2.0, 7.0]]), torch.tensor([[True, True, True, False]]))
        tensor([[1.3333, 1.3333, 0.3333, 0.0000]])
    """
    smallest, largest = -_largest(-values, mask), _largest(values, mask)
    mean = smallest + masked_mean(values - smallest, mask).unsqueeze(-1)
    reflected_mean = largest + smallest - mean
    scale = mean / reflected_mean.where(reflected_mean != 0, 1.0)
    one_sign = (smallest >= 0) | (largest <= 0)
    return ((largest + smallest - values) * scale).where(one_sign, 2 * mean - values).where(mask, 0.0)


def _largest(values: Tensor, mask: Tensor) -> Tensor:
    """``[B, 1]``: largest valid value of each row, ``-inf`` where there is none (rows may have no columns at all)."""
    if values.shape[-1] == 0:
        return values.new_full((len(values), 1), -torch.inf)
    return values.where(mask, -torch.inf).amax(-1, keepdim=True)
