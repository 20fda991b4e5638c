import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lightning_rlvr.functional.groups import (
    group_count,
    group_max,
    group_mean,
    group_min,
    group_ranks,
    group_std,
    group_sum,
    is_constant_group,
)

NAN = math.nan
ROWS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0, -3.0, NAN]), st.sampled_from([0, 5, 10**12])), max_size=12
)


def columns(rows):
    values = torch.tensor([value for value, _ in rows], dtype=torch.float64)
    return values, torch.tensor([group for _, group in rows], dtype=torch.int64)


@settings(max_examples=60, deadline=None)
@given(ROWS)
@example([(NAN, 0), (1.0, 5)])
@example([])
def test_vectorized_statistics_equal_a_loop_over_rows(rows):
    values, groups = columns(rows)
    less, less_or_equal = group_ranks(values, groups)
    for i, (value, group) in enumerate(rows):
        members = [v for v, g in rows if g == group and not math.isnan(v)]
        n = len(members)
        assert group_count(values, groups)[i] == n
        assert group_sum(values, groups)[i] == pytest.approx(sum(members))
        assert group_max(values, groups)[i] == max(members, default=-math.inf)
        assert group_min(values, groups)[i] == min(members, default=math.inf)
        mean = sum(members) / n if n else NAN
        assert group_mean(values, groups)[i].item() == pytest.approx(mean, nan_ok=True)
        for ddof in (0, 1):
            std = math.sqrt(sum((v - mean) ** 2 for v in members) / (n - ddof)) if n > ddof else NAN
            assert group_std(values, groups, ddof)[i].item() == pytest.approx(std, nan_ok=True)
        assert is_constant_group(values, groups)[i].item() is (len(set(members)) < 2)
        assert less[i] == (0 if math.isnan(value) else sum(v < value for v in members))
        assert less_or_equal[i] == (0 if math.isnan(value) else sum(v <= value for v in members))


def test_interleaved_rows_are_grouped_by_number_and_not_by_position():
    assert group_mean(torch.tensor([1.0, 0.0, 3.0, 4.0]), torch.tensor([9, 2, 9, 2])).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("n", [3, 7, 11])
def test_rounded_equal_rewards_are_a_constant_group(n):
    rewards = torch.full((n,), 0.7) + 6e-8 * torch.arange(n)  # some neighbours differ by one float32 unit
    assert rewards.max() > rewards.min()
    assert is_constant_group(rewards, torch.zeros(n, dtype=torch.int64)).all()


def test_tolerance_of_constant_groups_grows_with_the_rewards_only_above_one():
    groups = torch.zeros(2, dtype=torch.int64)
    assert is_constant_group(torch.tensor([1e6, 1e6 + 0.9], dtype=torch.float64), groups).all()
    assert not is_constant_group(torch.tensor([1e6, 1e6 + 1.1], dtype=torch.float64), groups).any()
    assert is_constant_group(torch.tensor([0.0, 0.9e-6]), groups).all()
    assert not is_constant_group(torch.tensor([0.0, 1.1e-6]), groups).any()


def test_statistics_keep_dtype_and_leave_their_input_alone():
    values, groups = torch.tensor([1.0, NAN]), torch.tensor([0, 0])
    before = values.clone()
    assert group_mean(values, groups).dtype == torch.float32
    assert group_count(values, groups).dtype == torch.int64
    group_max(values, groups)
    group_ranks(values, groups)
    assert values.equal(before) or torch.equal(values.nan_to_num(7), before.nan_to_num(7))
