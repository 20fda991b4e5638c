import re

import pytest

from lightning_rlvr.tasks.sums import generate, solve


@pytest.mark.parametrize("max_term", [9, 99, 999])
def test_every_step_and_answer_is_true(max_term):
    for record in generate(3, 50, max_term=max_term):
        a, b = map(int, record["problem"].rstrip("=").split("+"))
        assert max(a, b) <= max_term
        assert record["answer"] == str(a + b)
        *steps, last = record["solution"].split(",")
        assert last == rf"\boxed{{{a + b}}}"
        assert all(sum(map(int, terms.split("+"))) == int(total) for terms, total in (s.split("=") for s in steps))


def test_carries_run_through():
    assert solve(999, 1) == r"9+1=10,1+9+0=10,1+9+0=10,\boxed{1000}"
    assert solve(0, 0) == r"0+0=0,\boxed{0}"


def test_lists_are_reproducible_and_free_of_repetitions():
    records = generate(7, 100, max_term=9)
    assert records == generate(7, 100, max_term=9)
    assert len({record["problem"] for record in records}) == 100


def test_near_seeds_share_no_order():
    first, second = ([r["problem"] for r in generate(seed, 200)] for seed in (100, 101))
    aligned = [sum(a == b for a, b in zip(first, second[shift:], strict=False)) for shift in range(-3, 4)]
    assert max(aligned) <= 3
    assert len(set(first) & set(second)) < 30  # chance: 200 * 200 / 10000 = 4


@pytest.mark.parametrize(("count", "max_term", "name"), [(5, 1, "count"), (-1, 9, "count"), (1, -1, "max_term")])
def test_impossible_requests_are_refused(count, max_term, name):
    with pytest.raises(ValueError, match=re.escape(f"`{name}` must")):
        generate(0, count, max_term=max_term)
