"""Composition of calibrators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from typing_extensions import override

from lightning_rlvr.calibration.base import CALIBRATORS, RewardCalibrator
from lightning_rlvr.composite import Composite
from lightning_rlvr.types import Rollout


@CALIBRATORS.register("sequential")
class SequentialCalibrator(Composite, RewardCalibrator):
    """Calibrators one after another: the advantages of one are the rewards of the next.

    Rows without a score stay without one all the way. A list of one is that calibrator itself.

    Args:
        calibrators: In order; each an instance, or a short name to be built with its defaults.

    Raises:
        ValueError: The list is empty, or a name is unknown.

    Example:
        >>> from lightning_rlvr.calibration.zscore import ZScoreCalibrator
        >>> SequentialCalibrator(["zscore", ZScoreCalibrator(ddof=0)]).centered
        True
    """

    members: tuple[RewardCalibrator, ...]

    def __init__(self, calibrators: list[RewardCalibrator | str]) -> None:
        if not calibrators:
            raise ValueError(f"`calibrators` must name at least one calibrator; choices: {', '.join(CALIBRATORS)}")
        self.members = tuple(CALIBRATORS.build(calibrator) for calibrator in calibrators)
        self.formula = "; then ".join(item.formula or type(item).__name__ for item in self.members)
        self.requires = frozenset().union(*(item.requires for item in self.members))
        self.centered = self.members[-1].centered
        self.group_local = all(item.group_local for item in self.members)

    @override
    def observe(self, rollout: Rollout) -> None:
        for calibrator, seen in self._stages(rollout):
            calibrator.observe(seen)

    @override
    def calibrate(self, rollout: Rollout) -> Tensor:
        last, seen = list(self._stages(rollout))[-1]
        return last.calibrate(seen)

    def _stages(self, rollout: Rollout) -> Iterator[tuple[RewardCalibrator, Rollout]]:
        """Each calibrator with what it sees; a stage may observe before its advantages are passed on."""
        unscored = rollout.rewards.isnan()
        for number, calibrator in enumerate(self.members):
            yield calibrator, rollout
            if number + 1 < len(self.members):
                rollout = replace(rollout, rewards=calibrator.calibrate(rollout).masked_fill(unscored, torch.nan))
