"""Counter-based random numbers and derived seeds."""

import itertools
import math
import subprocess
import sys

import pytest
import torch

from lightning_rlvr.functional.random import derive_seed, uniform

GOLDEN = 0x9E3779B97F4A7C15


def mix(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def reference(seed, num, stream):
    key = mix((mix(seed % 2**64) + (stream + 1) * GOLDEN) % 2**64)
    return [(mix((key + i * GOLDEN) % 2**64) >> 11) * 2.0**-53 for i in range(1, num + 1)]


def test_the_reference_is_splitmix64():
    # first outputs of splitmix64 seeded with 1234567, as published with the generator
    assert [mix((1234567 + i * GOLDEN) % 2**64) for i in (1, 2)] == [
        6457827717110365317,
        3203168211198807973,
    ]


@pytest.mark.parametrize("stream", [0, 1, -1, 10**6])
def test_uniform_equals_arithmetic_on_unbounded_integers(stream):
    seeds = [0, 1, 7, -1, -5, 2**63 - 1, -(2**63)]
    assert uniform(torch.tensor(seeds), 6, stream).tolist() == [reference(seed, 6, stream) for seed in seeds]


def test_uniform_is_pinned():
    expected = [[0.7357850102200573, 0.9287106893448809, 0.5482279005034024]]
    assert uniform(torch.tensor([7]), 3).tolist() == expected


def test_uniform_numbers_depend_on_row_and_counter_alone():
    seeds = torch.arange(20)
    numbers = uniform(seeds, 9)
    assert torch.equal(uniform(seeds.flip(0), 9), numbers.flip(0))
    assert torch.equal(uniform(seeds[3:4], 4), numbers[3:4, :4])


def test_uniform_has_the_moments_and_bins_of_the_uniform_law():
    numbers = uniform(torch.arange(100), 1000)
    n = numbers.numel()
    assert numbers.min() >= 0
    assert numbers.max() < 1
    # five standard errors: sd(x) = 1/sqrt(12), sd(x^2) = sqrt(1/5 - 1/9)
    assert abs(numbers.mean() - 1 / 2) < 5 * math.sqrt(1 / 12 / n)
    assert abs(numbers.square().mean() - 1 / 3) < 5 * math.sqrt((1 / 5 - 1 / 9) / n)
    counts = torch.histc(numbers.float(), bins=64, min=0, max=1)
    chi_square = ((counts - n / 64) ** 2 / (n / 64)).sum()
    assert chi_square < 63 + 5 * math.sqrt(2 * 63)


@pytest.mark.parametrize(
    "pair",
    [
        lambda x: (x[:-1], x[1:]),  # adjacent seeds
        lambda x: (x[:, :-1], x[:, 1:]),  # adjacent counters
        lambda x: (x[:-1, 1:], x[1:, :-1]),  # seed + 1 against counter + 1: no shared sequence
        lambda x: (x, uniform(torch.arange(100), 400, stream=1)),  # adjacent streams
    ],
    ids=["seeds", "counters", "diagonal", "streams"],
)
def test_neighbours_are_independent(pair):
    a, b = (x.flatten() - 0.5 for x in pair(uniform(torch.arange(100), 400)))
    correlation = 12 * (a * b).mean()
    assert abs(correlation) < 5 / math.sqrt(len(a))


def test_samples_and_steps_have_seeds_of_their_own_and_a_repeated_run_has_the_same():
    steps = [[derive_seed(7, step, "problem 3", sample) for sample in range(4)] for step in (10, 11)]
    assert len(set(itertools.chain(*steps))) == 8
    assert steps == [[derive_seed(7, step, "problem 3", sample) for sample in range(4)] for step in (10, 11)]
    assert all(0 <= seed < 2**63 for seed in itertools.chain(*steps))


def test_derived_seeds_tell_parts_apart():
    keys = [(1, 23), (12, 3), ("1", 23), ("12", "3"), ("1,23",), (1, "23"), (), ("",), (-1, 23)]
    assert len({derive_seed(*parts) for parts in keys}) == len(keys)


def test_derived_seeds_are_the_same_in_another_process():
    code = "from lightning_rlvr.functional.random import derive_seed; print(derive_seed(7, 'problem 3', 0))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(other.stdout) == derive_seed(7, "problem 3", 0) == 5251988111690877334


def test_parts_of_a_seed_are_integers_and_strings():
    with pytest.raises(TypeError, match=r"`parts` must be integers and strings, got \(1\.5,\)"):
        derive_seed(1.5)
