"""Equality of two written answers: math-verify behind a layer of general rules; runs in worker processes."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate, chain
from typing import Any

_MAX_LENGTH = 2000
"""Characters of an answer that are worth reading, if its gold is not long itself."""
_MAX_DEPTH = 20
"""Nested brackets, beyond which the parser takes exponential time."""
_TINY = 1e-3
"""Below this size math-verify's rounding to 6 decimals is too coarse, and values are compared relatively."""

_SYMBOLS = str.maketrans(
    {
        "\N{MINUS SIGN}": "-",
        "\N{EN DASH}": "-",
        "\N{NO-BREAK SPACE}": " ",
        "\N{MULTIPLICATION SIGN}": r"\times ",
        "\N{MIDDLE DOT}": r"\cdot ",
        "\N{DIVISION SIGN}": r"\div ",
        "\N{GREEK SMALL LETTER PI}": r"\pi ",
        "\N{INFINITY}": r"\infty ",
        "\N{SQUARE ROOT}": r"\sqrt ",
        "\N{LESS-THAN OR EQUAL TO}": r"\le ",
        "\N{GREATER-THAN OR EQUAL TO}": r"\ge ",
        "\N{UNION}": r"\cup ",
        "\N{DEGREE SIGN}": r"^\circ ",
        "\N{SUPERSCRIPT TWO}": "^2",
        "\N{SUPERSCRIPT THREE}": "^3",
    }
)
_SPELLINGS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        # delimiters of mathematics, which also stand between parts; the dollar as a unit; sizes of brackets; spaces
        (r"(?<!\\)\\?\$|(?<!\\)\\[()\[\]]", " "),
        (r"\\[bB]igg?[lrm]?(?![a-zA-Z])", ""),
        (r"\\q?quad(?![a-zA-Z])|(?<!\\)\\[ ;:]|~", " "),
        # one number each, read as several or not at all: 12\,500 and 12{,}500; 6. and -3./2; 2 3/4; 4.5e33
        (r"(?<=\d)(?:\{,\}|,?\\[,!])\s*(?=\d{3}(?!\d))", ""),
        (r"(?<=\d)\.(?=\s*(?:[-+*/^,;)}]|$))", ""),
        (r"(?<![\w./^])(\d+)\s+(\d+)/(\d+)(?![\d./])", r"\1\\frac{\2}{\3}"),
        (r"(?<![\w\\.])(\d+\.?\d*|\.\d+)[eE]([-+]?\d+)(?![\w.])", r"\1 \\cdot 10^{\2}"),
        # constants and functions that are taken for words: an upright e or i; pi, sqrt(3) and np.sin without backslash
        (r"\\(?:mathrm|text|textrm)\{([ei])\}", r"\1"),
        (r"\\?sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(?<![\\a-zA-Z])(?:np\.|math\.)?(pi|sqrt|(?:arc)?(?:sin|cos|tan)|ln|log|exp)(?![a-zA-Z])", r"\\\1"),
        # what the parser gives up on: an index and no braces; a name below that is an operator elsewhere
        (r"(\\sqrt\[[^\]]*\])\s*(\w)", r"\1{\2}"),
        (r"_\{?\\(max|min|odot|oplus)(?![a-zA-Z])\s*\}?", r"_{\1}"),
        # words around the answer: the variable of an interval; what the letters mean; the brackets of a choice
        (r"^\s*[a-zA-Z]\s*(?:\\in(?![a-zA-Z])|(?=\([^()\[\]]*\]\s*$|\[[^()\[\]]*\)\s*$))", ""),
        (r"(?s)(?:,|\\text\s*\{|\s)*(?<![a-zA-Z\\])where(?![a-zA-Z]).*", ""),
        (r"^\s*(?:\\(?:text|mathrm|textbf|mathbf)\{)?\s*\(([A-Za-z])\)\s*\}?\s*$", r"\1"),
    )
)
"""Spellings that math-verify misreads, and what it reads as meant."""

_TOKEN = re.compile(
    r"(?P<separator>[,;]|\\(?:text|mbox|textrm|mathrm)\s*\{\s*,?\s*(?:and|or)\s*\}|(?<![\\a-zA-Z])(?:and|or)(?![a-zA-Z]))"
    r"|(?P<open>[(\[{]|\\\{|\\begin(?![a-zA-Z]))|(?P<close>[)\]}]|\\\}|\\end(?![a-zA-Z]))|\\."
    r"|(?<![\d.,])[1-9]\d{0,2}(?P<thousands>(?:,\d{3})+)(?![\d,])",
    re.DOTALL,
)
_GROUP = re.compile(r"(?:\\left\s*)?(\(|\[|\\\{)(.*?)(?:\\right\s*)?(\)|\]|\\\})", re.DOTALL)
_INTEGER = re.compile(r"-?[0-9]{1,1000}")
_UNIT = re.compile(
    r"[\d}](?:\\,|\s)*\\(?:text|mathrm|mbox|textrm)\s*\{"
    r"\s*(?:(?:sq|cu)[a-z]*\.?\s+)?(?!units?\b|sq|cu)([a-zA-Z])[^{}]*\}(?:\^\{?\d\}?)?$"
)
_PERCENT = re.compile(r"\s*(?:\\?%|\\text\s*\{\s*percent\s*\}|(?<![a-zA-Z])percent)\s*$")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One answer beside one gold answer, and how near it must be."""

    gold: str
    answer: str
    atol: float | None = None
    """Numbers (and lists of them) are equal within ``atol + rtol * abs(gold)``; None: exact, as mathematics."""
    rtol: float = 0.0
    numbers: bool = False
    """Nothing but real numbers will do."""


@dataclass(frozen=True, kw_only=True)
class Ruling:
    """Whether an answer is right, and by which rule."""

    equal: bool
    reason: str


def warm_up() -> None:
    """Import and fill, in the process that the workers are forked from, what `compare` needs to be fast."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that it runs without its own time limits
    for text in (r"2\sqrt{3}", r"\frac{-1}{2}+0.5", r"x^{2}-3x=1", r"f(x)=\pi x!", r"(0,1]\cup\{2\}", r"10\%", "2<x"):
        compare(Comparison(gold=text, answer=text))


def compare(item: Comparison) -> Ruling:
    r"""Whether the answer equals the gold, each LaTeX or plain text, with or without dollar signs.

    It may run for ever (a tower of powers), so call it through the pool.

    Raises:
        ValueError: The gold does not parse as mathematics.

    Example:
        >>> compare(Comparison(gold=r"\frac{1}{2}, 3", answer="3, 0.5"))
        Ruling(equal=True, reason='equal as mathematics')
        >>> compare(Comparison(gold="1/3", answer="0.333", atol=1e-6))
        Ruling(equal=False, reason='0.333 is not within 1e-06 of 1/3')
    """
    limit = max(_MAX_LENGTH, 4 * len(item.gold))  # long matrices and lists are as long in the gold
    if len(item.answer) > limit:
        return Ruling(equal=False, reason=f"answer longer than {limit} characters")
    gold, answer = _tidy(item.gold), _tidy(item.answer)
    golds, answers = ([] if _tangled(text) else _leaves(text) for text in (gold, answer))
    if not golds or None in map(_parse, golds):
        raise ValueError("the gold is no mathematics")
    if not answers or None in map(_parse, answers):
        return Ruling(equal=False, reason="answer does not parse")
    words = [leaf for leaf in golds + answers if _number(leaf) is None] if item.atol is not None else []
    if item.numbers and words:
        return Ruling(equal=False, reason=f"{_short(words[0])} is not a number")
    if item.atol is None or words:
        equal = _agree(gold, answer, _equal)
        return Ruling(equal=equal, reason="equal as mathematics" if equal else "not equal as mathematics")
    bound = item.atol, item.rtol
    equal = _agree(gold, answer, lambda one, other: _near(one, other, *bound))
    allowed = f"{item.atol:g}" + (f" + {item.rtol:g} of its size" if item.rtol else "")
    claim = f"{'' if equal else 'not '}within {allowed} of {_short(item.gold)}"
    return Ruling(equal=equal, reason=f"{_short(item.answer)} is {claim}")


def _tidy(text: str) -> str:
    text = text.translate(_SYMBOLS)
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    return text.strip().rstrip(".").rstrip()


def _tangled(text: str) -> bool:
    """Brackets that are not closed or nested so deep that the parser would search for ages."""
    depths = list(accumulate(bool(token["open"]) - bool(token["close"]) for token in _TOKEN.finditer(text)))
    return bool(depths) and (depths[-1] != 0 or max(depths) > _MAX_DEPTH)


def _split(text: str) -> tuple[str, list[str]]:
    r"""The brackets around a list (none, ``()``, ``[)``, ``\{\}``, ...) and its parts; what is no list is one part.

    Without brackets, thousands commas are dropped and each plus-minus gives both its signs.
    """
    group = _GROUP.fullmatch(text)
    inside = _pieces(group[2], thousands=False) if group else []
    if group and len(inside) > 1:
        return group[1] + group[3], inside
    parts = _pieces(text, thousands=True) or [text]
    signed = ((part.replace(r"\pm", "+"), part.replace(r"\pm", "-")) if r"\pm" in part else (part,) for part in parts)
    return "", list(chain.from_iterable(signed))


def _pieces(text: str, *, thousands: bool) -> list[str]:
    """What stands between the separators outside all brackets; nothing if the brackets do not match."""
    pieces, depth, start = [""], 0, 0
    for token in _TOKEN.finditer(text):
        depth += bool(token["open"]) - bool(token["close"])
        if depth < 0:
            return []
        if depth == 0 and (token["separator"] or token["thousands"]):
            first, *others = token.group().split(",") if token["thousands"] else ["", ""]
            pieces[-1] += text[start : token.start()] + first
            if token["thousands"] and thousands:
                pieces[-1] += "".join(others)
            else:
                pieces += others
            start = token.end()
    pieces[-1] += text[start:]
    return [piece.strip() for piece in pieces if piece.strip()] if depth == 0 else []


def _leaves(text: str) -> list[str]:
    brackets, parts = _split(text)
    if brackets or len(parts) > 1:
        return list(chain.from_iterable(map(_leaves, parts)))
    return [part for part in parts if part]


def _agree(gold: str, answer: str, same: Callable[[str, str], bool]) -> bool:
    """Part by part where both are lists in like brackets: in any order in a set or without brackets."""
    (kind, golds), (other_kind, answers) = _split(gold), _split(answer)
    if len(golds) == len(answers) == 1:
        return same(golds[0], answers[0])
    if 1 in (len(golds), len(answers)) or kind != other_kind:  # a bare pair and (0, 6), a list and a set
        return same(gold, answer)
    if len(golds) != len(answers):  # an element may be named twice in a set
        return kind == r"\{\}" and same(gold, answer)
    if kind in ("", r"\{\}"):
        return _match(golds, answers, same)
    return all(_agree(*pair, same) for pair in zip(golds, answers, strict=True))


def _match(golds: list[str], answers: list[str], same: Callable[[str, str], bool]) -> bool:
    """Whether the parts pair up, each with one that it agrees with.

    Found by augmenting paths, because agreement is not transitive (within a tolerance; with and without unit): the
    first partner that fits may be the only one that fits another.
    """
    agree = cache(lambda gold, answer: gold == answer or _agree(gold, answer, same))
    paired: dict[int, str] = {}

    def pair(gold: str, tried: set[int]) -> bool:
        for i in sorted(range(len(answers)), key=lambda i: (i in paired, answers[i] != gold)):
            if i not in tried and agree(gold, answers[i]):
                tried.add(i)
                if i not in paired or pair(paired[i], tried):
                    paired[i] = gold
                    return True
        return False

    return all(pair(gold, set()) for gold in golds)


def _equal(gold: str, answer: str) -> bool:
    return _like_units(gold, answer) and any(_same(_parse(g), _parse(a)) for g, a in _readings(gold, answer))


def _near(gold: str, answer: str, atol: float, rtol: float) -> bool:
    return _like_units(gold, answer) and any(
        _within(_number(g), _number(a), atol, rtol) for g, a in _readings(gold, answer)
    )


def _like_units(gold: str, answer: str) -> bool:
    """No units with different initials: cm is not m, but ft may be feet."""
    units = _UNIT.search(gold), _UNIT.search(answer)
    return not all(units) or len({unit[1].lower() for unit in units if unit}) == 1


def _readings(gold: str, answer: str) -> list[tuple[str, str]]:
    r"""As they are without percent signs; where one of them alone has such a sign, also with it.

    So 35\% equals 35\%, 35 and 0.35, but 0.35 does not equal 35.
    """
    plain = _PERCENT.sub("", gold), _PERCENT.sub("", answer)
    one_sided = (plain[0] == gold) != (plain[1] == answer)
    return [plain, (gold, answer)] if one_sided else [plain]


@lru_cache(maxsize=4096)  # every completion of a prompt asks for the same gold
def _parse(text: str) -> Any:
    from math_verify import LatexExtractionConfig, parse
    from sympy import Derivative, Integer, Symbol

    if _INTEGER.fullmatch(text):  # many times faster
        return Integer(text)
    parsed = parse(
        rf"\boxed{{{text}}}",
        extraction_config=[LatexExtractionConfig(boxed_match_priority=0)],
        fallback_mode="no_fallback",
        parsing_timeout=0,
    )
    if not parsed:
        return None
    # sympy takes dx/dt for 0 where x is a letter, so it becomes a name of its own
    rates = [rate for rate in parsed[0].atoms(Derivative) if rate.expr.is_Symbol and rate.expr not in rate.variables]
    return parsed[0].xreplace({rate: Symbol(str(rate)) for rate in rates})


def _number(text: str) -> Any:
    """The value as a real number of sympy's, or None; of an equation its right-hand side."""
    from sympy import Eq, Expr

    value = _parse(text)
    value = value.rhs if isinstance(value, Eq) else value
    if not isinstance(value, Expr) or not value.is_number:
        return None
    value = value.doit()
    return value if value.is_extended_real and value.is_finite else None


def _within(gold: Any, answer: Any, atol: float, rtol: float) -> bool:
    if gold is None or answer is None:
        return False
    return bool(abs((answer - gold).evalf()) <= (atol + rtol * abs(gold)) * (1 + 1e-9))  # 1.1 is within 0.1 of 1


def _same(gold: Any, answer: Any) -> bool:
    from math_verify import verify
    from sympy import Eq, Ne

    if gold is None or answer is None or _far(gold, answer):
        return False
    if isinstance(gold, Ne) and isinstance(answer, Ne):  # math-verify knows equations only
        gold, answer = Eq(*gold.args, evaluate=False), Eq(*answer.args, evaluate=False)
    same = verify(gold, answer, timeout_seconds=0, raise_on_error=True, allow_set_relation_comp=True)
    return same and not _differ_without_solution(gold, answer)


def _far(gold: Any, answer: Any) -> bool:
    """Numbers that differ by more than any rounding; it also saves their symbolic comparison."""
    from sympy import Expr

    if gold == answer or not all(isinstance(value, Expr) and value.is_number for value in (gold, answer)):
        return False
    gold, answer = gold.doit(), answer.doit()  # percentages come unevaluated
    size, distance = abs(gold.evalf()), abs((gold - answer).evalf())
    comparable = size.is_extended_real and distance.is_extended_real
    return bool(comparable and distance > 2e-6 * (size if size < _TINY else 1))


def _differ_without_solution(gold: Any, answer: Any) -> bool:
    """Equations without solutions are alike to math-verify, whatever they say; only the same equation is."""
    from sympy import Eq, Expr, solve

    equations = gold != answer and isinstance(gold, Eq) and isinstance(answer, Eq)
    if not equations or not all(isinstance(side, Expr) for side in (*gold.args, *answer.args)):
        return False
    if solve(gold, gold.free_symbols):
        return False
    first, second = gold.lhs - gold.rhs, answer.lhs - answer.rhs
    return not _same(first, second) and not _same(first, -second)


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
