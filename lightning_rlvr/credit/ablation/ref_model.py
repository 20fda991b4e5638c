"""Reference model: the policy as training started stands in for a policy without the evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from lightning_rlvr.credit.ablation.base import EVIDENCE_ABLATIONS, AblatedPrompt, Encode, EvidenceAblation
from lightning_rlvr.types import Rollout


@EVIDENCE_ABLATIONS.register("ref_model")
@dataclass(frozen=True)
class RefModel(EvidenceAblation):
    """The same prompt under the reference policy: the contrast is the log-ratio of the two policies.

    Example:
        >>> RefModel().reference, RefModel() == RefModel()
        (True, True)
    """

    reference: ClassVar[bool] = True

    @override
    def ablate(self, rollout: Rollout, encode: Encode, pad_id: int) -> AblatedPrompt:
        return AblatedPrompt(
            prompt_ids=rollout.prompt_ids, prompt_mask=rollout.prompt_mask, model_inputs=rollout.model_inputs
        )
