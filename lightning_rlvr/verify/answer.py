"""Where a completion states its final answer and a data row its gold one; the base of verifiers that compare them."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Literal, get_args

from typing_extensions import override

from lightning_rlvr.checks import require_choice
from lightning_rlvr.verify.base import Attempt, Verdict, Verifier

Extract = Literal["boxed", "last_line", "last_number", "all"]

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(?P<bare>-?\d[\d.,/]*|[A-Z]\b))")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_MARKUP = r"(?:[\s$*}]|\\[()\[\]]|\\(?:text(?:rm|bf|it)?|mathrm|mbox)\s*\{)*"
_JOINT = re.compile(rf"{_MARKUP}(?:(?:[,;/&]|or|and|\\q?quad|\\lor|\\vee|\\[\\ ,;]){_MARKUP})+", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\d.)])-?\d+(?:,\d{3})*(?:\.\d+)?|\d+(?:,\d{3})*(?:\.\d+)?")
_ANSWER_LINE = re.compile(r"\banswer[ \t*_]*:[\s*_`]*", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """The final answer of a completion and where it stood, or why there is none."""

    answer: str | None
    rule: str


def extract(completion: str, where: Extract, *, truncated: bool) -> Extraction:
    r"""The final answer after any ``</think>``.

    ``boxed``: the last ``\boxed{}`` or ``\fbox{}``, else what follows the last ``Answer:`` on its line or, if that is
    all of it, the next. Boxes joined by nothing but commas, slashes, "or", "and" and the like, and markup, are one
    answer with several parts, so that listing the options is not a way to be right.
    ``last_line``: the last line that is not blank. ``last_number``: the last number, thousands commas dropped; a minus
    sign between two numbers is an operator. ``all``: the whole completion, reasoning included.

    A completion cut off inside box, line, number or reasoning has no answer; nor has an empty box.

    Args:
        completion: Text after the prompt.
        where: One of the four rules.
        truncated: The completion ended without an end token, so its last line may be incomplete.

    Example:
        >>> extract(r"<think>\boxed{9}?</think> No: \boxed{\frac{1}{2}}.", "boxed", truncated=False)
        Extraction(answer='\\frac{1}{2}', rule='last \\boxed{}')
        >>> extract(r"either $\boxed{A}$ or $\boxed{B}$", "boxed", truncated=False)
        Extraction(answer='A, B', rule='last \\boxed{}')
        >>> extract("Answer: 12", "boxed", truncated=True)
        Extraction(answer=None, rule='truncated inside the Answer: line')
        >>> extract("97 - 12 is 85.", "last_number", truncated=False)
        Extraction(answer='85', rule='last number')
    """
    text = completion.rpartition("</think>")[2]
    if where == "all":
        return _cut("completion", completion.strip(), truncated=truncated)
    if "<think>" in text:
        return Extraction(answer=None, rule="reasoning not closed")
    if where == "last_line":
        return _cut("last line", text.strip().rpartition("\n")[2].strip(), truncated=truncated)
    if where == "last_number":
        numbers = _NUMBER.findall(text)
        return _cut("last number", numbers[-1].replace(",", "") if numbers else "", truncated=truncated)
    return _last_box(text, truncated=truncated) or _last_answer_line(text, truncated=truncated)


def gold_of(columns: Mapping[str, Any]) -> Any:
    """The gold answer of a row; a list of one is that one.

    Example:
        >>> gold_of({"answer": ["3"]})
        '3'
    """
    gold = columns["answer"]
    return gold[0] if isinstance(gold, (list, tuple)) and len(gold) == 1 else gold


def golds_of(columns: Mapping[str, Any]) -> tuple[str, ...]:
    r"""The gold answers of a row as text, any of which is right.

    A list holds alternatives. A text with a box (a worked solution) stands for what its last box holds, one with
    ``####`` for what follows that.

    Example:
        >>> golds_of({"answer": [r"hence \boxed{12}", "6 + 6 = 12\n#### 12", 12.0]})
        ('12', '12', '12.0')
    """
    gold = gold_of(columns)
    return tuple(map(_gold_text, gold if isinstance(gold, (list, tuple)) else (gold,)))


def _gold_text(gold: Any) -> str:
    text = str(gold)
    box = _last_box(text, truncated=False)
    return (box.answer or "") if box else text.rpartition("####")[2].strip()


def gold_complaint(columns: Mapping[str, Any]) -> str | None:
    """What is wrong with the gold answer of a row, so that no completion could ever match it; None if nothing is.

    Example:
        >>> gold_complaint({"answer": float("nan")}), gold_complaint({"answer": [12, "twelve"]})
        ('`answer` must be text or a finite number, or a list of such, got nan', None)
    """
    if "answer" not in columns:
        return f"`columns` must hold 'answer', got {', '.join(columns) or 'none'}"
    gold = gold_of(columns)
    for one in gold if isinstance(gold, (list, tuple)) else (gold,):
        if not isinstance(one, (str, Integral)) and not (isinstance(one, Real) and math.isfinite(one)):
            return f"`answer` must be text or a finite number, or a list of such, got {gold!r}"
    return None if golds_of(columns) and all(golds_of(columns)) else "`answer` is empty"


class AnswerVerifier(Verifier):
    r"""Reads the final answer of a completion and leaves to ``judge`` what to make of it.

    A completion without one gets ``no_answer``, an answer to a row that is unsound ``error``, and every reason begins
    with the rule that found the answer.

    Args:
        extract: Where the final answer is; `boxed`: in the last ``\boxed{}``, else in the last ``Answer:`` line.

    Raises:
        ValueError: ``extract`` is none of its choices.

    Example:
        >>> class LengthVerifier(AnswerVerifier):
        ...     def judge(self, answered):
        ...         return [Verdict.of(len(answer) == attempt.columns["answer"]) for answer, attempt in answered]
        >>> attempt = Attempt(
        ...     prompt="", completion="Answer: abc", completion_ids=(), truncated=False, columns={"answer": 3}
        ... )
        >>> LengthVerifier().verify([attempt])
        [Verdict(status='correct', reward=1.0, answer='abc', reason='last Answer: line', parts={})]
    """

    def __init__(self, extract: Extract = "boxed") -> None:
        require_choice("extract", get_args(Extract), extract)
        self.extract = extract

    @abstractmethod
    def judge(self, answered: Sequence[tuple[str, Attempt]]) -> list[Verdict]:
        """One verdict for each final answer, in order; never raises for what an answer contains."""

    def extraction(self, attempt: Attempt) -> Extraction:
        """The final answer of one attempt."""
        return extract(attempt.completion, self.extract, truncated=attempt.truncated)

    def complaint(self, columns: Mapping[str, Any]) -> str | None:
        """What is wrong with a row that may never have been checked, or None; asked before each judgement."""
        return self.check_columns(columns)

    @override
    def verify(self, attempts: Sequence[Attempt]) -> list[Verdict]:
        found = [self.extraction(attempt) for attempt in attempts]
        answered = {row: (one.answer, attempts[row]) for row, one in enumerate(found) if one.answer is not None}
        complaints = {row: self.complaint(attempt.columns) for row, (_, attempt) in answered.items()}
        sound = [row for row in answered if complaints[row] is None]
        judged = {
            row: Verdict(status="error", reward=math.nan, reason=complaint)
            for row, complaint in complaints.items()
            if complaint is not None
        }
        judged |= zip(sound, self.judge([answered[row] for row in sound]), strict=True)
        return [
            replace(judged[row], answer=one.answer, reason="; ".join(filter(None, (one.rule, judged[row].reason))))
            if row in judged
            else Verdict(status="no_answer", reward=0.0, reason=one.rule)
            for row, one in enumerate(found)
        ]

    @override
    def check_columns(self, columns: Mapping[str, Any]) -> str | None:
        return gold_complaint(columns)


def _cut(where: str, answer: str, *, truncated: bool) -> Extraction:
    if truncated:
        return Extraction(answer=None, rule=f"truncated inside the {where}")
    return Extraction(answer=answer or None, rule=where if answer else f"no {where.removeprefix('last ')}")


def _last_box(text: str, *, truncated: bool) -> Extraction | None:
    parts: list[str] = []
    start = len(text)
    for box in reversed(list(_BOX.finditer(text))):
        end = box.end() - 1 if box["bare"] else _closing_brace(text, box.end())
        if parts and (end is None or not _JOINT.fullmatch(text, end + 1, start)):
            break
        if end is None:
            return Extraction(answer=None, rule="truncated inside the box" if truncated else "box not closed")
        parts.append(box["bare"].rstrip(".,/") if box["bare"] else _trim(text[box.end() : end]))
        start = box.start()
    if not parts:
        return None
    answer = ", ".join(dict.fromkeys(reversed(parts)))
    return Extraction(answer=answer or None, rule=r"last \boxed{}" if answer else "empty box")


def _closing_brace(text: str, start: int) -> int | None:
    depth = 1
    for match in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth == 0:
            return match.start()
    return None


def _trim(text: str) -> str:
    r"""Without white space at the ends, be it written as ``\ `` or not; no single backslash stays behind."""
    text = text.strip()
    while (len(text) - len(text.rstrip("\\"))) % 2:
        text = text[:-1].rstrip()
    return text


def _last_answer_line(text: str, *, truncated: bool) -> Extraction:
    starts = [match.end() for match in _ANSWER_LINE.finditer(text)]
    if not starts:
        reason = "truncated before a final answer" if truncated else "no box and no Answer: line"
        return Extraction(answer=None, rule=reason)
    line, newline, _ = text[starts[-1] :].partition("\n")
    if truncated and not newline:
        return Extraction(answer=None, rule="truncated inside the Answer: line")
    answer = line.partition("</answer>")[0].strip().rstrip(".").strip("*_$` \t")
    return Extraction(answer=answer or None, rule="last Answer: line" if answer else "empty Answer: line")
