"""What a reward calibrator is: raw rewards in, one advantage for each completion out."""

from __future__ import annotations

from abc import ABC, abstractmethod

from lightning.pytorch.callbacks import Callback
from torch import Tensor

from lightning_rlvr.registry import Registry
from lightning_rlvr.types import Rollout


class RewardCalibrator(Callback, ABC):
    """Maps the raw rewards of a rollout to advantages.

    ``calibrate`` is pure: no logging, no gradient, no mutation. A calibrator that learns from past rollouts does so in
    ``observe``, which the module calls once for each rollout, before ``calibrate``, with the rows of all ranks when
    ``group_local`` is False. ``state_dict`` may hold tensors and plain Python only.
    """

    formula: str = ""
    """What is computed, in symbols; one line for ``rlvr explain``."""
    requires: frozenset[str] = frozenset()
    """Token statistics that ``calibrate`` reads."""
    centered: bool = True
    """Law: the advantages of every group have mean 0."""
    group_local: bool = True
    """Law: a row's advantage depends on its own group alone. If False, the rows of all ranks are gathered first."""

    @abstractmethod
    def calibrate(self, rollout: Rollout) -> Tensor:
        """Advantages of the rows: ``[B]`` float32; exactly 0 for rows without a score and for constant groups."""

    def observe(self, rollout: Rollout) -> None:  # optional hook: most calibrators keep no state
        """Update running state from a new rollout; called once for each, before ``calibrate``."""


CALIBRATORS: Registry[type[RewardCalibrator]] = Registry(
    "reward calibrator", "lightning_rlvr.reward_calibrators", "lightning_rlvr.calibration"
)
