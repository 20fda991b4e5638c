"""Multiple choice: one letter, or the text of one option."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from numbers import Integral
from string import ascii_uppercase
from typing import Any

from typing_extensions import override

from lightning_rlvr.verify.answer import AnswerVerifier, gold_of, golds_of
from lightning_rlvr.verify.base import VERIFIERS, Attempt, Verdict

_STYLE = re.compile(r"\\(?:text|math)[a-z]*\s*\{([^{}]*)\}")
_SPACE = re.compile(r"\\[ ,;:!]|\\q?quad(?![a-z])|\\[()]|[~$*\s]")
_LETTER = re.compile(
    r"(?:(?:option|choice|answer)\s*:?\s+)?[(\[{]?\s*([A-Z])\s*(?:[)\]}.:]+\s*(.*))?", re.IGNORECASE | re.DOTALL
)
_OTHER_LETTER = re.compile(  # a lower-case one may be an article or a variable
    r"\b[A-Z]\b|(?<!\w)\([a-h]\)|(?<![\w(])[a-h]\)|(?:\b(?:or|and)\b|[,;/&])\s*[a-h]\b(?!\s*[\w(])"
)
_JOINT = re.compile(r"\s*(?:[,;/]|\b(?:or|and)\b)\s*")


@VERIFIERS.register("choice")
class ChoiceVerifier(AnswerVerifier):
    r"""1 if the final answer names the gold choice and no other, else 0.

    An answer names a choice by its letter in either case, as in ``B``, ``(B)``, ``B.``, ``\textbf{(B)}``, ``option B``
    or ``B) 12``, or by its whole text, case and white space aside. Several letters are no choice, nor is a letter
    beyond the last choice.

    The gold one, in the column ``answer``, is written in the same ways, or as an index that counts from 0. The column
    ``choices`` (else ``options``) lists the texts of the choices; without it there are letters only.

    Args:
        extract: Where the final answer is; `boxed`: in the last ``\boxed{}``, else in the last ``Answer:`` line.

    Raises:
        ValueError: ``extract`` is none of its choices.

    Example:
        >>> columns = {"answer": "B", "choices": ["10", "12"]}
        >>> attempts = [
        ...     Attempt(prompt="", completion=text, completion_ids=(), truncated=False, columns=columns)
        ...     for text in (r"\boxed{\text{(B)}}", r"\boxed{12}", r"\boxed{A or B}")
        ... ]
        >>> [verdict.status for verdict in ChoiceVerifier().verify(attempts)]
        ['correct', 'correct', 'wrong']
    """

    row_local = True

    @override
    def judge(self, answered: Sequence[tuple[str, Attempt]]) -> list[Verdict]:
        return [_verdict(answer, attempt.columns) for answer, attempt in answered]

    @override
    def check_columns(self, columns: Mapping[str, Any]) -> str | None:
        if complaint := super().check_columns(columns):
            return complaint
        try:
            _gold(columns)
        except ValueError as error:
            return str(error)
        return None


def _verdict(answer: str, columns: Mapping[str, Any]) -> Verdict:
    try:
        gold, chosen = _gold(columns), chosen_letter(answer, _choices(columns))
    except ValueError as error:
        return Verdict(status="error", reward=math.nan, reason=str(error))
    named = f"names {chosen}" if chosen else "names no choice, or several"
    return Verdict.of(chosen == gold, f"{named}; the gold choice is {gold}")


def chosen_letter(answer: str, choices: Sequence[str] = ()) -> str | None:
    r"""The letter, upper case, of the one choice that an answer names; None if it names none or several.

    Args:
        answer: The answer alone, without box.
        choices: Texts of the choices in order; none if they are not known.

    Example:
        >>> chosen_letter(r"\textbf{(B)}\ 12"), chosen_letter("12", ["10", "12"]), chosen_letter("A, B")
        ('B', 'B', None)
    """
    text, letters = _plain(answer), ascii_uppercase[: len(choices) or None]
    match = _LETTER.fullmatch(text)
    letter, rest = (match[1].upper(), match[2] or "") if match else ("none", "")
    if letter in letters and not rest:
        return letter
    equal = _with_text(text, choices)
    if equal or letter not in letters:
        return equal[0] if len(equal) == 1 else None
    if of_rest := _with_text(rest, choices):
        return letter if letter in of_rest else None
    others = {other for part in _JOINT.split(rest) for other in _with_text(part, choices)} - {letter}
    return None if others or _OTHER_LETTER.search(rest) else letter


def _gold(columns: Mapping[str, Any]) -> str:
    gold, choices, text = gold_of(columns), _choices(columns), ", ".join(golds_of(columns))
    if isinstance(gold, Integral) and not isinstance(gold, bool):
        named = [ascii_uppercase[int(gold)]] if 0 <= int(gold) < min(len(choices), 26) else []
    else:
        named = list(filter(None, [chosen_letter(text, choices)]))
    found = sorted({*named, *_with_text(_plain(text), choices)})
    if not found:
        known = f"letter, text or index (from 0) of one of {len(choices)} choices" if choices else "letter of a choice"
        raise ValueError(f"`answer` must be the {known}, got {gold!r}")
    if len(found) > 1:
        raise ValueError(f"`answer` must name one choice, got {gold!r}, which may be {' or '.join(found)}")
    return found[0]


def _choices(columns: Mapping[str, Any]) -> list[str]:
    choices = columns.get("choices") or columns.get("options") or []
    if not isinstance(choices, (list, tuple)) or not all(isinstance(c, (str, int, float)) for c in choices):
        raise ValueError(f"`choices` must be a list of texts, got {choices!r}")
    return [str(choice) for choice in choices]


def _with_text(text: str, choices: Sequence[str]) -> list[str]:
    """Letters of the choices whose text this is; case does not count."""
    lettered = zip(ascii_uppercase, choices, strict=False)
    return [letter for letter, choice in lettered if _plain(choice).casefold() == text.casefold()]


def _plain(text: str) -> str:
    """Without type style, dollar signs, Markdown emphasis, white space at the ends and a final full stop."""
    for _ in range(3):
        text = _STYLE.sub(r"\1", text)
    return " ".join(_SPACE.sub(" ", text).split()).rstrip(" .")
