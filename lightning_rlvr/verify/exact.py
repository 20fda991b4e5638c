"""Equality of strings, for answers that need no reading."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from lightning_rlvr.checks import require
from lightning_rlvr.verify.answer import AnswerVerifier, Extract, Extraction, golds_of
from lightning_rlvr.verify.base import VERIFIERS, Attempt, Verdict


@VERIFIERS.register("exact")
class ExactVerifier(AnswerVerifier):
    r"""1 if the final answer is the gold one letter by letter, white space aside, else 0.

    A list of gold answers holds alternatives; one with a box or ``####`` is read as in `math`.

    Args:
        extract: Where the final answer is; `boxed`: in the last ``\boxed{}``, else in the last ``Answer:`` line.
        after: Keep only what follows the last occurrence of this text; an extract without it is no answer.

    Raises:
        ValueError: ``extract`` is none of its choices, or ``after`` is empty.

    Example:
        >>> attempt = Attempt(
        ...     prompt="27+48=", completion="7+8=15,1+2+4=7;75", completion_ids=(), truncated=False,
        ...     columns={"answer": 75},
        ... )
        >>> ExactVerifier(extract="all", after=";").verify([attempt])[0].status
        'correct'
    """

    row_local = True

    def __init__(self, extract: Extract = "boxed", after: str | None = None) -> None:
        super().__init__(extract)
        require(after != "", "after", "some text, or left out to keep the whole extract", after)
        self.after = after

    @override
    def extraction(self, attempt: Attempt) -> Extraction:
        found = super().extraction(attempt)
        answer, rule = found.answer or "", found.rule
        if answer and self.after is not None:
            _, after, rest = answer.rpartition(self.after)
            answer = rest if after else ""
            rule += f", after {self.after!r}" if after else f" without {self.after!r}"
        return Extraction(answer=_normalize(answer) or None, rule=rule)

    @override
    def judge(self, answered: Sequence[tuple[str, Attempt]]) -> list[Verdict]:
        same = [answer in map(_normalize, golds_of(attempt.columns)) for answer, attempt in answered]
        return [Verdict.of(one, "the same text" if one else "not the same text") for one in same]


def _normalize(text: str) -> str:
    return " ".join(text.split())
