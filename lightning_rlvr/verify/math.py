"""Mathematical equality of the final answer with the gold one, by the rules that README.md lists."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from typing_extensions import override

from lightning_rlvr.checks import require, require_package
from lightning_rlvr.verify.answer import AnswerVerifier, Extract, gold_complaint, golds_of
from lightning_rlvr.verify.base import VERIFIERS, Attempt, Verdict
from lightning_rlvr.verify.equality import Comparison, Ruling, compare
from lightning_rlvr.verify.pool import Failure, run


@VERIFIERS.register("math")
class MathVerifier(AnswerVerifier):
    r"""1 if the final answer equals the gold one as mathematics, else 0; in worker processes that can be killed.

    The gold is in the column ``answer``, an absolute error that is allowed in the optional column ``tolerance``.
    README.md lists the rules of extraction and equality; the reason of a verdict says which ones decided.

    Args:
        time_limit: Seconds for each comparison, of real time, so that the time of a step is bounded however busy the
            machine is; beyond it the verdict is `timeout`, which has no score. A gold that takes longer when data are
            loaded is asked again, with nothing beside it, before it is called a data error.
        extract: Where the final answer is; `boxed`: in the last ``\boxed{}``, else in the last ``Answer:`` line.

    Raises:
        ImportError: math-verify is not installed.
        ValueError: ``time_limit`` is not positive and finite, or ``extract`` is none of its choices.

    Example:
        >>> attempt = Attempt(
        ...     prompt="", completion=r"So \boxed{0.5}.", completion_ids=(), truncated=False,
        ...     columns={"answer": r"\frac{1}{2}"},
        ... )
        >>> verdict = MathVerifier().verify([attempt])[0]
        >>> verdict.status, verdict.answer, verdict.reason
        ('correct', '0.5', 'last \\boxed{}; equal as mathematics')
    """

    row_local = True

    def __init__(self, time_limit: float = 5.0, extract: Extract = "boxed") -> None:
        require_package("math_verify", "math-verify", "math", type(self).__name__)
        require(0 < time_limit < math.inf, "time_limit", "a positive number of seconds", time_limit)
        super().__init__(extract)
        self.time_limit = time_limit

    @override
    def judge(self, answered: Sequence[tuple[str, Attempt]]) -> list[Verdict]:
        asked = [self._comparisons(attempt.columns, answer) for answer, attempt in answered]
        return list(map(_verdict, self._outcomes(asked)))

    @override
    def complaint(self, columns: Mapping[str, Any]) -> str | None:
        return gold_complaint(columns) or _tolerance_complaint(columns)

    @override
    def check_columns(self, columns: Mapping[str, Any]) -> str | None:
        return self.check_rows([columns])[0]

    @override
    def check_rows(self, rows: Sequence[Mapping[str, Any]]) -> list[str | None]:
        complaints = [self.complaint(columns) for columns in rows]
        asked = [
            self._self_comparisons(columns) if complaint is None else []
            for columns, complaint in zip(rows, complaints, strict=True)
        ]
        outcomes = self._outcomes(asked, again_alone=True)
        return [
            complaint or self._gold_complaint(items, of_row)
            for complaint, items, of_row in zip(complaints, asked, outcomes, strict=True)
        ]

    def _self_comparisons(self, columns: Mapping[str, Any]) -> list[Comparison]:
        own = [item for gold in golds_of(columns) for item in self._comparisons({**columns, "answer": gold}, gold)]
        return own + [replace(item, answer="0") for item in own]  # to equal itself a gold need not be evaluated

    def _gold_complaint(self, asked: Sequence[Comparison], outcomes: Sequence[Ruling | Failure]) -> str | None:
        for item, outcome in zip(asked, outcomes, strict=True):
            if _timed_out(outcome):
                return f"`answer` {item.gold!r} does not parse within {self.time_limit:g} s"
            if isinstance(outcome, Failure) or (not outcome.equal and item.answer == item.gold):
                return f"`answer` {item.gold!r} does not parse ({outcome.reason})"
        return None

    def _outcomes(
        self, asked: Sequence[Sequence[Comparison]], again_alone: bool = False
    ) -> list[list[Ruling | Failure]]:
        """The outcome of each comparison, each distinct one made once; if it ran out of time, perhaps once more."""
        distinct = list(dict.fromkeys(chain.from_iterable(asked)))
        outcomes = dict(zip(distinct, run(compare, distinct, time_limit=self.time_limit), strict=True))
        late = [item for item in distinct if again_alone and _timed_out(outcomes[item])]
        outcomes |= {item: run(compare, [item], time_limit=self.time_limit)[0] for item in late}
        return [[outcomes[item] for item in items] for items in asked]

    def _comparisons(self, columns: Mapping[str, Any], answer: str) -> list[Comparison]:
        """One for each gold answer that the row allows."""
        return [Comparison(gold=gold, answer=answer, atol=tolerance_of(columns)) for gold in golds_of(columns)]


def _timed_out(outcome: Ruling | Failure) -> bool:
    return isinstance(outcome, Failure) and outcome.status == "timeout"


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
        valid = not isinstance(columns.get("tolerance"), bool) and 0 <= (tolerance_of(columns) or 0.0) < math.inf
    except (TypeError, ValueError):
        valid = False
    return None if valid else f"`tolerance` must be a number of at least 0, got {columns['tolerance']!r}"


def _verdict(outcomes: Sequence[Ruling | Failure]) -> Verdict:
    """Right if any gold answer says so; without a score if that cannot be known."""
    right = [one for one in outcomes if isinstance(one, Ruling) and one.equal]
    decisive = next(chain(right, (one for one in outcomes if isinstance(one, Failure)), outcomes))
    if isinstance(decisive, Failure):
        return Verdict(status=decisive.status, reward=math.nan, reason=decisive.reason)
    return Verdict.of(decisive.equal, decisive.reason)
