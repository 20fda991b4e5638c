"""Z-score: the calibrator of GRPO."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from lightning_rlvr.calibration.base import CALIBRATORS, RewardCalibrator
from lightning_rlvr.checks import require
from lightning_rlvr.functional.calibration import zscore
from lightning_rlvr.types import Rollout


@CALIBRATORS.register("zscore")
class ZScoreCalibrator(RewardCalibrator):
    """Standardized reward, ``(r - mean) / (std + eps)`` inside each group: GRPO, arXiv:2402.03300.

    Args:
        ddof: Degrees of freedom taken from the standard deviation, 0 or 1.
        eps: Added to the standard deviation, in units of reward.

    Raises:
        ValueError: ``ddof`` is neither 0 nor 1, or ``eps`` is negative.
    """

    formula = "A = (r - mean) / (std + eps) in each group, std with n - ddof"

    def __init__(self, ddof: int = 1, eps: float = 1e-4) -> None:
        require(ddof in (0, 1), "ddof", "0 or 1", ddof)
        require(eps >= 0, "eps", ">= 0", eps)
        self.ddof = ddof
        self.eps = eps

    @override
    def calibrate(self, rollout: Rollout) -> Tensor:
        return zscore(rollout.rewards, rollout.group_index, self.ddof, self.eps)
