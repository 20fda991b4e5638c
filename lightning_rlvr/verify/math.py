r"""Mathematical equality of the final answer with the gold one.

Extraction (the setting ``extract``)
    * The final answer is the last ``\boxed{}`` or ``\fbox{}`` after any ``</think>``, else the last ``Answer:`` line.
      `last_line`, `last_number` and `all` (the whole completion) are the other choices.
    * Boxes joined by nothing but a comma, "or" or "and" are one answer with several parts. An earlier box is none.
    * A completion cut off inside box, line or reasoning has no answer, nor has an empty or unclosed box.

Gold (column ``answer``)
    * LaTeX or plain text, with or without dollar signs, or a number. A list holds alternatives, any of which is right.
    * A text with a box stands for what its last box holds, one with ``####`` for what follows that.
    * A gold that does not parse, or not within the time limit, is a data error, reported when data are loaded.

Equality: what math-verify says, the gold first, and around it
    * Lists without brackets are equal part by part, in any order, each part once; ``\pm`` stands for both signs. In
      round and square brackets the order and the brackets count, in braces neither order nor repetition. A bare list
      also equals the same list in brackets: 0,6 is (0,6).
    * 12,500 and ``12\,500`` are numbers; 0,6 and 31,87 are lists. Leading zeros, ``6.``, ``4.5e33``, ``-3./2``,
      ``2 3/4``, Unicode signs and pi or sqrt without backslash are read as meant.
    * Decimals are equal within 1e-6, relative below 1e-3; exact numbers are exact: 3.14 is not pi. A column
      ``tolerance`` (a number, or its text) allows numbers that absolute error instead.
    * A percentage equals its number and its value: 35% is 35 and 0.35, but 35 is not 0.35.
    * A unit counts only where both have one, and then by its initial. ``x = 5`` is 5, and ``(B)`` is B.
    * Inequality and interval are equal both ways; equations without solutions only if they say the same. A clause
      with "where" is left out.
    * An answer longer than 2,000 characters and than four golds, or nested deeper than 20 brackets, is wrong.
    * No verdict within the time limit is `timeout`, an exception `error`: unscored, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, get_args

from typing_extensions import override

from lightning_rlvr.checks import require, require_choice, require_package
from lightning_rlvr.verify.answer import Extract, Extraction, extract, gold_complaint, golds_of
from lightning_rlvr.verify.base import VERIFIERS, Attempt, Verdict, Verifier
from lightning_rlvr.verify.equality import Comparison, Ruling, compare
from lightning_rlvr.verify.pool import Failure, run


@VERIFIERS.register("math")
class MathVerifier(Verifier):
    r"""1 if the final answer equals the gold one as mathematics, else 0; in worker processes that can be killed.

    The gold is in the column ``answer``, an absolute error that is allowed in the optional column ``tolerance``. The
    module's docstring lists the rules of extraction and equality; the reason of a verdict says which ones decided.

    Args:
        time_limit: Seconds for each comparison; beyond it the verdict is `timeout`, which has no score.
        extract: Where the answer is. `boxed`: the last ``\boxed{}``, else the last ``Answer:`` line. `last_line`: the
            last line. `last_number`: the last number. `all`: the whole completion.

    Raises:
        ImportError: math-verify is not installed.

    Example:
        >>> attempt = Attempt(
        ...     prompt="", completion=r"So \boxed{0.5}.", completion_ids=(), truncated=False,
        ...     columns={"answer": r"\frac{1}{2}"},
        ... )
        >>> verdict = MathVerifier().verify([attempt])[0]
        >>> verdict.status, verdict.answer, verdict.reason
        ('correct', '0.5', 'last \\boxed{}; equal as mathematics')
    """

    def __init__(self, time_limit: float = 5.0, extract: Extract = "boxed") -> None:
        require_package("math_verify", "math-verify", "math", type(self).__name__)
        require(0 < time_limit < math.inf, "time_limit", "a positive number of seconds", time_limit)
        require_choice("extract", get_args(Extract), extract)
        self.time_limit = time_limit
        self.extract = extract

    @override
    def verify(self, attempts: Sequence[Attempt]) -> list[Verdict]:
        found = [extract(one.completion, self.extract, truncated=one.truncated) for one in attempts]
        asked = [
            self._comparisons(attempt.columns, one.answer) if one.answer is not None else []
            for attempt, one in zip(attempts, found, strict=True)
        ]
        return [_verdict(*pair) for pair in zip(found, self._outcomes(asked), strict=True)]

    @override
    def check_columns(self, columns: Mapping[str, Any]) -> str | None:
        return self.check_rows([columns])[0]

    @override
    def check_rows(self, rows: Sequence[Mapping[str, Any]]) -> list[str | None]:
        complaints = [gold_complaint(columns) or _tolerance_complaint(columns) for columns in rows]
        asked = [
            self._self_comparisons(columns) if complaint is None else []
            for columns, complaint in zip(rows, complaints, strict=True)
        ]
        return [
            complaint or self._gold_complaint(items, outcomes)
            for complaint, items, outcomes in zip(complaints, asked, self._outcomes(asked), strict=True)
        ]

    def _self_comparisons(self, columns: Mapping[str, Any]) -> list[Comparison]:
        own = [item for gold in golds_of(columns) for item in self._comparisons({**columns, "answer": gold}, gold)]
        return own + [replace(item, answer="0") for item in own]  # to equal itself a gold need not be evaluated

    def _gold_complaint(self, asked: Sequence[Comparison], outcomes: Sequence[Ruling | Failure]) -> str | None:
        for item, outcome in zip(asked, outcomes, strict=True):
            if isinstance(outcome, Failure) and outcome.status == "timeout":
                return f"`answer` {item.gold!r} does not parse within {self.time_limit:g} s"
            if isinstance(outcome, Failure) or (not outcome.equal and item.answer == item.gold):
                return f"`answer` {item.gold!r} does not parse ({outcome.reason})"
        return None

    def _outcomes(self, asked: Sequence[Sequence[Comparison]]) -> list[list[Ruling | Failure]]:
        """The outcome of each comparison, each distinct one made once."""
        distinct = list(dict.fromkeys(chain.from_iterable(asked)))
        outcomes = dict(zip(distinct, run(compare, distinct, time_limit=self.time_limit), strict=True))
        return [[outcomes[item] for item in items] for items in asked]

    def _comparisons(self, columns: Mapping[str, Any], answer: str) -> list[Comparison]:
        """One for each gold answer that the row allows."""
        return [Comparison(gold=gold, answer=answer, atol=tolerance_of(columns)) for gold in golds_of(columns)]


def tolerance_of(columns: Mapping[str, Any]) -> float | None:
    """The absolute error that a row allows, if any.

    Example:
        >>> tolerance_of({"tolerance": "1e-1"}), tolerance_of({"tolerance": ""}), tolerance_of({})
        (0.1, None, None)
    """
    tolerance = columns.get("tolerance")
    return None if tolerance is None or str(tolerance).strip() == "" else float(tolerance)


def _tolerance_complaint(columns: Mapping[str, Any]) -> str | None:
    try:
        valid = 0 <= (tolerance_of(columns) or 0.0) < math.inf
    except (TypeError, ValueError):
        valid = False
    return None if valid else f"`tolerance` must be a number of at least 0, got {columns['tolerance']!r}"


def _verdict(found: Extraction, outcomes: Sequence[Ruling | Failure]) -> Verdict:
    """Right if any gold answer says so; without a score if that cannot be known."""
    if found.answer is None:
        return Verdict(status="no_answer", reward=0.0, reason=found.rule)
    right = [one for one in outcomes if isinstance(one, Ruling) and one.equal]
    decisive = next(chain(right, (one for one in outcomes if isinstance(one, Failure)), outcomes))
    reason = f"{found.rule}; {decisive.reason}"
    if isinstance(decisive, Failure):
        return Verdict(status=decisive.status, reward=math.nan, answer=found.answer, reason=reason)
    if decisive.equal:
        return Verdict(status="correct", reward=1.0, answer=found.answer, reason=reason)
    return Verdict(status="wrong", reward=0.0, answer=found.answer, reason=reason)
