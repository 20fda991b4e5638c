"""Where a completion states its final answer, and what becomes of it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from lightning_rlvr.verify.base import Attempt, Verdict

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_JOINT = re.compile(r"[\s$]*(?:,|or|and|,\s*(?:or|and))[\s$]*", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\d.)])-?\d+(?:,\d{3})*(?:\.\d+)?|\d+(?:,\d{3})*(?:\.\d+)?")
_ANSWER_LINE = re.compile(r"\banswer[ \t*_]*:(.*)", re.IGNORECASE)


def final_answer(completion: str, *, truncated: bool) -> str | None:
    r"""The last ``\boxed{}`` (or ``\fbox{}``) after any ``</think>``, else the last ``Answer:`` line, else None.

    Boxes joined by nothing but a comma, "or" or "and" are one answer with several parts, so that listing the options
    is not a way to be right. A completion cut off inside box, line or reasoning has no answer; nor has an empty box.

    Args:
        completion: Text after the prompt.
        truncated: The completion ended without an end token, so its last line may be incomplete.

    Example:
        >>> final_answer(r"<think>\boxed{9}?</think> No: \boxed{\frac{1}{2}}.", truncated=False)
        '\\frac{1}{2}'
        >>> final_answer(r"either $\boxed{A}$ or $\boxed{B}$", truncated=False)
        'A, B'
        >>> final_answer("Answer: 12", truncated=True) is None
        True
    """
    text = _conclusion(completion)
    answer = _last_box(text) if _BOX.search(text) else _last_answer_line(text, truncated)
    return answer or None


def gold_of(columns: Mapping[str, Any]) -> Any:
    """The gold answer of a row; a list of one is that one.

    Example:
        >>> gold_of({"answer": ["3"]})
        '3'
    """
    gold = columns["answer"]
    return gold[0] if isinstance(gold, (list, tuple)) and len(gold) == 1 else gold


def gold_complaint(columns: Mapping[str, Any]) -> str | None:
    """What is wrong with the gold answer of a row, so that no completion could ever match it; None if nothing is.

    Example:
        >>> gold_complaint({"answer": float("nan")}), gold_complaint({"answer": 12})
        ('`answer` must be text or a finite number, got nan', None)
    """
    if "answer" not in columns:
        return f"`columns` must hold 'answer', got {', '.join(columns) or 'none'}"
    gold = gold_of(columns)
    if not isinstance(gold, (str, int, float)) or (isinstance(gold, float) and not math.isfinite(gold)):
        return f"`answer` must be text or a finite number, got {gold!r}"
    return None if str(gold).strip() else "`answer` is empty"


def last_line(completion: str, *, truncated: bool) -> str | None:
    r"""The last line that is not blank; None if there is none, or if the completion was cut off inside it.

    Example:
        >>> last_line("so it is\n 12 \n", truncated=False)
        '12'
    """
    lines = _conclusion(completion).strip().splitlines()
    return lines[-1].strip() if lines and not truncated else None


def last_number(completion: str, *, truncated: bool) -> str | None:
    """The last number, thousands commas dropped; None if there is none, or if the completion was cut off.

    A minus sign between two numbers is an operator.

    Example:
        >>> last_number("97 - 12 is 85.", truncated=False), last_number("so x = -1,250", truncated=False)
        ('85', '-1250')
    """
    numbers = _NUMBER.findall(_conclusion(completion))
    return numbers[-1].replace(",", "") if numbers and not truncated else None


def judge(attempt: Attempt, answer: str | None, decide: Callable[[str, Mapping[str, Any]], Verdict]) -> Verdict:
    """The verdict on an answer: ``no_answer`` without one, ``error`` (NaN) if ``decide`` raises, else its own.

    Args:
        attempt: The completion that was verified.
        answer: What was extracted from it.
        decide: Compares an answer with the columns of its problem.

    Example:
        >>> attempt = Attempt(prompt="", completion="", completion_ids=(), truncated=False, columns={})
        >>> judge(attempt, "1", lambda answer, columns: Verdict(status="correct", reward=1 / 0))
        Verdict(status='error', reward=nan, answer='1', reason='ZeroDivisionError: division by zero')
    """
    if answer is None:
        reason = "truncated before a final answer" if attempt.truncated else "no final answer"
        return Verdict(status="no_answer", reward=0.0, reason=reason)
    try:
        return decide(answer, attempt.columns)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # time limits of third-party checkers do not derive from Exception
        return Verdict(status="error", reward=math.nan, answer=answer, reason=f"{type(error).__name__}: {error}")


def _conclusion(completion: str) -> str:
    text = completion.rpartition("</think>")[2]
    return "" if "<think>" in text else text


def _last_box(text: str) -> str | None:
    parts: list[str] = []
    start = len(text)
    for box in reversed(list(_BOX.finditer(text))):
        end = _closing_brace(text, box.end())
        if parts and (end is None or not _JOINT.fullmatch(text, end + 1, start)):
            break
        if end is None:
            return None
        parts.append(text[box.end() : end].strip())
        start = box.start()
    return ", ".join(dict.fromkeys(reversed(parts)))


def _closing_brace(text: str, start: int) -> int | None:
    depth = 1
    for match in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth == 0:
            return match.start()
    return None


def _last_answer_line(text: str, truncated: bool) -> str | None:
    lines = list(_ANSWER_LINE.finditer(text))
    if not lines or (truncated and lines[-1].end() == len(text)):
        return None
    return lines[-1].group(1).strip().rstrip(".").strip("*_$ \t")
