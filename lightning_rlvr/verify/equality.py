"""Equality of two written answers: math-verify behind a layer of general rules; runs in worker processes."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, reduce
from itertools import accumulate, chain
from typing import Any

from lightning_rlvr.verify.spelling import TEXT, tidy

_Same = Callable[[str, str], bool]
_List = tuple[str, list[str]]

_MAX_LENGTH = 2000
"""Characters of an answer that are worth reading, if its gold is not long itself."""
_MAX_DEPTH = 20
"""Nested brackets, beyond which the parser takes exponential time."""
_TINY = 1e-3
"""Below this size math-verify's rounding to 6 decimals is too coarse, and values are compared relatively."""

_WHERE, _WORDY_WHERE = (
    re.compile(rf"(?s)(?:,|\\text\s*\{{|\s)*(?<![a-zA-Z\\])where(?![a-zA-Z]){rest}") for rest in (".*", r"\D*$")
)
"""What the letters mean; where a number follows, it may be a second answer."""

_TOKEN = re.compile(
    rf"(?P<separator>[,;]|{TEXT}\s*,?\s*(?:and|or)\s*\}}|(?<![\\a-zA-Z])(?:and|or)(?![a-zA-Z]))"
    r"|(?P<open>[(\[{]|\\\{|\\begin(?![a-zA-Z]))|(?P<close>[)\]}]|\\\}|\\end(?![a-zA-Z]))|(?P<colon>:)|\\."
    r"|(?<![\d.,])[1-9]\d{0,2}(?P<thousands>(?:,\d{3})+)(?![\d,])",
    re.DOTALL,
)
_GROUP = re.compile(r"(?:\\left\s*)?(\(|\[|\\\{)(.*?)(?:\\right\s*)?(\)|\]|\\\})", re.DOTALL)
_NAMED = re.compile(r"(\\?[a-zA-Z]+(?:_\{?\w+\}?)?(?:\([a-z]\))?)\s*=")
_NAMED_TUPLE = re.compile(r"((?:\\left\s*)?\([^()=]*\))\s*=\s*((?:\\left\s*)?\(.*\))", re.DOTALL)
_INTEGER = re.compile(r"-?[0-9]{1,1000}")
_BASED = re.compile(r"\(?(\d[\dA-F]{0,999})\)?_\{?\s*([1-9]\d?)\s*\}?")
_PHRASE = re.compile(rf"(?:{TEXT})?\s*([a-zA-Z]+(?:[ '-][a-zA-Z]+)*)\s*\}}?")
_WORD = re.compile(
    r"\b(?!(?:arc)?(?:sin|cos|tan|cot|sec|csc|log|ln|exp)h?[a-z]?\b)(?:[a-zA-Z]{4,}|[A-Z]{2,}|[Yy]es|[Nn]o)\b"
)
_UNIT = re.compile(
    rf"(.*(?:[\d)}}\]]|\\pi))(?:\\,|\s)*((?:{TEXT}\s*[a-zA-Z][^{{}}]*\}}"
    r"|(?<=\s)(?:[a-zA-Z]{3,}(?:[\s/]+[a-zA-Z.]+)*|(?:[kcm]?m|k?g|ft|mi)/(?:s|h|hr|min|m?l)"
    r"|[kcm]?m|[km]?g|[cm]?l|s|h|ft|in|yd|mi|lb|oz|hr|am|pm))\s*(?:\^\s*\{?\s*\d\s*\}?)?)",
    re.DOTALL,
)
_SHORT_UNITS = {
    short + unit: long + name  # as far as the spellings agree: metre and meter
    for short, long in (("", ""), ("k", "kilo"), ("c", "centi"), ("m", "milli"))
    for unit, name in (("m", "metr"), ("g", "gram"), ("l", "litr"), ("s", "sec"), ("h", "hr"))
}
_PERCENT = re.compile(r"\s*\\?%\s*$")


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
        ValueError: The gold is empty, or its brackets do not match.

    Example:
        >>> compare(Comparison(gold=r"\frac{1}{2}, 3", answer="3, 0.5"))
        Ruling(equal=True, reason='equal as mathematics')
        >>> compare(Comparison(gold="1/3", answer="0.333", atol=1e-6))
        Ruling(equal=False, reason='0.333 is not within 1e-06 of 1/3')
    """
    limit = max(_MAX_LENGTH, 4 * len(item.gold))  # long matrices and lists are as long in the gold
    if len(item.answer) > limit:
        return Ruling(equal=False, reason=f"answer longer than {limit} characters")
    gold, answer = (re.sub(r"\s+", " ", text) for text in (item.gold, item.answer))
    clause = _WHERE if _WHERE.search(gold) else _WORDY_WHERE
    gold, answer = tidy(_WHERE.sub("", gold)), tidy(clause.sub("", answer))
    golds, answers = ([] if _tangled(text) else _leaves(text) for text in (gold, answer))
    if not golds or (not re.search(r"\w", gold) and _parse(gold) is None):
        raise ValueError("it is empty, or its brackets do not match")
    if not answers:
        return Ruling(equal=False, reason="answer does not parse")
    words = [leaf for leaf in golds + answers if _number(leaf) is None] if item.atol is not None else []
    if item.numbers and words:
        return Ruling(equal=False, reason=f"{_short(words[0])} is not a number")
    if item.atol is None or words:
        equal = _agree(gold, answer, lambda one, other: _same(_parse(one), _parse(other)))
        kind = "text" if None in map(_parse, golds) else "mathematics"
        if not equal and kind == "mathematics" and None in map(_parse, answers):
            return Ruling(equal=False, reason="answer does not parse")
        return Ruling(equal=equal, reason=f"{'' if equal else 'not '}equal as {kind}")
    bound = item.atol, item.rtol
    equal = _agree(gold, answer, lambda one, other: _within(_number(one), _number(other), *bound))
    allowed = f"{item.atol:g}" + (f" + {item.rtol:g} of its size" if item.rtol else "")
    claim = f"{'' if equal else 'not '}within {allowed} of {_short(item.gold)}"
    return Ruling(equal=equal, reason=f"{_short(item.answer)} is {claim}")


def _tangled(text: str) -> bool:
    """Brackets that do not match or are nested so deep that the parser would search for ages."""
    depths = list(accumulate(bool(token["open"]) - bool(token["close"]) for token in _TOKEN.finditer(text)))
    return bool(depths) and (depths[-1] != 0 or min(depths) < 0 or max(depths) > _MAX_DEPTH)


def _split(text: str, *, fused: bool = True) -> _List:
    r"""The brackets around a list (none, ``()``, ``[)``, ``\{\}``, ...) and its parts; what is no list is one part.

    Without brackets, thousands commas are dropped if ``fused``, each plus-minus gives both its signs, and values of
    different names come in the order of the names, with ``=`` for brackets.
    """
    if pair := _NAMED_TUPLE.fullmatch(text):
        (_, names), (brackets, values) = map(_split, pair.groups())
        if len(names) == len(values) > 1:
            return brackets, [f"{name}={value}" for name, value in zip(names, values, strict=True)]
    group = _GROUP.fullmatch(text)
    inside = _pieces(group[2], "separator", "thousands") if group else []
    if group and len(inside) > 1:
        return group[1] + group[3], inside
    parts = _pieces(text, "separator", "" if fused else "thousands") or [text]
    signed = ((part.replace(r"\pm", "+"), part.replace(r"\pm", "-")) if r"\pm" in part else (part,) for part in parts)
    parts = list(chain.from_iterable(signed))
    return ("=", sorted(parts)) if _named(parts) else ("", parts)


def _named(parts: list[str]) -> bool:
    """Whether each part gives a value to a name of its own."""
    return len({name[1] for part in parts if (name := _NAMED.match(part))}) == len(parts) > 1


def _pieces(text: str, *at: str) -> list[str]:
    """What stands between tokens ``at`` outside all brackets, thousands fused; nothing if brackets do not match."""
    pieces, depth, start = [""], 0, 0
    for token in _TOKEN.finditer(text):
        depth += bool(token["open"]) - bool(token["close"])
        if depth < 0:
            return []
        if depth == 0 and (token.lastgroup in at or token["thousands"]):
            first, *others = token.group().split(",") if token["thousands"] else ["", ""]
            pieces[-1] += text[start : token.start()] + first
            if token.lastgroup in at:
                pieces += others
            else:
                pieces[-1] += "".join(others)
            start = token.end()
    pieces[-1] += text[start:]
    return [piece.strip() for piece in pieces if piece.strip()] if depth == 0 else []


def _leaves(text: str) -> list[str]:
    brackets, parts = _split(text)
    if brackets or len(parts) > 1:
        return list(chain.from_iterable(map(_leaves, parts)))
    return [_measure(part)[0] for part in parts if part]


def _agree(gold: str, answer: str, same: _Same) -> bool:
    """As wholes if one is no list; as lists, if need be with commas between the parts of one that may be thousands."""
    if gold == answer:
        return True
    (kind, golds), (other_kind, answers) = fused = _split(gold), _split(answer)
    repeated = kind == other_kind == r"\{\}" and len(golds) != len(answers)  # an element may be named twice in a set
    if repeated or 1 in (len(golds), len(answers)):
        one, other = (parts[0] if len(parts) == 1 else text for text, parts in ((gold, golds), (answer, answers)))
        if _agree_as_wholes(one, other, same):
            return True
    readings = [fused, (_split(gold, fused=False), fused[1]), (fused[0], _split(answer, fused=False))]
    return any(_agree_as_lists(*reading, same) for reading in readings)


def _agree_as_lists(gold: _List, answer: _List, same: _Same) -> bool:
    """By name, or in order in round or square brackets and where dots go on, or in any order."""
    (kind, golds), (other_kind, answers) = gold, answer
    clash = kind != other_kind and not {kind, other_kind} & {"", "="}
    if clash or not len(golds) == len(answers) > 1:
        return False
    if _named(golds) and _named(answers):
        golds, answers = sorted(golds), sorted(answers)
    elif {kind, other_kind} <= {"", r"\{\}"} and "dots" not in "".join(golds):
        return _match(golds, answers, same)
    return all(_agree(*pair, same) for pair in zip(golds, answers, strict=True))


def _match(golds: list[str], answers: list[str], same: _Same) -> bool:
    """Whether the parts pair up, each with one that it agrees with.

    Found by augmenting paths, because agreement is not transitive (within a tolerance; with and without unit): the
    first partner that fits may be the only one that fits another.
    """
    agree = cache(lambda gold, answer: _agree(gold, answer, same))
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


def _agree_as_wholes(gold: str, answer: str, same: _Same) -> bool:
    """Part by part between colons; words and what does not parse letter by letter; else as quantities."""
    times, others = (_pieces(text, "colon") for text in (gold, answer))
    if min(len(times), len(others)) > 1:  # 12:30 is not 24:60, nor 1:2:3 the ratio 1:6
        return len(times) == len(others) and all(_agree(*pair, same) for pair in zip(times, others, strict=True))
    phrases = _PHRASE.fullmatch(gold), _PHRASE.fullmatch(answer)
    if all(phrases) and any(_WORD.search(phrase[1]) for phrase in phrases if phrase):  # not products of letters
        return len({phrase[1].casefold() for phrase in phrases if phrase}) == 1
    (quantity, unit), (other_quantity, other_unit) = _measure(gold), _measure(answer)
    if _parse(quantity) is None:
        gold, answer = (re.sub(r"\\(?:left|right)(?![a-zA-Z])|\s", "", text) for text in (gold, answer))
        return gold == answer
    if not _like_units(unit, other_unit):
        return False
    based = _BASED.fullmatch(quantity)
    only_gold = based and not _BASED.fullmatch(other_quantity)  # its digits count, as numbers do without their units
    pairs = _readings(based[1] if based and only_gold else _value(quantity), _value(other_quantity))
    if unit != other_unit:  # 3 xyz may be a product
        pairs.append((gold, answer))
    return any(same(*pair) for pair in pairs)


def _value(text: str) -> str:
    """Digits with a base as the number that they are."""
    based = _BASED.fullmatch(text)
    return str(reduce(lambda value, digit: value * int(based[2]) + int(digit, 36), based[1], 0)) if based else text


def _measure(text: str) -> tuple[str, str]:
    """A quantity and its unit, if any."""
    measured = _UNIT.fullmatch(text)
    return (measured[1], re.sub(rf"{TEXT}|[\s{{}}]", "", measured[2]).lower()) if measured else (text, "")


def _like_units(unit: str, other: str) -> bool:
    """Whether each part of one is short for that of the other; one may be missing or just `units`."""
    units, others = unit.split("/"), other.split("/")
    missing = not unit or not other or "unit" in (unit[:4], other[:4])
    return missing or (len(units) == len(others) and all(map(_abbreviates, units, others)))


def _abbreviates(unit: str, other: str) -> bool:
    """Whether one has the initial and at least one more letter of the other, in order; plural does not count."""
    (name, _, power), (other_name, _, other_power) = unit.partition("^"), other.partition("^")
    names = (_SHORT_UNITS.get(one, re.sub(r"(?<=\w\w)s$", "", one)) for one in (name, other_name))
    short, long = sorted(names, key=len)
    letters = iter(long)
    within = len(short) > 1 and short[0] == long[0] and all(letter in letters for letter in short)
    scales = [re.match("milli|centi|kilo|", name) for name in (short, long)]  # a metre is no millimetre
    alike = len({scale and scale[0] for scale in scales}) == 1
    return power == other_power and (short == long or (within and alike))


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
    from sympy import Eq, Ne, Rel

    if gold is None or answer is None or _far(gold, answer):
        return False
    if {type(gold), type(answer)} > {Ne} and isinstance(gold, Rel) and isinstance(answer, Rel):
        return False  # math-verify knows nothing of inequations
    if isinstance(gold, Ne) and isinstance(answer, Ne):
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
