from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_rlvr.verify.base import VERIFIERS, Attempt
from lightning_rlvr.verify.overlong import OverlongVerifier, soft_overlong_punishment


def verdict(length, **settings):
    attempt = Attempt(prompt="", completion="", completion_ids=(7,) * length, truncated=False, columns={})
    return OverlongVerifier(**({"max_completion_length": 20, "buffer": 4} | settings)).verify([attempt])[0]


def test_registered():
    assert VERIFIERS["overlong"] is OverlongVerifier


def test_punishment_is_that_of_the_paper():
    # L_max = 20480, L_cache = 4096: ((20480 - 4096) - 17408) / 4096 = -1024 / 4096
    assert soft_overlong_punishment([1, 16384, 17408, 20480, 20481], 20480, 4096) == [0.0, 0.0, -0.25, -1.0, -1.0]


@given(st.integers(1, 50), st.integers(1, 50))
def test_punishment_never_grows_with_length_and_is_linear_in_the_buffer(budget, buffer):
    buffer = min(budget, buffer)
    rewards = soft_overlong_punishment(range(budget + 5), budget, buffer)
    steps = [before - after for before, after in pairwise(rewards)]
    assert rewards[0] == rewards[budget - buffer] == 0
    assert rewards[budget:] == [-1.0] * 5
    assert steps[budget - buffer : budget] == pytest.approx([1 / buffer] * buffer)


def test_buffer_may_be_a_share_of_the_budget():
    assert OverlongVerifier(20480).buffer == 4096
    assert [verdict(17, buffer=share).reward for share in (0.2, 4, 0.01)] == [-0.25, -0.25, 0.0]
    assert OverlongVerifier(20, buffer=0.01).buffer == 1


def test_no_punishment_counts_as_correct():
    assert [(verdict(n).status, verdict(n).reward) for n in (16, 17, 20, 30)] == [
        ("correct", 0.0), ("wrong", -0.25), ("wrong", -1.0), ("wrong", -1.0),
    ]  # fmt: skip
    assert str(verdict(3).reward) == "0.0", "no minus zero in logs"


def test_without_token_ids_there_is_no_score():
    assert (verdict(0).status, verdict(0).reason) == ("error", "no token ids to count")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"buffer": 0}, "`buffer` must be a share below 1 or a whole number up to 20, got 0"),
        ({"buffer": 2.5}, "`buffer` must be a share below 1 or a whole number up to 20, got 2.5"),
        ({"buffer": 21}, "`buffer` must be a share below 1 or a whole number up to 20, got 21"),
        ({"max_completion_length": 0}, "`max_completion_length` must be at least 1, got 0"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        verdict(1, **settings)


def test_it_has_no_settings_of_its_own():
    """A budget that is not that of the rollout would punish nothing, or everything."""
    with pytest.raises(ValueError, match=r"needs settings: max_completion_length; give"):
        VERIFIERS.build("overlong")
