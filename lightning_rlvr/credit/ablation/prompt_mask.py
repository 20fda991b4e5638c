"""Prompt mask: the problem text gives way to a neutral placeholder."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from lightning_rlvr.credit.ablation.base import EVIDENCE_ABLATIONS, AblatedPrompt, Encode, EvidenceAblation
from lightning_rlvr.types import Rollout


@EVIDENCE_ABLATIONS.register("prompt_mask")
@dataclass(frozen=True)
class PromptMask(EvidenceAblation):
    """The same template around a placeholder; prompts without evidence tokens stay as they are.

    Args:
        placeholder: Text that stands where the problem stood.

    Example:
        >>> PromptMask().statistic
        "ablated_logprobs[PromptMask(placeholder='[problem omitted]')]"
    """

    placeholder: str = "[problem omitted]"

    @override
    def ablate(self, rollout: Rollout, encode: Encode, pad_id: int) -> AblatedPrompt:
        ids, evidence = rollout.prompt_ids, rollout.evidence_mask
        b, p = ids.shape
        filler = torch.tensor(encode(self.placeholder), dtype=torch.int64, device=ids.device).expand(b, -1)
        # All tokens, old and new, with the column where they belong (-1: nowhere); sorting is left-padding.
        old = torch.arange(p, device=ids.device).where(rollout.prompt_mask & ~evidence, -1)
        new = _first(evidence)[:, None].expand_as(filler)
        column, order = torch.cat([old, new], 1).sort(dim=1, stable=True)
        ablated_ids = torch.cat([ids, filler], 1).gather(1, order)
        mask = column >= 0
        used = mask.any(0)
        return AblatedPrompt(
            prompt_ids=ablated_ids.where(mask, pad_id)[:, used],
            prompt_mask=mask[:, used],
            model_inputs=rollout.model_inputs,
        )


def _first(mask: Tensor) -> Tensor:
    """``[B]`` int64: first column of each row where ``mask`` holds, -1 where there is none."""
    return mask.int().argmax(1).where(mask.any(1), -1)
