from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_rlvr.verify.base import VERIFIERS, Attempt
from lightning_rlvr.verify.overlong import OverlongVerifier, soft_overlong_punishment


def verdict(length, buffer=4, budget=20):
    attempt = Attempt(
        prompt="", completion="", completion_ids=(7,) * length, truncated=False, columns={},
        max_completion_length=budget,
    )  # fmt: skip
    return OverlongVerifier(buffer).verify([attempt])[0]


def test_registered():
    assert VERIFIERS["overlong"] is OverlongVerifier


def test_punishment_is_that_of_the_paper():
    # L_max = 20480, L_cache = 4096: ((20480 - 4096) - 17408) / 4096 = -1024 / 4096
    rewards = [soft_overlong_punishment(length, 20480, 4096) for length in (1, 16384, 17408, 20480, 20481)]
    assert rewards == [0.0, 0.0, -0.25, -1.0, -1.0]


@given(st.integers(1, 50), st.integers(1, 50))
def test_punishment_never_grows_with_length_and_is_linear_in_the_buffer(budget, buffer):
    buffer = min(budget, buffer)
    rewards = [soft_overlong_punishment(length, budget, buffer) for length in range(budget + 5)]
    steps = [before - after for before, after in pairwise(rewards)]
    assert rewards[0] == rewards[budget - buffer] == 0
    assert rewards[budget:] == [-1.0] * 5
    assert steps[budget - buffer : budget] == pytest.approx([1 / buffer] * buffer)


def test_buffer_may_be_a_share_of_the_budget():
    assert [verdict(17, buffer=share).reward for share in (0.2, 4, 4.0)] == [-0.25] * 3
    assert [verdict(length, buffer=0.01).reward for length in (19, 20)] == [0.0, -1.0], "1 token at least"


def test_every_attempt_is_judged_by_its_own_budget():
    assert [verdict(17, 0.2, budget).reward for budget in (20, 40, 17)] == [-0.25, 0.0, -1.0]


def test_no_punishment_counts_as_correct():
    assert [(verdict(n).status, verdict(n).reward) for n in (16, 17, 20, 30)] == [
        ("correct", 0.0), ("wrong", -0.25), ("wrong", -1.0), ("wrong", -1.0),
    ]  # fmt: skip
    assert str(verdict(3).reward) == "0.0", "no minus zero in logs"


def test_without_token_ids_or_budget_there_is_no_score():
    assert (verdict(0).status, verdict(0).reason) == ("error", "no token ids to count")
    unknown = verdict(3, budget=None)
    assert (unknown.status, unknown.reason) == ("error", "the budget, `max_completion_length`, is not known")


@pytest.mark.parametrize("buffer", [True, 0, -0.5, 2.5, float("inf"), float("nan")])
def test_bad_settings_are_refused(buffer):
    with pytest.raises(ValueError, match=f"`buffer` must be a share below 1 or a whole number .*, got {buffer}"):
        OverlongVerifier(buffer)


def test_a_buffer_beyond_the_budget_is_refused():
    assert verdict(1, buffer=20).reward == -0.05
    with pytest.raises(ValueError, match="`buffer` must be at most the 20 tokens of `max_completion_length`, got 21"):
        verdict(1, buffer=21)


def test_its_name_is_all_it_needs():
    assert VERIFIERS.build("overlong").buffer == 0.2
