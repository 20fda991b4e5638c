"""What a rollout engine is: prompts in, sampled completions out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from transformers import PreTrainedModel

from lightning_rlvr.registry import Registry
from lightning_rlvr.types import Completions, PromptBatch


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How completions are drawn; there is nothing else: no top-p, no top-k, no penalties."""

    temperature: float = 1.0
    max_completion_length: int = 256


class SamplingPolicy(Protocol):
    """The part of a policy that an engine needs."""

    model: PreTrainedModel
    eos_token_ids: tuple[int, ...]
    pad_token_id: int

    def merged(self) -> AbstractContextManager[None]:
        """Inside: adapter weights are folded into the base weights; after: base weights as before, bit for bit."""


class RolloutEngine(ABC):
    """Samples completions from the policy."""

    @abstractmethod
    def generate(
        self, policy: SamplingPolicy, prompts: PromptBatch, prompt_index: Tensor, seeds: Tensor, sampling: Sampling
    ) -> Completions:
        """Sample one completion for each row of ``prompt_index``.

        Args:
            policy: Where the weights come from.
            prompts: N prompts.
            prompt_index: int64 ``[B]``, the prompt of each row (repeated values share their prefill).
            seeds: int64 ``[B]``; a row's tokens depend on its prompt, its seed and the weights only.
            sampling: Temperature (0 = greedy) and budget.
        """

    def sync(self, policy: SamplingPolicy) -> None:  # noqa: B027  # engines that share the trainer's weights need none
        """Take over the policy's weights; called before every rollout, also the first one after resuming."""


ENGINES: Registry[type[RolloutEngine]] = Registry(
    "rollout engine", "lightning_rlvr.rollout_engines", "lightning_rlvr.rollout"
)
