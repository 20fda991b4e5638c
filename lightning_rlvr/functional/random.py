"""Random numbers as a function of a seed and a counter: no state, the same on every device."""

from __future__ import annotations

import hashlib
import json

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, the increment of splitmix64


def uniform(seeds: Tensor, num: int, stream: int = 0) -> Tensor:
    """Uniform numbers of each row; number ``i`` depends on the row's seed, ``stream`` and ``i`` alone.

    The output function of splitmix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"),
    applied in turn to seed, stream and counter. Casting down to float32 can round the largest numbers up to 1.

    Args:
        seeds: ``[B]`` int64; neighbouring seeds are as good as any.
        num: How many numbers for each row.
        stream: Separates uses of the same seed.

    Returns:
        ``[B, num]`` float64 in ``[0, 1)``, multiples of 2**-53.

    Example:
        >>> uniform(torch.tensor([7, 8]), num=3)
        tensor([[0.7358, 0.9287, 0.5482],
                [0.2618, 0.1852, 0.8708]], dtype=torch.float64)
    """
    key = _mix(_mix(seeds) + _wrap((stream + 1) * _GOLDEN))
    counters = torch.arange(1, num + 1, device=seeds.device) * _wrap(_GOLDEN)
    return _shift(_mix(key[:, None] + counters), 11).double() * 2.0**-53


def derive_seed(*parts: int | str) -> int:
    """Seed in ``[0, 2**63)`` from what identifies a thing: run seed, step, problem, sample, ...

    Equal parts give equal seeds in every process and on every machine; any other parts give an unrelated seed.

    Raises:
        TypeError: A part is neither a plain integer nor a string.

    Example:
        >>> derive_seed(7, "problem 3", 0), derive_seed(7, "problem 3", 1)
        (5251988111690877334, 9169922856014582868)
    """
    if not all(isinstance(part, int | str) for part in parts):
        raise TypeError(f"`parts` must be integers and strings, got {parts!r}")
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _mix(z: Tensor) -> Tensor:
    """The output function of splitmix64 on int64, whose products and sums wrap around."""
    z = (z ^ _shift(z, 30)) * _wrap(0xBF58476D1CE4E5B9)
    z = (z ^ _shift(z, 27)) * _wrap(0x94D049BB133111EB)
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift: int64 has only the arithmetic one, whose copies of the sign bit are masked away."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _wrap(value: int) -> int:
    """The int64 with the same lowest 64 bits."""
    return (value + 2**63) % 2**64 - 2**63
