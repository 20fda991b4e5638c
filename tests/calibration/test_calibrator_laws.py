"""Laws of every registered calibrator: a plug-in is tested here before its author writes a test."""

import importlib
import math
import pkgutil
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_rlvr import calibration
from lightning_rlvr.calibration.base import CALIBRATORS, RewardCalibrator
from lightning_rlvr.calibration.ot_normal import OTNormalCalibrator
from lightning_rlvr.calibration.sequential import SequentialCalibrator
from lightning_rlvr.calibration.zscore import ZScoreCalibrator
from lightning_rlvr.functional.groups import group_mean, is_constant_group

for module in pkgutil.iter_modules(calibration.__path__):
    importlib.import_module(f"{calibration.__name__}.{module.name}")

NAN = math.nan
# Arguments of calibrators that have no defaults for all of them.
ARGUMENTS = {"sequential": {"calibrators": ["ot_normal", "zscore"]}}
NUM_ROWS = 11  # make_rollout: three groups of 4, 3 and 4 rows

SCORES = st.sampled_from([0.0, 0.25, 0.5, 0.7, 1.0, 3.0, -2.0, NAN])
GROUPS = st.sampled_from([0, 3, 8, 1_000_003])
ROWS = st.lists(st.tuples(SCORES, GROUPS), min_size=NUM_ROWS, max_size=NUM_ROWS)
law = settings(max_examples=20, deadline=None)


def build(name):
    return CALIBRATORS[name](**ARGUMENTS.get(name, {}))


def rollout_of(make_rollout, rows, **changes):
    groups = torch.tensor([group for _, group in rows])
    return make_rollout(rewards=[score for score, _ in rows], group_index=groups, task_id=groups % 2, **changes)


def advantages_of(calibrator, rollout):
    calibrator.observe(rollout)
    return calibrator.calibrate(rollout)


@law
@given(ROWS)
def yields_a_finite_float32_for_every_row(calibrator, make_rollout, rows):
    advantages = advantages_of(calibrator, rollout_of(make_rollout, rows))
    assert advantages.shape == (NUM_ROWS,)
    assert advantages.dtype == torch.float32
    assert advantages.isfinite().all()
    assert not advantages.requires_grad


@law
@given(ROWS)
def centers_every_group_if_it_says_so(calibrator, make_rollout, rows):
    rollout = rollout_of(make_rollout, rows)
    advantages = advantages_of(calibrator, rollout).masked_fill(rollout.rewards.isnan(), NAN)
    if calibrator.centered:
        assert group_mean(advantages, rollout.group_index).nan_to_num(0).abs().max() < 1e-5


@law
@given(ROWS)
def is_silent_for_unscored_rows_and_constant_groups(calibrator, make_rollout, rows):
    rollout = rollout_of(make_rollout, rows)
    silent = rollout.rewards.isnan() | is_constant_group(rollout.rewards, rollout.group_index)
    assert advantages_of(calibrator, rollout)[silent].count_nonzero() == 0


@law
@given(ROWS)
def is_monotone_inside_a_group(calibrator, make_rollout, rows):
    rollout = rollout_of(make_rollout, rows)
    advantages, rewards, groups = advantages_of(calibrator, rollout), rollout.rewards, rollout.group_index
    same = groups[:, None] == groups
    assert (advantages[:, None] <= advantages)[same & (rewards[:, None] < rewards)].all()
    assert (advantages[:, None] == advantages)[same & (rewards[:, None] == rewards)].all()


@law
@given(ROWS, st.permutations(range(NUM_ROWS)))
def follows_a_permutation_of_the_rows(calibrator, make_rollout, rows, order):
    calibrator.observe(rollout_of(make_rollout, rows))
    advantages = calibrator.calibrate(rollout_of(make_rollout, rows))
    permuted = calibrator.calibrate(rollout_of(make_rollout, [rows[i] for i in order]))
    torch.testing.assert_close(permuted, advantages[order], atol=1e-6, rtol=1e-6)


@law
@given(ROWS, st.sampled_from([-1.0, 0.5, 8.0]))
def does_not_change_when_all_rewards_are_shifted(calibrator, make_rollout, rows, shift):
    shifted = [(score + shift, group) for score, group in rows]
    expected = advantages_of(calibrator, rollout_of(make_rollout, rows))
    actual = advantages_of(calibrator, rollout_of(make_rollout, shifted))
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


@law
@given(ROWS, SCORES)
def leaves_unscored_rows_out_of_their_group(calibrator, make_rollout, rows, score):
    if not calibrator.group_local:
        return
    moved = [(NAN, group) if i == 0 else (value, group) for i, (value, group) in enumerate(rows)]
    elsewhere = [(score, 77) if i == 0 else row for i, row in enumerate(rows)]
    actual = advantages_of(calibrator, rollout_of(make_rollout, moved))
    expected = advantages_of(calibrator, rollout_of(make_rollout, elsewhere))
    torch.testing.assert_close(actual[1:], expected[1:])


@law
@given(ROWS)
def is_pure(calibrator, make_rollout, rows):
    rollout = rollout_of(make_rollout, rows)
    before = rollout.rewards.clone()
    calibrator.observe(rollout)
    first = calibrator.calibrate(rollout)
    assert calibrator.calibrate(rollout).equal(first)
    assert rollout.rewards.nan_to_num(9).equal(before.nan_to_num(9))


def gives_zeros_and_finite_values_on_degenerate_groups(calibrator, make_rollout):
    scores = [1.0, 1.0, 1.0, 0.0, 1.0, NAN, 1.0, 0.0, NAN, 0.1, 0.1]
    groups = [0, 1, 1, 2, 2, 3, 3, 3, 4, 5, 5]
    advantages = advantages_of(calibrator, rollout_of(make_rollout, list(zip(scores, groups, strict=True))))
    assert advantages.isfinite().all()
    assert advantages[[0, 1, 2, 5, 8, 9, 10]].tolist() == [0.0] * 7
    assert 0 > advantages[3] == -advantages[4]
    assert advantages[6] == -advantages[7] > 0


def keeps_state_that_a_checkpoint_can_hold(calibrator, make_rollout):
    calibrator.observe(make_rollout(0))

    def plain(value):
        if isinstance(value, dict):
            return all(isinstance(key, str | int) and plain(item) for key, item in value.items())
        if isinstance(value, list | tuple):
            return all(plain(item) for item in value)
        return value is None or type(value) in (int, float, str, bool, torch.Tensor)

    assert plain(calibrator.state_dict())


LAWS = [
    yields_a_finite_float32_for_every_row,
    centers_every_group_if_it_says_so,
    is_silent_for_unscored_rows_and_constant_groups,
    is_monotone_inside_a_group,
    follows_a_permutation_of_the_rows,
    does_not_change_when_all_rewards_are_shifted,
    leaves_unscored_rows_out_of_their_group,
    is_pure,
    gives_zeros_and_finite_values_on_degenerate_groups,
    keeps_state_that_a_checkpoint_can_hold,
]


@pytest.mark.parametrize("obeys", LAWS, ids=lambda obeys: obeys.__name__)
@pytest.mark.parametrize("name", CALIBRATORS.names())
def test_every_registered_calibrator(name, obeys, make_rollout):
    obeys(build(name), make_rollout)


@pytest.mark.parametrize("obeys", LAWS, ids=lambda obeys: obeys.__name__)
@pytest.mark.parametrize(
    "calibrator",
    [
        ZScoreCalibrator(ddof=0, eps=0.0),
        OTNormalCalibrator(position="bary", scale="c_n"),
        OTNormalCalibrator(position="vdw", tie_tol=0.0),
        SequentialCalibrator(["centered", OTNormalCalibrator(position="blom")]),
    ],
    ids=lambda calibrator: calibrator.state_key,
)
def test_every_stateless_variant(calibrator, obeys, make_rollout):
    obeys(calibrator, make_rollout)


def test_every_module_of_the_package_registers_the_calibrator_of_its_name():
    modules = {module.name for module in pkgutil.iter_modules(calibration.__path__)} - {"base"}
    assert modules <= set(CALIBRATORS.names())


def test_calibrator_of_a_third_party_is_picked_up_and_caught_when_it_breaks_a_law(make_rollout):
    with mock.patch.dict(CALIBRATORS._plugins):

        @CALIBRATORS.register("raw")
        class RawCalibrator(RewardCalibrator):
            def calibrate(self, rollout):
                return rollout.rewards.nan_to_num(0)

        assert "raw" in CALIBRATORS.names()
        is_monotone_inside_a_group(build("raw"), make_rollout)
        with pytest.raises(AssertionError):
            gives_zeros_and_finite_values_on_degenerate_groups(build("raw"), make_rollout)
    assert "raw" not in CALIBRATORS
