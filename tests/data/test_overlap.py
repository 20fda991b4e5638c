import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_rlvr.data.overlap import overlapping

TEXTS = st.lists(st.lists(st.sampled_from(["a", "B", "1", "-"]), max_size=6).map(" ".join), max_size=6)


def expected(text, references, num_words, num_sharing):
    """Word by word, in loops."""

    def words(one):
        return re.findall(r"\w+", one.lower())

    def holds(longer, shorter):
        starts = range(len(longer) - len(shorter) + 1)
        return len(shorter) >= num_words and any(longer[i : i + len(shorter)] == shorter for i in starts)

    own, different = words(text), [list(one) for one in {tuple(words(one)) for one in references}]
    runs = [own[i : i + num_words] for i in range(len(own) - num_words + 1)]
    return (
        any(text.lower().split() == one.lower().split() for one in references)
        or any(holds(own, one) or holds(one, own) for one in different)
        or any(0 < sum(holds(one, run) for one in different) < num_sharing for run in runs)
    )


@given(texts=TEXTS, references=TEXTS, num_words=st.integers(1, 5), num_sharing=st.integers(1, 4))
def test_overlap_is_what_a_loop_over_all_pairs_finds(texts, references, num_words, num_sharing):
    found = [expected(text, references, num_words, num_sharing) for text in texts]
    assert overlapping(texts, references, num_words, num_sharing) == found


@given(references=TEXTS, num_words=st.integers(1, 5), num_sharing=st.integers(1, 4))
def test_a_copy_overlaps_whatever_else_the_references_hold(references, num_words, num_sharing):
    assert all(overlapping(references, references, num_words, num_sharing))


PROBLEM = "Find the number of ordered pairs (a, b) of integers such that a + b is prime and a - b is a square."


@pytest.mark.parametrize("text", [PROBLEM, PROBLEM.upper(), f"Question: {PROBLEM} Explain.", PROBLEM[:-13]])
def test_a_problem_that_several_benchmarks_hold_is_no_phrase(text):
    references = [PROBLEM, PROBLEM + " Answer as an integer.", "Problem 3. " + PROBLEM]
    assert overlapping([text], references, 13) == [True]


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
    assert overlapping(["1 + 1 = ?"], ["1 + 1 + 1 + 1 = 4"], 2) == [True], "and so are repetitions within one"


def test_a_training_set_is_compared_with_a_suite():
    texts = [" ".join(f"w{(i * 31 + j * j) % 997}" for j in range(60)) for i in range(4000)]
    assert sum(overlapping(texts, texts[:400], 13)) >= 400
