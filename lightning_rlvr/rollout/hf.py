"""The engine that needs nothing else: transformers' forward inside a sampling loop of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from typing_extensions import override

from lightning_rlvr.checks import require
from lightning_rlvr.functional.masking import completion_mask
from lightning_rlvr.functional.random import uniform
from lightning_rlvr.memory import fits
from lightning_rlvr.rollout.base import ENGINES, Finished, RolloutEngine, Sampling, SamplingPolicy
from lightning_rlvr.rollout.packing import packed
from lightning_rlvr.types import Completions, PromptBatch


@ENGINES.register("hf")
class HFEngine(RolloutEngine):
    """Decodes with the trainer's own model, in place.

    Every prompt is prefilled once and its cache repeated for its rows; rows that have ended leave the batch. Token
    ``t`` of a row is the inverse distribution function at the ``t``-th uniform number of the row's seed: it depends on
    prompt, seed and weights only, up to the rounding of products over other batches. Nothing of the checkpoint's
    generation config is read. At temperature 0 (greedy) the log-probs are those of temperature 1.

    Args:
        max_rows: Rows to decode at a time, to bound the memory; None = all.
        merge_lora: Fold adapters into the base weights while decoding: faster, and rounds as the weights' dtype does.
    """

    def __init__(self, max_rows: int | None = None, merge_lora: bool = True) -> None:
        require(max_rows is None or max_rows >= 1, "max_rows", "positive or None", max_rows)
        self.max_rows = max_rows
        self.merge_lora = merge_lora

    @override
    @torch.no_grad()  # not inference mode: some rotary embeddings replace their buffers while they run
    def generate(
        self,
        policy: SamplingPolicy,
        prompts: PromptBatch,
        prompt_index: Tensor,
        seeds: Tensor,
        sampling: Sampling,
        finished: Finished | None = None,
    ) -> Completions:
        require(sampling.temperature >= 0, "temperature", "0 (greedy) or positive", sampling.temperature)
        limit = sampling.max_completion_length
        require(limit >= 1, "max_completion_length", "positive", limit)
        shape = (len(prompt_index), sampling.max_completion_length)
        ids = torch.full(shape, policy.pad_token_id, device=policy.model.device)
        logprobs = torch.zeros(shape, device=policy.model.device)
        with policy.merged() if self.merge_lora else nullcontext(), _decoding(policy.model), packed(policy.model):
            left = prompt_index.argsort(stable=True)
            while len(left):
                rows = left[: self.max_rows]

                def decode(rows: Tensor = rows) -> None:
                    tell = None if finished is None else partial(_tell, finished, rows.tolist())
                    ids[rows], logprobs[rows] = _decode(
                        policy, prompts, prompt_index[rows], seeds[rows], sampling, tell
                    )

                if fits(decode):
                    left = left[len(rows) :]
                    continue
                if len(rows) == 1:
                    raise MemoryError(
                        "out of memory while a single row was decoded: lower `rollout.max_completion_length` or "
                        "`data.max_prompt_length`"
                    )
                self.max_rows = len(rows) // 2
                rank_zero_warn(
                    f"out of memory: the engine decodes {self.max_rows} instead of {len(rows)} rows at a time"
                )
        mask, truncated = completion_mask(ids, policy.eos_token_ids)
        length = int(mask.sum(1).max()) if len(ids) else 0
        return Completions(
            completion_ids=ids.where(mask, policy.pad_token_id)[:, :length],
            completion_mask=mask[:, :length],
            truncated=truncated,
            logprobs=logprobs.where(mask, 0.0)[:, :length],
            prompt_index=prompt_index.to(ids.device),
            seeds=seeds.to(ids.device),
        )


def _tell(finished: Finished, rows: Sequence[int], numbers: Sequence[int], ids: Sequence[Sequence[int]]) -> None:
    """``finished`` for the rows with these numbers among ``rows``."""
    finished([rows[number] for number in numbers], ids)


def _decode(
    policy: SamplingPolicy,
    prompts: PromptBatch,
    prompt_index: Tensor,
    seeds: Tensor,
    sampling: Sampling,
    finished: Finished | None,
) -> tuple[Tensor, Tensor]:
    """Token ids and log-probs ``[b, max_completion_length]``; what follows an end token is arbitrary."""
    model, device, budget = policy.model, policy.model.device, sampling.max_completion_length
    eos = torch.tensor(policy.eos_token_ids, device=device)
    ids = torch.empty(len(seeds), budget, dtype=torch.int64, device=device)
    logprobs = torch.empty(len(seeds), budget, device=device)
    uniforms = uniform(seeds, budget).to(device)

    which, repeats = torch.unique(prompt_index, return_inverse=True)
    cache = _cache(model)
    logits, position, mask = _prefill(model, cache, prompts, which)

    # From here on a row is a completion: `rows` are their numbers in `ids`, and all else is kept in step with it.
    rows = torch.arange(len(seeds), device=device)
    repeats = repeats.to(device)
    cache.reorder_cache(repeats)
    logits, position, mask = logits[repeats], position[repeats], F.pad(mask[repeats], (0, budget), value=True)
    ended = torch.zeros_like(rows, dtype=torch.bool)
    prompt_length, num_going = mask.shape[1] - budget, len(rows)
    for t in range(budget):
        tokens, token_logprobs = _draw(logits, uniforms[rows, t], sampling.temperature)
        ids[rows, t], logprobs[rows, t] = tokens, token_logprobs
        ends = torch.isin(tokens, eos) & ~ended
        ended |= ends
        going = (~ended).nonzero().squeeze(1)
        if len(going) == 0 or t + 1 == budget:
            break
        if finished is not None and len(going) < num_going:  # the device has just been waited for
            finished(rows[ends].tolist(), ids[rows[ends], : t + 1].tolist())
        num_going = len(going)
        if len(going) <= len(rows) * 7 // 8:  # not at every end: it copies the cache
            cache.reorder_cache(going)
            rows, tokens, position, mask, ended = (x[going] for x in (rows, tokens, position, mask, ended))
        logits = model(
            input_ids=tokens[:, None],
            attention_mask=mask[:, : prompt_length + t + 1],
            position_ids=position + t + 1,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
    return ids, logprobs


def _prefill(model: PreTrainedModel, cache: Any, prompts: PromptBatch, which: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of the first token ``[n, V]``, position of the last prompt token ``[n, 1]``, prompt mask ``[n, P]``."""
    columns = prompts.prompt_mask[which].any(0)
    ids = prompts.prompt_ids[which][:, columns].to(model.device)
    mask = prompts.prompt_mask[which][:, columns].to(model.device)
    position = mask.cumsum(1) - 1
    inputs = {
        name: torch.cat([rows[i] for i in which.tolist()]).to(model.device)
        for name, rows in prompts.model_inputs.items()
    }
    # Positions of images in several dimensions are the model's to derive; it then says how far the text is shifted.
    derived = bool(inputs) and "mrope_section" in str(model.config.get_text_config(decoder=True).to_dict())
    if derived:
        inputs["mm_token_type_ids"] = (ids == model.config.image_token_id).long()
    else:
        inputs["position_ids"] = position.clamp(min=0)
    output = model(
        input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, logits_to_keep=1, **inputs
    )
    attention = [layer for layer in cache.layers if isinstance(layer, DynamicLayer)]
    if not attention or any(layer.get_seq_length() != ids.shape[1] for layer in attention):
        raise ValueError(
            f"the engine needs a model with attention layers that keeps its past in the cache it is given, got "
            f"{type(model).__name__}"
        )
    shift = output.rope_deltas if derived else 0
    return output.logits[:, -1], position[:, -1:] + shift, mask


def _draw(logits: Tensor, uniforms: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The first token whose cumulative probability exceeds the uniform number, and its log-prob.

    Args:
        logits: ``[b, V]`` float.
        uniforms: ``[b]`` float64 in ``[0, 1)``.
        temperature: 0 = the likeliest token, with its log-prob at temperature 1.

    Returns:
        ``[b]`` int64 and ``[b]`` float32, nats.

    Example:
        >>> logits = torch.tensor([0.5, 0.0, 0.25, 0.25]).log().expand(4, -1)
        >>> _draw(logits, torch.tensor([0.0, 0.49, 0.5, 0.99], dtype=torch.float64), temperature=1.0)[0]
        tensor([0, 0, 2, 3])
    """
    logits = logits.float()
    probs = (logits / temperature if temperature > 0 else logits).softmax(-1)
    if temperature > 0:
        cumulative = probs.cumsum(-1)
        total = cumulative[:, -1:]  # 1 up to rounding: the number is scaled to it, and kept below it
        threshold = torch.minimum((uniforms[:, None] * total).float(), total.nextafter(torch.zeros_like(total)))
        tokens = torch.searchsorted(cumulative, threshold, right=True).clamp(max=logits.shape[-1] - 1)  # NaN logits
    else:
        tokens = logits.argmax(-1, keepdim=True)
    return tokens.squeeze(1), probs.gather(1, tokens).squeeze(1).log()


def _cache(model: PreTrainedModel) -> Any:  # transformers' caches are typed with aliases of the last decade
    """The cache that suits the model, sliding or recurrent layers included, with its growing layers replaced."""
    cache: Any = DynamicCache(config=model.config)
    cache.layers = [_BlockLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]  # type: ignore[no-untyped-call]
    return cache


class _BlockLayer(DynamicLayer):
    """Grows by blocks of tokens: concatenation would copy the whole cache for every one."""

    keys: Tensor
    values: Tensor
    length = 0
    block = 64

    @override
    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        start, self.length = self.length, self.length + key_states.shape[2]
        if not self.is_initialized:
            self.keys, self.values, self.is_initialized = key_states, value_states, True
            return key_states, value_states
        if self.length > self.keys.shape[2]:
            spare = (0, 0, 0, max(self.block, key_states.shape[2]))
            self.keys, self.values = F.pad(self.keys, spare), F.pad(self.values, spare)
        self.keys[:, :, start : self.length] = key_states
        self.values[:, :, start : self.length] = value_states
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    @override
    def get_seq_length(self) -> int:
        return self.length


@contextmanager
def _decoding(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode (gradient checkpointing and dropout off) and grouped attention; after: everything as before."""
    training = [module for module in model.modules() if module.training]
    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
    model.train(False)
    ALL_ATTENTION_FUNCTIONS.register("sdpa", _grouped_attention)
    try:
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS.register("sdpa", sdpa)
        for module in training:
            module.training = True


def _grouped_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attention of one new token: the query heads of a key head become its rows, where sdpa would repeat the keys."""
    batch, heads, length, _ = query.shape
    if length > 1 or kwargs.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    grouped = query.reshape(batch, key.shape[1], heads // key.shape[1], -1)
    output = F.scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=kwargs.get("scaling"))
    return output.reshape(batch, 1, heads, -1), None
