"""Leave-one-out baseline."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from lightning_rlvr.calibration.base import CALIBRATORS, RewardCalibrator
from lightning_rlvr.functional.calibration import rloo
from lightning_rlvr.types import Rollout


@CALIBRATORS.register("rloo")
class RLOOCalibrator(RewardCalibrator):
    """Reward minus the mean of the other rows of its group: RLOO, arXiv:2402.14740."""

    formula = "A = r - mean of the other n - 1 of the group"

    @override
    def calibrate(self, rollout: Rollout) -> Tensor:
        return rloo(rollout.rewards, rollout.group_index)
