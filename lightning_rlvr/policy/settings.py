"""What a config says about the policy: which model, in which precision, with which adapter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from lightning_rlvr.checks import require, require_choice

Dtype = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """A low-rank adapter: its weights train in float32, the base weights stay as they are.

    Args:
        rank: Rank of the update.
        alpha: The update is scaled by ``alpha / rank``.
        target_modules: Names of linear layers to adapt, or ``all-linear`` for all but the LM head.
        adapter: Folder or hub id of a LoRA adapter to start from. It goes on training, and brings its own rank, alpha
            and targets: the three settings above must then keep their defaults or agree with it.
        init: Start of a new adapter: True (Kaiming) or ``gaussian``. Both start as the base model, exactly.
    """

    rank: int = 16
    alpha: int = 32
    target_modules: str | list[str] = "all-linear"
    adapter: str | None = None
    init: bool | str = True

    def __post_init__(self) -> None:
        require(self.rank >= 1, "policy.lora.rank", "positive", self.rank)
        require(self.alpha >= 1, "policy.lora.alpha", "positive", self.alpha)
        targets = self.target_modules
        require(targets not in ("", []), "policy.lora.target_modules", "the name of at least one module", targets)
        check_init("policy.lora.init", self.init)
        if self.adapter is not None and self.init is not True:
            raise ValueError(f"`policy.lora.init` has no effect beside `policy.lora.adapter`, got {self.init!r}")


def check_init(argument: str, init: object) -> None:
    """Refuse every start of an adapter that is not the base model.

    Raises:
        ValueError: ``init`` is something else than True or ``gaussian``.

    Example:
        >>> check_init("init", "pissa")
        Traceback (most recent call last):
            ...
        ValueError: `init` must be True or 'gaussian', got 'pissa': other inits (...) move the base weights, ...
    """
    if init is not True and init != "gaussian":
        raise ValueError(
            f"`{argument}` must be True or 'gaussian', got {init!r}: other inits (pissa, olora, loftq, ...) move the "
            "base weights, or start away from them, so neither rollouts nor the reference would be of the model named"
        )


@dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """The model that is trained.

    Args:
        name_or_path: A hub id; a folder; ``package://<module>/<file>.gguf``, weights that an installed package ships;
            ``tiny``, a character model of 0.9M parameters that already solves a third of the two-term sums; or
            ``tiny_untrained``, the same before its warm-up.
        revision: Branch, tag or commit on the hub.
        lora: The adapter, or null to train all weights.
        dtype: Of weights that do not train: ``bfloat16`` or ``float32``; ``auto`` picks bfloat16 where the processor
            has instructions for it. Weights that train, and the tiny models, are float32 always.
        gradient_checkpointing: Recompute the layers in the backward: less memory, another forward.
        attn_implementation: As transformers calls it: ``sdpa``, ``eager``, ``flash_attention_2``, ...
        trust_remote_code: Run modelling code that the checkpoint brings along.
        chat_template: Jinja source that replaces the chat template of the tokenizer.
    """

    name_or_path: str = "tiny"
    revision: str | None = None
    lora: LoraSettings | None = field(default_factory=LoraSettings)
    dtype: Dtype = "auto"
    gradient_checkpointing: bool = False
    attn_implementation: str = "sdpa"
    trust_remote_code: bool = False
    chat_template: str | None = None

    def __post_init__(self) -> None:
        require(bool(self.name_or_path), "policy.name_or_path", "a model", self.name_or_path)
        require_choice("policy.dtype", get_args(Dtype), self.dtype)
        if self.dtype == "bfloat16" and (self.is_tiny or self.lora is None):
            reason = "the tiny models are float32" if self.is_tiny else "without `policy.lora` all weights train"
            raise ValueError(f"`policy.dtype` must be float32 or auto here, got 'bfloat16': {reason}, in float32")

    @property
    def is_tiny(self) -> bool:
        """Whether the model is one of those that this package builds itself."""
        return self.name_or_path in ("tiny", "tiny_untrained")
