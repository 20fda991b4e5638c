"""Centered reward: the calibrator of Dr. GRPO."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from lightning_rlvr.calibration.base import CALIBRATORS, RewardCalibrator
from lightning_rlvr.functional.calibration import centered
from lightning_rlvr.types import Rollout


@CALIBRATORS.register("centered")
class CenteredCalibrator(RewardCalibrator):
    """Reward minus the mean of its group, without division by the spread: Dr. GRPO, arXiv:2503.20783."""

    formula = "A = r - mean of the group"

    @override
    def calibrate(self, rollout: Rollout) -> Tensor:
        return centered(rollout.rewards, rollout.group_index)
