"""Which texts repeat parts of others: keeps training problems clear of benchmarks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

_WORD = re.compile(r"\w+")


def overlapping(texts: Iterable[str], references: Iterable[str], num_words: int) -> list[bool]:
    """Whether each text shares ``num_words`` successive words with any of the references.

    Words are runs of letters, digits and underscores, in lower case; LaTeX commands are words too. A text of fewer
    words overlaps where it equals a reference as a whole, case and white space aside. A run that three or more
    different references share is a phrase of their genre ("where m and n are relatively prime positive integers, find
    m + n") and gives nothing away.

    Args:
        texts: What may overlap.
        references: What to keep clear of.
        num_words: Length of the shared run.

    Example:
        >>> overlapping(["So what is 1 + 1?", "1 - 2", "1  + 2"], ["What is $1 + 1$, then?", "1 + 2"], 4)
        [True, False, True]
    """
    different = {tuple(_runs(text, num_words)) for text in references}
    shared_by = Counter(run for runs in different for run in set(runs))
    known = {run for run, number in shared_by.items() if number < 3}
    return [not known.isdisjoint(_runs(text, num_words)) for text in texts]


def _runs(text: str, num_words: int) -> Iterator[tuple[str, ...]]:
    words = _WORD.findall(text.lower())
    if len(words) < num_words:
        return iter([(" ".join(text.lower().split()),)])
    return zip(*(words[start:] for start in range(num_words)), strict=False)
