"""Equality of the final answer with the gold one as real numbers, within a tolerance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from lightning_rlvr.checks import require
from lightning_rlvr.verify.answer import Extract, golds_of
from lightning_rlvr.verify.base import VERIFIERS
from lightning_rlvr.verify.equality import Comparison
from lightning_rlvr.verify.math import MathVerifier, tolerance_of


@VERIFIERS.register("numeric")
class NumericVerifier(MathVerifier):
    r"""1 if the final answer is within ``atol + rtol * abs(gold)`` of the gold one, else 0.

    Both are read as in `math`, so that ``\frac{\pi}{2}`` is a number; lists are compared part by part, in any order.

    Args:
        rtol: Relative error that is allowed.
        atol: Absolute error that is allowed; a column ``tolerance`` takes its place in rows that have one.
        time_limit: Seconds for each comparison; beyond it the verdict is `timeout`, which has no score.
        extract: Where the final answer is; `boxed`: in the last ``\boxed{}``, else in the last ``Answer:`` line.

    Raises:
        ImportError: math-verify is not installed.
        ValueError: A number is negative or not finite, ``time_limit`` is 0, or ``extract`` is none of its choices.

    Example:
        >>> from lightning_rlvr.verify.base import Attempt
        >>> attempt = Attempt(
        ...     prompt="", completion=r"\boxed{3.14}", completion_ids=(), truncated=False, columns={"answer": r"\pi"}
        ... )
        >>> [NumericVerifier(rtol=rtol).verify([attempt])[0].status for rtol in (0.0, 0.01)]
        ['wrong', 'correct']
    """

    def __init__(
        self, rtol: float = 0.0, atol: float = 1e-6, time_limit: float = 5.0, extract: Extract = "boxed"
    ) -> None:
        super().__init__(time_limit, extract)
        require(0 <= rtol < math.inf, "rtol", "a number of at least 0", rtol)
        require(0 <= atol < math.inf, "atol", "a number of at least 0", atol)
        self.rtol = rtol
        self.atol = atol

    @override
    def _comparisons(self, columns: Mapping[str, Any], answer: str) -> list[Comparison]:
        tolerance = tolerance_of(columns)
        atol = self.atol if tolerance is None else tolerance
        return [
            Comparison(gold=gold, answer=answer, atol=atol, rtol=self.rtol, numbers=True) for gold in golds_of(columns)
        ]
