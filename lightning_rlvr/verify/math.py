"""Mathematical equality of the final answer with the gold one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from typing_extensions import override

from lightning_rlvr.checks import require_package
from lightning_rlvr.verify.answer import final_answer, gold_complaint, gold_of, judge
from lightning_rlvr.verify.base import VERIFIERS, Attempt, Verdict, Verifier

_TINY = 1e-3
"""Below this size math-verify's rounding to 6 decimals is too coarse, and values are compared relatively."""


@VERIFIERS.register("math")
class MathVerifier(Verifier):
    r"""1 if the final answer equals the gold one as mathematics, else 0.

    The answer is the last ``\boxed{}`` after any ``</think>``, else the last ``Answer:`` line. The gold is LaTeX or
    plain text, with or without dollar signs, in the column ``answer``. Equality is what math-verify says, without its
    alarm-based time limits (they work in the main thread only), except that tiny values are compared relatively.
    There is no other time limit yet: a tower of powers can keep it busy for ever.

    Raises:
        ImportError: math-verify is not installed.

    Example:
        >>> attempt = Attempt(
        ...     prompt="", completion=r"So \boxed{0.5}.", completion_ids=(), truncated=False,
        ...     columns={"answer": r"\frac{1}{2}"},
        ... )
        >>> MathVerifier().verify([attempt])
        [Verdict(status='correct', reward=1.0, answer='0.5', reason='')]
    """

    def __init__(self) -> None:
        require_package("math_verify", "math-verify", "math", type(self).__name__)

    @override
    def verify(self, attempts: Sequence[Attempt]) -> list[Verdict]:
        return [
            judge(attempt, final_answer(attempt.completion, truncated=attempt.truncated), _decide)
            for attempt in attempts
        ]

    @override
    def check_columns(self, columns: Mapping[str, Any]) -> str | None:
        if complaint := gold_complaint(columns):
            return complaint
        gold = str(gold_of(columns))
        return None if _parse_gold(gold) else f"`answer` {gold!r} does not parse as mathematics"


def _decide(answer: str, columns: Mapping[str, Any]) -> Verdict:
    gold = _parse_gold(str(gold_of(columns)))
    if not gold:
        raise ValueError(f"`answer` {columns['answer']!r} does not parse as mathematics")
    found = _parse(answer)
    if found and _equal(gold, found):
        return Verdict(status="correct", reward=1.0, answer=answer)
    return Verdict(status="wrong", reward=0.0, answer=answer, reason="" if found else "answer does not parse")


@lru_cache(maxsize=4096)  # every completion of a prompt asks for the same gold
def _parse_gold(text: str) -> list[Any]:
    return _parse(text)


def _tidy(text: str) -> str:
    """Spellings that math-verify misreads: a final full stop, a thin space between digits, an upright e."""
    text = re.sub(r"(?<=\d)\\[,!](?=\d{3})", "", text.strip().rstrip("."))
    return text.replace(r"\mathrm{e}", "e")


def _parse(text: str) -> list[Any]:
    from math_verify import LatexExtractionConfig, parse

    parsed: list[Any] = parse(
        rf"\boxed{{{_tidy(text)}}}",
        extraction_config=[LatexExtractionConfig(boxed_match_priority=0)],
        fallback_mode="no_fallback",
        parsing_timeout=0,
    )
    return parsed


def _equal(gold: list[Any], answer: list[Any]) -> bool:
    from math_verify import verify

    return verify(gold, answer, timeout_seconds=0, raise_on_error=True) and not _differ_relatively(gold[0], answer[0])


def _differ_relatively(gold: Any, answer: Any) -> bool:
    from sympy import Expr

    numbers = all(isinstance(value, Expr) and value.is_number for value in (gold, answer))
    if not numbers or gold == answer:
        return False
    gold, answer = gold.doit(), answer.doit()  # percentages come unevaluated
    size = abs(gold.evalf())
    return bool(size < _TINY) and bool(abs((gold - answer).evalf()) > 1e-6 * size)
