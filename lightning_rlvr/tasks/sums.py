"""Sums with worked solutions: a verifiable task that needs no download and that a character model can learn."""

from __future__ import annotations

import hashlib
import random
from typing import TypedDict

from lightning_rlvr.checks import require


class SumRecord(TypedDict):
    """One problem with its worked solution and its gold answer."""

    problem: str
    solution: str
    answer: str


def solve(a: int, b: int) -> str:
    r"""The worked solution of ``a + b``: one column at a time from the right, then the boxed total.

    A column reads ``digit+digit=sum``, with a leading ``1+`` where the column before it carried.

    Args:
        a: First term, not negative.
        b: Second term, not negative.

    Example:
        >>> solve(27, 48), solve(5, 90)
        ('7+8=15,1+2+4=7,\\boxed{75}', '5+0=5,0+9=9,\\boxed{95}')
    """
    width = len(str(max(a, b)))
    steps, carry = "", ""
    for x, y in zip(f"{a:0{width}}"[::-1], f"{b:0{width}}"[::-1], strict=True):
        total = int(x) + int(y) + bool(carry)
        steps += f"{carry}{x}+{y}={total},"
        carry = "1+" if total > 9 else ""
    return rf"{steps}\boxed{{{a + b}}}"


def generate(seed: int | str, count: int, *, max_term: int = 99) -> list[SumRecord]:
    r"""``count`` different sums of two terms in ``[0, max_term]``, in random order.

    The generator is seeded by a hash of ``seed``, so the lists of near seeds are independent draws and not the same
    items shifted by one. Lists of two seeds may still share problems: there are only ``(max_term + 1) ** 2`` of them.

    Args:
        seed: Anything that names the list, such as ``"7:train"``; equal seeds give equal lists.
        count: Number of records.
        max_term: Largest term; more digits make longer and harder problems.

    Raises:
        ValueError: ``max_term`` is negative, or there are fewer than ``count`` different problems.

    Example:
        >>> generate(0, 1)
        [{'problem': '67+54=', 'solution': '7+4=11,1+6+5=12,\\boxed{121}', 'answer': '121'}]
    """
    require(max_term >= 0, "max_term", ">= 0", max_term)
    size = max_term + 1
    require(0 <= count <= size**2, "count", f"in [0, {size**2}], the sums up to `max_term` {max_term}", count)
    rng = random.Random(int.from_bytes(hashlib.sha256(f"sums:{seed}".encode()).digest()))
    pairs = (divmod(index, size) for index in rng.sample(range(size**2), count))
    return [SumRecord(problem=f"{a}+{b}=", solution=solve(a, b), answer=str(a + b)) for a, b in pairs]
