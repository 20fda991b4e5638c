"""Equality of strings, for answers that need no reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from typing_extensions import override

from lightning_rlvr.checks import require, require_choice
from lightning_rlvr.verify.answer import Extract, Extraction, extract, gold_complaint, golds_of
from lightning_rlvr.verify.base import VERIFIERS, Attempt, Verdict, Verifier


@VERIFIERS.register("exact")
class ExactVerifier(Verifier):
    r"""1 if the final answer is the gold one letter by letter, white space aside, else 0.

    A list of gold answers holds alternatives; one with a box or ``####`` is read as in `math`.

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
        return [_verdict(self._extraction(attempt), attempt.columns) for attempt in attempts]

    @override
    def check_columns(self, columns: Mapping[str, Any]) -> str | None:
        return gold_complaint(columns)

    def _extraction(self, attempt: Attempt) -> Extraction:
        found = extract(attempt.completion, self.extract, truncated=attempt.truncated)
        if found.answer is None or self.after is None:
            return found
        _, after, answer = found.answer.rpartition(self.after)
        rule = f"{found.rule}, after {self.after!r}" if after else f"{found.rule} without {self.after!r}"
        return replace(found, answer=answer if after else None, rule=rule)


def _verdict(found: Extraction, columns: Mapping[str, Any]) -> Verdict:
    answer = _normalize(found.answer or "")
    if not answer:
        return Verdict(status="no_answer", reward=0.0, reason=found.rule)
    if answer in map(_normalize, golds_of(columns)):
        return Verdict(status="correct", reward=1.0, answer=answer, reason=f"{found.rule}; the same text")
    return Verdict(status="wrong", reward=0.0, answer=answer, reason=f"{found.rule}; not the same text")


def _normalize(text: str) -> str:
    return " ".join(text.split())
