"""What an evidence ablation is: the prompt side of a rollout in, the same without its evidence out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from lightning_rlvr.registry import Registry
from lightning_rlvr.types import Rollout, RowInputs

Encode = Callable[[str], list[int]]
"""Text -> token ids, without special tokens."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AblatedPrompt:
    """The prompt side of a rollout after an ablation: ``prompt_ids`` int64 and ``prompt_mask`` bool ``[B, P']``."""

    prompt_ids: Tensor
    prompt_mask: Tensor
    model_inputs: RowInputs = field(default_factory=dict)


@dataclass(frozen=True)
class EvidenceAblation(ABC):
    """Takes the evidence away; a frozen dataclass, so that equal ablations share one forward."""

    reference: ClassVar[bool] = False
    """True when the contrast is against the reference policy instead of another prompt."""

    @property
    def statistic(self) -> str:
        """Name under which the log-probs of the ablated forward appear among the token statistics."""
        return f"ablated_logprobs[{self!r}]"

    @abstractmethod
    def ablate(self, rollout: Rollout, encode: Encode, pad_id: int) -> AblatedPrompt:
        """The prompt side of ``rollout`` without its evidence, left-padded with ``pad_id``."""


EVIDENCE_ABLATIONS: Registry[type[EvidenceAblation]] = Registry(
    "evidence ablation", "lightning_rlvr.evidence_ablations", "lightning_rlvr.credit.ablation"
)
