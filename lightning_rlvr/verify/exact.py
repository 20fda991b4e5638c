"""Equality of strings, for answers that need no reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from typing_extensions import override

from lightning_rlvr.checks import require, require_choice
from lightning_rlvr.verify.answer import final_answer, gold_complaint, gold_of, judge, last_line, last_number
from lightning_rlvr.verify.base import VERIFIERS, Attempt, Verdict, Verifier

Extract = Literal["boxed", "last_line", "last_number", "all"]


@VERIFIERS.register("exact")
class ExactVerifier(Verifier):
    r"""1 if the final answer is the gold one letter by letter, white space aside, else 0.

    Args:
        extract: Where the answer is. `boxed`: the last ``\boxed{}``, else the last ``Answer:`` line. `last_line`: the
            last line. `last_number`: the last number. `all`: the whole completion. A completion cut off inside any of
            them has no answer.
        after: Keep only what follows the last occurrence of this text; an extract without it is no answer.

    Example:
        >>> attempt = Attempt(
        ...     prompt="27+48=", completion="7+8=15,1+2+4=7;75", completion_ids=(), truncated=False,
        ...     columns={"answer": 75},
        ... )
        >>> ExactVerifier(extract="all", after=";").verify([attempt])[0].status
        'correct'
    """

    def __init__(self, extract: Extract = "boxed", after: str | None = None) -> None:
        require_choice("extract", get_args(Extract), extract)
        require(after != "", "after", "some text, or left out to keep the whole extract", after)
        self.extract = extract
        self.after = after

    @override
    def verify(self, attempts: Sequence[Attempt]) -> list[Verdict]:
        return [judge(attempt, self._answer(attempt), _decide) for attempt in attempts]

    @override
    def check_columns(self, columns: Mapping[str, Any]) -> str | None:
        return gold_complaint(columns)

    def _answer(self, attempt: Attempt) -> str | None:
        answer = _EXTRACTORS[self.extract](attempt.completion, truncated=attempt.truncated)
        if answer is not None and self.after is not None:
            answer = answer.rpartition(self.after)[2] if self.after in answer else None
        return _normalize(answer or "") or None


def _whole(completion: str, *, truncated: bool) -> str | None:
    return None if truncated else completion


_EXTRACTORS = {"boxed": final_answer, "last_line": last_line, "last_number": last_number, "all": _whole}


def _decide(answer: str, columns: Mapping[str, Any]) -> Verdict:
    if answer == _normalize(gold_of(columns)):
        return Verdict(status="correct", reward=1.0, answer=answer)
    return Verdict(status="wrong", reward=0.0, answer=answer)


def _normalize(text: Any) -> str:
    return " ".join(str(text).split())
