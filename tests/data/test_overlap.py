import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_rlvr.data.overlap import overlapping

TEXTS = st.lists(st.lists(st.sampled_from(["a", "B", "1"]), max_size=6).map(" ".join), max_size=4)


def overlap(text, reference, num_words):
    """Word by word, in loops."""
    ours, theirs = (re.findall(r"\w+", one.lower()) for one in (text, reference))
    if len(ours) < num_words or len(theirs) < num_words:
        return len(ours) < num_words and len(theirs) < num_words and text.lower().split() == reference.lower().split()
    for i in range(len(ours) - num_words + 1):
        for j in range(len(theirs) - num_words + 1):
            if ours[i : i + num_words] == theirs[j : j + num_words]:
                return True
    return False


@given(texts=TEXTS, references=TEXTS.map(lambda texts: texts[:2]), num_words=st.integers(1, 5))
def test_overlap_is_what_a_loop_over_all_pairs_finds(texts, references, num_words):
    expected = [any(overlap(text, reference, num_words) for reference in references) for text in texts]
    assert overlapping(texts, references, num_words) == expected


@pytest.mark.parametrize(
    ("text", "shared"),
    [
        ("Find the SUM of all $x$ with\n$\\frac{x}{2}$ prime.", True),  # case, line ends and dollar signs are no words
        ("first, find the sum of all x with frac x 2 prime!", True),
        ("find the sum of all x with frac y 2 prime", False),
        ("find the sum of all", False),  # shorter than the run, and no whole problem
        ("1 + 2", True),
        (" 1  +\t2", True),
        ("1 - 2", False),  # a short problem is its signs too
        ("", False),
    ],
)
def test_words_are_compared_and_short_texts_as_a_whole(text, shared):
    references = [r"Find the sum of all $x$ with $\frac{x}{2}$ prime.", "1 + 2"]
    assert overlapping([text], references, 10) == [shared]


def test_a_phrase_of_the_genre_gives_nothing_away():
    asked = "can be written as m/n where m and n are relatively prime positive integers. Find m + n."
    problems = [f"The area of {shape} {asked}" for shape in ("a disc", "the red triangle", "that square")]
    text = f"The mean number of tosses {asked}"
    assert overlapping([text, problems[1]], problems[:2], 13) == [True, True]
    assert overlapping([text, problems[1]], problems, 13) == [False, True]
    assert overlapping([text], [problems[0]] * 3 + [problems[1]], 13) == [True], "copies are one problem"


def test_a_training_set_is_compared_with_a_suite():
    texts = [" ".join(f"w{(i * 31 + j * j) % 997}" for j in range(60)) for i in range(4000)]
    assert sum(overlapping(texts, texts[:400], 13)) >= 400
