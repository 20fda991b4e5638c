"""What a rollout engine is: prompts in, sampled completions out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from os import PathLike
from typing import ClassVar, Protocol

from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

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

    def plain_config(self) -> PreTrainedConfig:
        """A config of its own for what holds the plain weights: it names the class, and no quantisation."""

    def plain_weights(self, *, merged: bool = True) -> AbstractContextManager[Mapping[str, Tensor]]:
        """Inside: the weights, with the adapter folded in or left out, by their names in a model without adapter."""

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the adapter in peft's format."""

    @property
    def adapter_rank(self) -> int:
        """Largest rank of the adapter; 0 without one."""

    @property
    def trainable_weights(self) -> Sequence[Tensor]:
        """What training changes."""


Finished = Callable[[Sequence[int], Sequence[Sequence[int]]], None]
"""Numbers of rows that have ended while others go on, and the token ids of each, its end token included."""


class RolloutEngine(ABC):
    """Samples completions from the policy."""

    shares_weights: ClassVar[bool] = True
    """Decodes with the trainer's own weights: there is nothing to bring over, and no other arithmetic to compare."""
    max_length: int | None = None
    """Tokens of the longest prompt and completion together; None = bounded by the model's positions alone."""

    @abstractmethod
    def generate(
        self,
        policy: SamplingPolicy,
        prompts: PromptBatch,
        prompt_index: Tensor,
        seeds: Tensor,
        sampling: Sampling,
        finished: Finished | None = None,
    ) -> Completions:
        """Sample one completion for each row of ``prompt_index``.

        Args:
            policy: Where the weights come from.
            prompts: N prompts.
            prompt_index: int64 ``[B]``, the prompt of each row (repeated values share their prefill).
            seeds: int64 ``[B]``; a row's tokens depend on its prompt, its seed and the weights only.
            sampling: Temperature (0 = greedy) and budget.
            finished: Told of rows that have ended with an end token while others go on, in any order, so that their
                verification can start; of a row again if it is decoded again. An engine may leave it alone.
        """

    def sync(self, policy: SamplingPolicy) -> None:  # noqa: B027  # engines that share the trainer's weights need none
        """Take over the policy's weights; called before every rollout, also the first one after resuming."""

    def sleep(self) -> None:  # noqa: B027  # engines that share the trainer's weights hold nothing
        """Give back what memory the engine can do without until the next ``sync``; called when a rollout is over."""


ENGINES: Registry[type[RolloutEngine]] = Registry(
    "rollout engine", "lightning_rlvr.rollout_engines", "lightning_rlvr.rollout"
)
