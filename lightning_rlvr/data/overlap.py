"""Which texts repeat others or parts of them: keeps training problems clear of benchmarks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

_WORD = re.compile(r"\w+")


def overlapping(texts: Iterable[str], references: Iterable[str], num_words: int, num_sharing: int = 3) -> list[bool]:
    """Whether each text is one of the references, holds one, is part of one, or shares a run of words with one.

    A text and a reference overlap where they are equal, case and white space aside; where one holds all words of the
    other in a row, which are at least ``num_words``; and where they share ``num_words`` successive words. A run that
    ``num_sharing`` or more different references share is a phrase of their genre ("where m and n are relatively prime
    positive integers, find m + n") and alone gives nothing away. Words are runs of letters, digits and underscores, in
    lower case; LaTeX commands are words too.

    Args:
        texts: What may overlap.
        references: What to keep clear of.
        num_words: Length of a shared run.
        num_sharing: Number of references that make a shared run a phrase.

    Example:
        >>> overlapping(["So what is 1 + 1?", "1 - 2", "1  + 2"], ["What is $1 + 1$, then?", "1 + 2"], 4)
        [True, False, True]
    """
    references = list(references)
    wholes = set(map(_squeezed, references))
    holders: dict[str, list[str]] = defaultdict(list)
    for reference in set(map(_words, references)):
        for run in set(_runs(reference, num_words)):
            holders[run].append(reference)

    def overlaps(text: str) -> bool:
        if _squeezed(text) in wholes:
            return True
        words = _words(text)
        found = [holders[run] for run in _runs(words, num_words) if run in holders]
        if any(len(sharing) < num_sharing for sharing in found):
            return True
        return any(words in other or other in words for other in set[str]().union(*found))

    return [overlaps(text) for text in texts]


def _squeezed(text: str) -> str:
    return " ".join(text.lower().split())


def _words(text: str) -> str:
    """The words, each between two spaces, so that a part of them is a part of the string."""
    return f" {' '.join(_WORD.findall(text.lower()))} "


def _runs(words: str, num_words: int) -> Iterator[str]:
    single = words.split()
    return (f" {' '.join(single[start : start + num_words])} " for start in range(len(single) - num_words + 1))
