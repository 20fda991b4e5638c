"""Verdicts per second of the math verifier, and what a handful of answers that hang cost a batch."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from common import command_line, spread, write
from rich.table import Table

from lightning_rlvr.verify.base import Attempt
from lightning_rlvr.verify.math import MathVerifier

KINDS: tuple[Callable[[int], tuple[str, str]], ...] = (
    lambda n: (str(n), f"{n:,}.0"),
    lambda n: (rf"\frac{{{7 * n + 1}}}{{7}}", rf"\frac{{{21 * n + 3}}}{{21}}"),
    lambda n: (rf"{n}\sqrt{{2}}", rf"\sqrt{{{2 * n * n}}}"),
    lambda n: (f"{n}, {n + 1}, {n + 5}", f"{n + 5}, {n}, {n + 1}"),
    lambda n: (f"[{n}, {n + 3})", rf"\left[ {n}, \frac{{{2 * n + 6}}}{{2}} \right)"),
)
"""Number to gold answer and another way to write it."""
HANGING = (
    "9^{9^{9^{9}}}",
    "10^{10^{10}}!",
    r"\binom{10^{9}}{5\cdot 10^{8}}",
    r"\sum_{k=1}^{10^{9}} \frac{1}{k^{k}}",
    "{" * 20 + "3" + "}" * 20,
)
"""Answers that the checker cannot read or evaluate within a time limit."""


def attempt(gold: str, answer: str) -> Attempt:
    """A completion with a boxed answer."""
    completion = rf"So the answer is \boxed{{{answer}}}."
    return Attempt(prompt="", completion=completion, completion_ids=(), truncated=False, columns={"answer": gold})


def ordinary(size: int, turn: int, turns: int) -> list[tuple[Attempt, tuple[str, ...]]]:
    """Attempts of mixed kinds, every fourth one wrong, each with the statuses that it may get.

    Args:
        size: Number of attempts.
        turn: Which of the batches; no two share an attempt, and all have numbers of the same sizes.
        turns: Number of batches.
    """
    batch = []
    for row in range(size):
        kind, right, n = KINDS[row % len(KINDS)], row % 4 != 0, 1 + row * turns + turn
        batch.append((attempt(kind(n)[0], kind(n if right else n + 1)[1]), ("correct" if right else "wrong",)))
    return batch


def timed(verifier: MathVerifier, batch: Sequence[tuple[Attempt, tuple[str, ...]]]) -> tuple[float, list[str]]:
    """Seconds and statuses.

    Raises:
        SystemExit: A status other than those expected.
    """
    started = time.perf_counter()
    verdicts = verifier.verify([one for one, _ in batch])
    seconds = time.perf_counter() - started
    for (one, expected), verdict in zip(batch, verdicts, strict=True):
        if verdict.status not in expected:
            raise SystemExit(
                f"{one.completion} for {one.columns['answer']} is {verdict}, expected {' or '.join(expected)}"
            )
    return seconds, [verdict.status for verdict in verdicts]


def measure(size: int, rounds: int, time_limit: float) -> dict[str, Any]:
    """Seconds of the first batch, of ordinary ones, of one in which answers hang, and of the ones after it."""
    verifier = MathVerifier(time_limit=time_limit)
    turns = 2 * rounds + 2
    batches = [ordinary(size, turn, turns) for turn in range(turns)]
    places = [size * k // len(HANGING) for k in range(len(HANGING))]
    for place, answer in zip(places, HANGING, strict=True):
        batches[rounds + 1][place] = (attempt("3", answer), ("timeout", "error"))
    seconds, statuses = zip(*(timed(verifier, batch) for batch in batches), strict=True)
    return {
        "first_seconds": round(seconds[0], 3),
        "verdicts_per_second": spread([size / value for value in seconds[1 : rounds + 1]]),
        "hanging_seconds": round(seconds[rounds + 1], 3),
        "hanging_statuses": dict(Counter(statuses[rounds + 1][place] for place in places)),
        "next_seconds": round(seconds[rounds + 2], 3),
        "verdicts_per_second_after": spread([size / value for value in seconds[rounds + 2 :]]),
    }


def table(result: dict[str, Any]) -> Table:
    """The numbers beside their bars."""
    shown = Table("measured", "value", "bar", title=f"batches of {result['size']}, {result['cores']} cores")
    rates = [result[name] for name in ("verdicts_per_second", "verdicts_per_second_after")]
    before, after = (f"{rate['median']:.0f} ({rate['q25']:.0f} to {rate['q75']:.0f})" for rate in rates)
    hung = ", ".join(f"{count} {status}" for status, count in result["hanging_statuses"].items())
    shown.add_row("first batch, with the start of the server (s)", f"{result['first_seconds']:.2f}", "")
    shown.add_row("ordinary verdicts/s", before, "at least 500 on 2 cores")
    limit = f"at most {result['time_limit'] + 2:g}"
    shown.add_row(f"batch with {len(HANGING)} that hang (s; {hung})", f"{result['hanging_seconds']:.2f}", limit)
    shown.add_row("next batch (s)", f"{result['next_seconds']:.2f}", f"{result['size'] / rates[0]['median']:.2f}")
    shown.add_row("ordinary verdicts/s after it", after, "as before")
    return shown


def main() -> None:
    """Command line."""
    parser = command_line("verdicts", __doc__)
    parser.add_argument("--size", type=int, default=1024, help="attempts in a batch")
    parser.add_argument("--rounds", type=int, default=5, help="ordinary batches before and after the one that hangs")
    parser.add_argument("--time-limit", type=float, default=5.0, help="seconds for each verdict")
    options = parser.parse_args()
    settings = {"size": options.size, "time_limit": options.time_limit, "cores": len(os.sched_getaffinity(0))}
    result = settings | measure(options.size, options.rounds, options.time_limit)
    write(options.output, result, [table(result)])


if __name__ == "__main__":
    main()
