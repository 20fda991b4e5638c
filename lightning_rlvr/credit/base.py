"""What a credit assigner is: one advantage for each completion in, one for each token out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from lightning.pytorch.callbacks import Callback
from torch import Tensor

from lightning_rlvr.credit.ablation.base import EvidenceAblation
from lightning_rlvr.registry import Registry
from lightning_rlvr.types import Rollout


class CreditAssigner(Callback, ABC):
    """Spreads the advantage of each completion over its tokens.

    ``assign`` is pure: no logging, no gradient, no mutation. It may read the token statistics named in ``requires``
    and, for every ablation in ``ablations``, ``rollout.statistics[ablation.statistic]``. ``state_dict`` may hold
    tensors and plain Python only.
    """

    formula: str = ""
    """What is computed, in symbols; one line for ``rlvr explain``."""
    requires: frozenset[str] = frozenset()
    """Names in ``TOKEN_STATISTICS``: computed in the forward that yields the log-probs, at no extra forward."""
    ablations: frozenset[EvidenceAblation] = frozenset()
    """Each costs one extra forward without gradient, shared by all who declare an equal one."""
    conserves: bool = True
    """Law: the mean over the valid tokens of every row equals its advantage."""
    row_local: bool = True
    """Law: a row's credit depends on that row alone, so it can be assigned micro-batch by micro-batch."""

    @abstractmethod
    def assign(self, rollout: Rollout, advantages: Tensor) -> Tensor:
        """Token advantages ``[B, T]`` float32 from ``advantages`` ``[B]``; exactly 0 outside the mask."""

    def diagnostics(self, rollout: Rollout) -> Mapping[str, Tensor]:
        """What to log about the credit: name -> ``[B, T]``, averaged over valid tokens as ``credit/<name>``."""
        return {}


CREDIT_ASSIGNERS: Registry[type[CreditAssigner]] = Registry(
    "credit assigner", "lightning_rlvr.credit_assigners", "lightning_rlvr.credit"
)
