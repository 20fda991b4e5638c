"""How people and models write mathematics, in spellings that math-verify reads as meant."""

from __future__ import annotations

import re

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
        "\N{EMPTY SET}": r"\emptyset ",
        "\N{EURO SIGN}": " ",
        "\N{VULGAR FRACTION ONE HALF}": r"\frac{1}{2}",
        "\N{VULGAR FRACTION ONE QUARTER}": r"\frac{1}{4}",
        "\N{VULGAR FRACTION THREE QUARTERS}": r"\frac{3}{4}",
        "\N{SUPERSCRIPT TWO}": "^2",
        "\N{SUPERSCRIPT THREE}": "^3",
    }
)
TEXT = r"\\(?:text(?:rm|bf|it)?|mathrm|mbox)\s*\{"
"""Where words begin."""
_NAMES = {
    "langle": "(", "rangle": ")", "lbrace": r"\\{", "rbrace": r"\\}", "varnothing": r"\\emptyset ",
    "degree": r"^\\circ ",
}  # fmt: skip
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SPELLINGS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        *((rf"\\{name}(?![a-zA-Z])", meaning) for name, meaning in _NAMES.items()),
        # delimiters of mathematics, which also stand between parts; the dollar as a unit; sizes of brackets; colours
        (r"(?<!\\)\\?\$|(?<!\\)\\[()\[\]]", " "),
        (r"\\[bB]igg?[lrm]?(?![a-zA-Z])", ""),
        (r"\\(?:text)?color\s*\{[^{}]*\}|\\underline(?![a-zA-Z])|\\[hv]?phantom\s*\{[^{}]*\}", ""),
        # one number each, read as several or not at all: 12\,500, 12\ 500 and 12{,}500; 6. and -3./2; 2 3/4; 4.5e33;
        # 1.5 x 10^8; 5 million
        (r"(?<=\d)(?:\{,\}|,?\\[,!]|\\ (?!\d+/))\s*(?=\d{3}(?!\d))", ""),
        (r"\\q?quad(?![a-zA-Z])|(?<!\\)\\[ ;:]|~", " "),
        (r"(?<=\d)\.(?=\s*(?:[-+*/^,;)}]|$))", ""),
        (r"(?<![\w./^])(\d+)\s+(\d+)/(\d+)(?![\d./])", r"\1\\frac{\2}{\3}"),
        (r"(?<![\w\\.])(\d+\.?\d*|\.\d+)[eE]([-+]?\d+)(?![\w.])", r"\1 \\cdot 10^{\2}"),
        (r"(?<=\d)\s*[xX]\s*(?=10\s*\^)", r"\\times "),
        *(
            (rf"(?<=[\d}}])((?:\\,|\s)*(?:{TEXT})?\s*){scale}s?(?![a-zA-Z])", rf" \\cdot {number}\1")
            for scale, number in _SCALES.items()
        ),
        # constants and functions that are taken for words: an upright e or i; pi, sqrt(3) and np.sin without backslash
        (r"\\(?:mathrm|text|textrm)\{([ei])\}", r"\1"),
        (r"\\?sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(?<![\\a-zA-Z])(?:np\.|math\.)?(pi|sqrt|(?:arc)?(?:sin|cos|tan)h?|ln|log|exp)(?![a-zA-Z])", r"\\\1"),
        # what the parser gives up on: an index and no braces; a name below that is an operator elsewhere; and primes,
        # which it does not see
        (r"(\\sqrt\[[^\]]*\])\s*(\w)", r"\1{\2}"),
        (r"_\{?\\(max|min|odot|oplus)(?![a-zA-Z])\s*\}?", r"_{\1}"),
        (r"(?<=[a-zA-Z])''(?!['a-zA-Z])", "_{pp}"),
        (r"(?<=[a-zA-Z])'(?!['a-zA-Z])", "_{p}"),
        # intervals as ]0, 1[ and as {x : 0 < x < 1}
        (r"^(\s*(?:\\left\s*)?)\](?=[^\[\]]*[\[\])]\s*$)", r"\1("),
        (r"^(\s*(?:\\left\s*)?[\[(][^\[\]]*)\[\s*$", r"\1)"),
        (
            r"^\s*(?:\\left)?\\\{\s*[a-zA-Z]\s*(?::|\||\\mid(?![a-zA-Z]))([^{},;]*[<>\\][^{},;]*?)(?:\\right\s*)?\\\}\s*$",
            r"\1",
        ),
        # words around the answer: Markdown; a sentence; what a text joins or measures, and how; the variable of an
        # interval; the brackets of a choice
        (r"(?s)^\s*(\*\*|`)(.*?)\1\s*$", r"\2"),
        (rf"(?i)^(\s*(?:{TEXT})?\s*)the (?:final )?answer is\b:?", r"\1"),
        (rf"({TEXT}[^{{}}]*?)\b(and|or)\b(?=[^{{}}]*\}})", r"\1}\\text{\2}\\text{"),
        (rf"{TEXT}\s*(-?\d[\d.,:/]*)\s*([a-zA-Z][^{{}}]*)?\}}", r"\1\\text{\2}"),
        (rf"{TEXT}\s*,?\s*\}}", " "),
        (r"\bsq(?:uare|\.)?\s+([a-zA-Z]+)", r"\1^2"),
        (r"\bcu(?:bic|\.)?\s+([a-zA-Z]+)", r"\1^3"),
        (r"\s+per\s+", "/"),
        (r"\bmph\b", "mi/h"),
        (rf"\s*(?:{TEXT}\s*percent\s*\}}|(?<![a-zA-Z])percent(?![a-zA-Z]))", r"\\%"),
        (r"^\s*[a-zA-Z]\s*(?:\\in(?![a-zA-Z])|(?=\([^()\[\]]*\]\s*$|\[[^()\[\]]*\)\s*$))", ""),
        (r"^\s*(?:\\(?:text|mathrm|textbf|mathbf)\{)?\s*\(([A-Za-z])\)\s*\}?\s*$", r"\1"),
    )
)
"""Spellings that math-verify misreads, and what it reads as meant."""
_REPEATING = re.compile(r"(\d{0,99})\.(\d{0,99})\\(?:overline|bar)\s*\{(\d{1,99})\}")


def tidy(text: str) -> str:
    r"""An answer in spellings that math-verify reads as meant.

    Example:
        >>> tidy(r"$12\,500$."), tidy("2 3/4"), tidy(r"0.1\overline{6}"), tidy("5 million")
        ('12500', '2\\frac{3}{4}', '\\frac{15}{90}', '5 \\cdot 1000000')
    """
    text = _REPEATING.sub(_fraction, text.translate(_SYMBOLS))
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    return text.strip().rstrip(".").rstrip()


def _fraction(repeating: re.Match[str]) -> str:
    r"""``0.1\overline{6}`` is 15/90."""
    whole, decimals, period = repeating.groups()
    difference = int(whole + decimals + period) - int(f"0{whole}{decimals}")
    return rf"\frac{{{difference}}}{{{(10 ** len(period) - 1) * 10 ** len(decimals)}}}"
