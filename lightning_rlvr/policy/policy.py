"""The policy: a causal language model, its tokenizer, and what training needs to know and do about them."""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self, cast

import torch
import torch.nn.functional as F
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_layers import GradientCheckpointingLayer
from typing_extensions import override

from lightning_rlvr.policy.folders import whole_folder
from lightning_rlvr.policy.half_lora import HalfLinear
from lightning_rlvr.policy.scoring import token_scores
from lightning_rlvr.policy.shared_prompts import can_share, hidden_states, positions
from lightning_rlvr.types import RowInputs, TokenStatistics

NO_INPUTS: RowInputs = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenScores:
    """What one forward says about b completions of T tokens; exactly 0 outside the mask."""

    logprobs: Tensor
    """float32 ``[b, T]``, nats at the sampling temperature; differentiable."""
    entropy: Tensor | None
    """float32 ``[b, T]``, nats; differentiable; None unless asked for."""
    statistics: TokenStatistics
    """The statistics that were asked for, each float32 ``[b, T]``, detached."""


class Head(NamedTuple):
    """How a model makes logits: ``softcap * tanh(scale * (hidden @ weight.T + bias) / softcap)``."""

    scale: float
    softcap: float | None


class Policy(nn.Module):
    """A model that is trained, in eval mode for life: dropout is off in every forward, whatever ``train`` is told.

    Gradient checkpointing does not depend on the mode: layers are recomputed whenever gradients are on.

    Args:
        model: A causal language model, plain or with one LoRA adapter.
        tokenizer: Its tokenizer.
        adapter_is_new: The adapter changes nothing yet, so the model without it is the reference policy.
        with_reference: Copy the weights that train, as they are now, if the reference policy needs that.
        gradient_checkpointing: Recompute the layers in the backward.

    Raises:
        ValueError: The model has no end token, an LM head that cannot be read in chunks, or no layers to recompute.

    Example:
        >>> from lightning_rlvr.policy.tiny import build_tiny
        >>> policy = Policy(*build_tiny())
        >>> ids = torch.tensor([policy.tokenizer("1+1=2").input_ids])
        >>> mask = torch.ones_like(ids, dtype=torch.bool)
        >>> scores = policy.score(
        ...     prompt_ids=ids[:, :4], prompt_mask=mask[:, :4], completion_ids=ids[:, 4:], completion_mask=mask[:, 4:],
        ...     temperature=1.0, statistics=["margin"],
        ... )
        >>> scores.logprobs.shape, list(scores.statistics), policy.num_forwards
        (torch.Size([1, 1]), ['margin'], 1)
    """

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        adapter_is_new: bool = False,
        with_reference: bool = False,
        gradient_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.model: PreTrainedModel = cast(Any, model)  # a PeftModel passes on whatever is not its own
        self.tokenizer = tokenizer
        self.num_forwards = 0
        """Scoring forwards so far."""
        self.num_tokens = 0
        """Tokens that went through them, padding not counted."""
        self._adapter_is_new = adapter_is_new
        self._published_generation_config = self._plain.generation_config
        self.eos_token_ids = self._find_eos_token_ids()
        self.pad_token_id: int = self.eos_token_ids[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self._plain.generation_config = GenerationConfig(
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            repetition_penalty=1.0,
            eos_token_id=list(self.eos_token_ids),
            pad_token_id=self.pad_token_id,
        )
        self.train()
        self._head = probe_head(self._plain)
        self.shares_prompts = can_share(self._plain)
        """Whether a prompt that several rows of a forward answer is computed once."""
        if gradient_checkpointing:
            _recompute_layers(self._plain)
        self._start: dict[str, Tensor] | None = None
        if with_reference and not adapter_is_new:
            self._start = {name: value.clone() for name, value in self.trainable_state_dict().items()}

    @functools.cached_property
    def num_parameters(self) -> int:
        """Number of weights, adapters included; tied ones count once."""
        return sum(weight.numel() for weight in self.parameters())

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text`` without special tokens."""
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    @property
    def _plain(self) -> PreTrainedModel:
        """The transformers model; adapter layers are inside, the adapter's wrapper is not around it."""
        return self.model if self._peft is None else cast(PreTrainedModel, self._peft.get_base_model())

    @property
    def _peft(self) -> PeftModel | None:
        model: object = self.model
        return model if isinstance(model, PeftModel) else None

    def _find_eos_token_ids(self) -> tuple[int, ...]:
        found: set[int] = set()
        for source in (self._plain.generation_config, self._plain.config.get_text_config(), self.tokenizer):
            ids = source.eos_token_id
            found.update([] if ids is None else [ids] if isinstance(ids, int) else ids)
        if not found:
            name = self._plain.name_or_path
            raise ValueError(
                f"`policy.name_or_path` must have an end token in its tokenizer or config, {name!r} has none"
            )
        return tuple(sorted(found))

    @override
    def train(self, mode: bool = True) -> Self:
        return super().train(False)

    def score(
        self,
        *,
        prompt_ids: Tensor,
        prompt_mask: Tensor,
        completion_ids: Tensor,
        completion_mask: Tensor,
        temperature: float,
        model_inputs: RowInputs = NO_INPUTS,
        statistics: Sequence[str] = (),
        entropy: bool = False,
    ) -> TokenScores:
        """Log-probs of the completions, and what else was asked for, from one forward.

        Only hidden states that predict valid completion tokens go through the LM head, in chunks.

        Args:
            prompt_ids: int64 ``[b, P]``, left-padded; P >= 1.
            prompt_mask: bool ``[b, P]``.
            completion_ids: int64 ``[b, T]``, right-padded.
            completion_mask: bool ``[b, T]``: tokens to score. Later tokens see all completion tokens up to the last
                one in the mask, so a gap in it hides nothing.
            temperature: Divides the logits; positive.
            model_inputs: Further inputs of the model, such as images.
            statistics: Names in ``TOKEN_STATISTICS``.
            entropy: Whether to return the differentiable entropy.
        """
        if not prompt_ids.shape[1]:
            raise ValueError("`prompt_ids` must have at least one token, got none: nothing predicts the first token")
        self.num_forwards += 1
        seen = completion_mask.flip(-1).cumsum(-1).flip(-1) > 0
        hidden = self._hidden_states(prompt_ids, prompt_mask, completion_ids, seen, model_inputs)
        head: nn.Linear = self._plain.get_output_embeddings()
        scores = token_scores(
            hidden[completion_mask],
            head.weight,
            head.bias,
            completion_ids[completion_mask],
            temperature=temperature,
            scale=self._head.scale,
            softcap=self._head.softcap,
            statistics=statistics,
            entropy=entropy,
        )
        zeros = torch.zeros_like(completion_mask, dtype=torch.float32)
        place = functools.partial(zeros.masked_scatter, completion_mask)
        return TokenScores(
            logprobs=place(scores.logprobs),
            entropy=None if scores.entropy is None else place(scores.entropy),
            statistics=TokenStatistics({name: place(values) for name, values in scores.statistics.items()}),
        )

    def _hidden_states(
        self, prompt_ids: Tensor, prompt_mask: Tensor, completion_ids: Tensor, seen: Tensor, model_inputs: RowInputs
    ) -> Tensor:
        """``[b, T, D]``: the states that predict the completion tokens."""
        decoder, (b, t), p = self._plain.base_model, completion_ids.shape, prompt_ids.shape[1]
        if self.shares_prompts and t and not model_inputs:
            both = torch.cat([prompt_ids, prompt_mask.long()], dim=1)
            distinct, prompt_of_row = torch.unique(both, dim=0, return_inverse=True)
            if (b - len(distinct)) * p >= b * (p + t) // 10:  # a second pass has a price of its own
                ids, mask = distinct[:, :p], distinct[:, p:].bool()
                self.num_tokens += int(mask.sum()) + int(seen.sum())
                return hidden_states(decoder, self._plain.config, ids, mask, prompt_of_row, completion_ids, seen)
        attention = torch.cat([prompt_mask, seen], dim=1)
        self.num_tokens += int(attention.sum())
        inputs = {name: torch.cat(rows) for name, rows in model_inputs.items()}
        arguments = inspect.signature(decoder.forward).parameters
        if inputs and "mm_token_type_ids" in arguments:  # positions in three dimensions: the model derives them itself
            is_image = prompt_ids == self._plain.config.image_token_id
            inputs["mm_token_type_ids"] = torch.cat([is_image, torch.zeros_like(seen)], dim=1).long()
        elif "position_ids" in arguments:
            inputs["position_ids"] = positions(attention)
        ids = torch.cat([prompt_ids, completion_ids], dim=1)
        output = decoder(input_ids=ids, attention_mask=attention.long(), use_cache=False, **inputs)
        hidden: Tensor = output.last_hidden_state
        return hidden[:, p - 1 : -1]

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Inside: the policy as training started; for forwards without gradient only.

        A new adapter is switched off; otherwise the weights that train make room for the copy of their first values.

        Raises:
            RuntimeError: A copy is needed, and the policy was made without ``with_reference``.
        """
        if self._peft is not None and self._adapter_is_new:
            with self._peft.disable_adapter():
                yield
            return
        if self._start is None:
            raise RuntimeError("the reference policy must be asked for before training: `with_reference=True`")
        parameters = dict(self.named_trainable())
        now = {name: parameter.data for name, parameter in parameters.items()}
        try:
            for name, parameter in parameters.items():
                parameter.data = self._start[name] = self._start[name].to(parameter)  # moves once, if at all
            yield
        finally:
            for name, parameter in parameters.items():
                parameter.data = now[name]

    @contextmanager
    def merged(self) -> Iterator[None]:
        """Inside: the adapter is folded into copies of the base weights; after: the base weights, bit for bit.

        Merging and subtracting again would not restore them, so the originals are set aside and put back. For forwards
        without gradient only. Does nothing without an adapter, or inside itself.

        Raises:
            ValueError: The base weights are quantised.
        """
        layers: list[Any] = [layer for layer in self.model.modules() if isinstance(layer, BaseTunerLayer)]
        if self._peft is None or layers[0].merged:
            yield
            return
        self._refuse_quantised()
        originals = [(weight, weight.data) for layer in layers for weight in layer.get_base_layer().parameters()]
        in_place = [layer for layer in layers if not isinstance(layer, HalfLinear)]
        try:
            for weight in (weight for layer in in_place for weight in layer.get_base_layer().parameters()):
                weight.data = weight.data.clone()
            self._peft.merge_adapter()
            yield
        finally:
            for layer in layers:
                layer.merged_adapters.clear()
            for weight, data in originals:
                weight.data = data

    def _refuse_quantised(self) -> None:
        if getattr(self._plain, "is_quantized", False):
            raise ValueError(
                "the adapter cannot be merged into quantised base weights: rounding would change the policy; load "
                "`policy.name_or_path` in bfloat16, or use what runs with the adapter apart"
            )

    def plain_config(self) -> PreTrainedConfig:
        """A config of its own for what holds the plain weights: it names the class, and no quantisation."""
        return plain_config(self._plain)

    @contextmanager
    def plain_weights(self, *, merged: bool = True) -> Iterator[dict[str, Tensor]]:
        """Inside: the policy's own weights, the adapter folded in or left out, by their names without adapter layers.

        Raises:
            ValueError: The base weights are quantised.
        """
        self._refuse_quantised()
        with self.merged() if merged else nullcontext():
            yield plain_weights(self._plain)

    @property
    def adapter_rank(self) -> int:
        """Largest rank of the adapter; 0 without one."""
        configs: list[Any] = [] if self._peft is None else list(self._peft.peft_config.values())
        return max((rank for config in configs for rank in (config.r, *config.rank_pattern.values())), default=0)

    @property
    def trainable_weights(self) -> list[nn.Parameter]:
        """What the optimizer steps on."""
        return [weight for _, weight in self.named_trainable()]

    def named_trainable(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Names and parameters of what trains, always in the same order."""
        return ((name, weight) for name, weight in self.model.named_parameters() if weight.requires_grad)

    def trainable_state_dict(self) -> dict[str, Tensor]:
        """What trains: name -> tensor that shares memory with the parameter."""
        return {name: parameter.detach() for name, parameter in self.named_trainable()}

    @property
    def digest(self) -> str:
        """A fingerprint of all that the log-probs follow from: weights, and the configs of model and adapter.

        A new adapter that changes nothing yet does not count.
        """
        state = dict(self.model.named_parameters())
        untrained = self._adapter_is_new and not any(value.any() for name, value in state.items() if "lora_B" in name)
        adapters = [] if self._peft is None or untrained else list(self._peft.peft_config.values())
        digest = hashlib.sha256("".join(map(_config_text, (self._plain.config, *adapters))).encode())
        for name, value in state.items():
            if not (untrained and ".lora_" in name):
                digest.update(f"{name} {list(value.shape)} {value.dtype}".encode())
                digest.update(value.detach().contiguous().flatten().view(torch.uint8).cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    @torch.no_grad()
    def load_trainable_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what :meth:`trainable_state_dict` returned, from a policy with the same settings.

        Raises:
            ValueError: The names or shapes are not those of this policy.
        """
        parameters = dict(self.named_trainable())
        shapes = {name: tuple(weight.shape) for name, weight in parameters.items()}
        given = {name: tuple(value.shape) for name, value in state.items()}
        if wrong := sorted(shapes.items() ^ given.items()):
            raise ValueError(
                f"the checkpoint must hold the {len(shapes)} trainable tensors of this policy, got {len(given)}, some "
                f"of other name or shape, such as {wrong[0][0]!r}: is `policy.lora` as it was when it was written?"
            )
        for name, parameter in parameters.items():
            parameter.copy_(state[name])

    def save(self, folder: str | PathLike[str], *, merged: bool = False) -> None:
        """Write the tokenizer and the adapter in peft's format, or a model that plain transformers loads.

        Args:
            folder: Where to; appears whole, in place of what was there.
            merged: Write the whole model with the adapter folded in. Without an adapter it is always the whole model.
        """
        with whole_folder(Path(folder)) as new:
            if self._peft is not None and not merged:
                self._peft.save_pretrained(str(new), save_embedding_layers=False)
            else:
                self._refuse_quantised()
                with self.merged():
                    plain = plain_copy(self._plain)
                    plain.generation_config = self._published_generation_config
                    plain.save_pretrained(new)
            self.tokenizer.save_pretrained(new)


def _config_text(config: Any) -> str:
    """A config of transformers or peft, without what says where it comes from."""
    origin = {"transformers_version", "peft_version", "base_model_name_or_path", "revision", "inference_mode"}
    settings = {k: v for k, v in config.to_dict().items() if not k.startswith("_") and k not in origin}
    return json.dumps(settings, sort_keys=True, default=lambda v: sorted(v) if isinstance(v, set) else str(v))


def plain_config(model: PreTrainedModel) -> PreTrainedConfig:
    """A copy of the config that names the model's class, without marks of quantisation."""
    config = copy.deepcopy(model.config)
    config.__dict__.pop("quantization_config", None)
    config.architectures = [type(model).__name__]
    return config


def plain_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """The weights, in the same memory, by their names in a model without adapter layers."""
    return {k.replace(".base_layer", ""): v for k, v in model.state_dict().items() if ".lora_" not in k}


def plain_copy(model: PreTrainedModel) -> PreTrainedModel:
    """The same weights, in the same memory, without adapter layers or marks of quantisation: a model to save."""
    with torch.device("meta"):
        plain = type(model)(plain_config(model))
    plain.load_state_dict(plain_weights(model), assign=True)
    plain.tie_weights()
    return plain


@torch.no_grad()
def probe_head(model: PreTrainedModel) -> Head:
    """How the logits of ``model`` follow from its hidden states and its LM head, measured on a few tokens.

    A constant factor between them (Granite, Cohere, ...) is estimated, the soft cap is read from the config.

    Args:
        model: A causal language model; adapter layers may be inside.

    Raises:
        ValueError: The head is not linear, is adapted or tied to adapted weights, or does not explain the logits.

    Example:
        >>> from lightning_rlvr.policy.tiny import build_tiny
        >>> probe_head(build_tiny()[0])
        Head(scale=1.0, softcap=None)
    """
    head: object = model.get_output_embeddings()
    kind = type(model).__name__
    if not isinstance(head, nn.Linear):
        raise ValueError(
            f"the LM head of {kind} must be a plain linear layer without adapter, got {type(head).__name__}"
        )
    adapted = (layer.get_base_layer() for layer in model.modules() if isinstance(layer, BaseTunerLayer))
    if any(weight is head.weight for layer in adapted for weight in layer.parameters()):
        raise ValueError(f"`policy.lora.target_modules` must leave out the embeddings that {kind} ties to its LM head")
    ids = torch.arange(1, 5, device=head.weight.device)[None] % head.weight.shape[0]
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    logits = model(input_ids=ids, use_cache=False).logits.double()
    raw = F.linear(hidden, head.weight, head.bias).double()
    softcap: float | None = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    explained = raw.shape == logits.shape
    if explained:
        small = torch.ones_like(raw, dtype=torch.bool) if softcap is None else logits.abs() < 0.9 * softcap
        x, y = raw[small], logits[small] if softcap is None else softcap * (logits[small] / softcap).atanh()
        scale = float(x @ y / (x @ x))
        scale = 1.0 if abs(scale - 1) < 1e-3 else scale
        predicted = scale * raw if softcap is None else softcap * (scale * raw / softcap).tanh()
        tolerance = 1e-3 if hidden.dtype == torch.float32 else 2e-2
        explained = bool((predicted - logits).abs().max() <= tolerance * logits.abs().max())
    if not explained:
        raise ValueError(
            f"the logits of {kind} must be its LM head applied to the last hidden state, up to a constant factor and "
            "a soft cap; they are not, so log-probs read in chunks would be of another model"
        )
    return Head(scale, softcap)


def _recompute_layers(model: PreTrainedModel) -> None:
    """Have every layer keep its inputs only while gradients are on, and recompute the rest in the backward."""
    layers = [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(f"`policy.gradient_checkpointing` must be false: {type(model).__name__} does not support it")
    for layer in layers:
        layer.forward = _recomputed(layer.forward)


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    return run
