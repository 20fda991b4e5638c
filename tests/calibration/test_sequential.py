import math

import pytest
import torch

from lightning_rlvr.calibration.base import RewardCalibrator
from lightning_rlvr.calibration.centered import CenteredCalibrator
from lightning_rlvr.calibration.ot_normal import OTNormalCalibrator
from lightning_rlvr.calibration.sequential import SequentialCalibrator
from lightning_rlvr.calibration.zscore import ZScoreCalibrator
from lightning_rlvr.functional.calibration import zscore


class Recorder(RewardCalibrator):
    """Doubles the rewards and writes down what it was asked."""

    requires = frozenset({"entropy"})

    def __init__(self):
        self.stages, self.seen = [], []

    def setup(self, trainer, pl_module, stage):
        self.stages.append(stage)

    def observe(self, rollout):
        self.seen.append(rollout.rewards)

    def calibrate(self, rollout):
        return 2 * rollout.rewards.nan_to_num(0)


def test_list_of_one_is_that_calibrator(make_rollout):
    rollout = make_rollout()
    assert SequentialCalibrator(["zscore"]).calibrate(rollout).equal(ZScoreCalibrator().calibrate(rollout))


def test_advantages_of_one_are_the_rewards_of_the_next_and_unscored_rows_stay_unscored(make_rollout):
    rewards = torch.tensor([1.0, 0, 0.5, math.nan])
    rollout = make_rollout(num_groups=1, rewards=rewards)
    second = Recorder()
    calibrator = SequentialCalibrator(["centered", second, ZScoreCalibrator(eps=0.0)])
    calibrator.observe(rollout)
    torch.testing.assert_close(second.seen[0], torch.tensor([0.5, -0.5, 0, math.nan]), equal_nan=True)
    torch.testing.assert_close(calibrator.calibrate(rollout), zscore(rewards, rollout.group_index, eps=0.0))


def test_unit_variance_transport_of_a_binary_group_is_the_zscore(make_rollout):
    rollout = make_rollout(num_groups=1, num_generations=8, rewards=[1.0] * 2 + [0.0] * 6)
    exact = ZScoreCalibrator(eps=0.0)
    torch.testing.assert_close(SequentialCalibrator(["ot_normal", exact]).calibrate(rollout), exact.calibrate(rollout))


def test_needs_and_claims_are_united():
    running = OTNormalCalibrator(scope="group_then_task")
    assert SequentialCalibrator([Recorder(), "zscore"]).requires == {"entropy"}
    assert SequentialCalibrator(["zscore", "centered"]).group_local
    assert not SequentialCalibrator([running, "zscore"]).group_local
    assert SequentialCalibrator([running, "zscore"]).centered
    assert not SequentialCalibrator(["zscore", running]).centered


def test_setup_is_forwarded():
    recorder = Recorder()
    SequentialCalibrator(["zscore", recorder]).setup(None, None, "fit")
    assert recorder.stages == ["fit"]


def test_state_of_every_stage_survives(make_rollout):
    def build():
        return SequentialCalibrator([OTNormalCalibrator(scope="task_running"), CenteredCalibrator()])

    calibrator, restored = build(), build()
    calibrator.observe(make_rollout(0))
    restored.load_state_dict(calibrator.state_dict())
    rollout = make_rollout(1)
    assert restored.calibrate(rollout).equal(calibrator.calibrate(rollout))
    assert restored.calibrate(rollout).count_nonzero() > 0


def test_state_key_names_the_stages():
    keys = {SequentialCalibrator(items).state_key for items in (["zscore"], ["centered"], ["zscore", "centered"])}
    assert len(keys) == 3


def test_empty_list_and_unknown_name_are_refused():
    with pytest.raises(ValueError, match="`calibrators` must name at least one"):
        SequentialCalibrator([])
    with pytest.raises(ValueError, match="unknown reward calibrator 'z'; choices"):
        SequentialCalibrator(["z"])
