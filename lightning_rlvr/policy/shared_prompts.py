"""Hidden states of rows that answer the same prompts: each prompt is computed once and seen by all its rows."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from typing_extensions import override

_ATTENTION = {"full_attention", "sliding_attention"}


def positions(mask: Tensor) -> Tensor:
    """Position of each token in its row, which padding does not count; int64 like ``mask``, ``[b, L]``.

    Example:
        >>> positions(torch.tensor([[False, True, True]]))
        tensor([[0, 0, 1]])
    """
    return (mask.cumsum(-1) - 1).clamp(min=0)


def hidden_states(
    decoder: nn.Module,
    config: PreTrainedConfig,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    prompt_of_row: Tensor,
    completion_ids: Tensor,
    seen: Tensor,
) -> Tensor:
    """The states that predict each completion token, from one pass over n prompts and one over b completions.

    The same as a pass over b prompts with their completions, up to rounding, and so are the gradients, with or without
    recomputation in the backward. The layers must be such as ``can_share`` accepts.

    Args:
        decoder: The model without its head.
        config: Its config.
        prompt_ids: int64 ``[n, P]``, left-padded.
        prompt_mask: bool ``[n, P]``.
        prompt_of_row: int64 ``[b]``, the prompt that each row answers.
        completion_ids: int64 ``[b, T]``, right-padded; T >= 1.
        seen: bool ``[b, T]``: completion tokens that later ones may look at.

    Returns:
        ``[b, T, D]`` in the model's dtype.
    """
    prompts = [_Prompts() for _ in DynamicCache(config=config).layers]  # type: ignore[no-untyped-call]  # as in transformers
    output = decoder(
        input_ids=prompt_ids,
        attention_mask=prompt_mask.long(),
        position_ids=positions(prompt_mask),
        past_key_values=Cache(layers=list(prompts)),
        use_cache=True,
    )
    first: Tensor = output.last_hidden_state[prompt_of_row, -1:]
    if completion_ids.shape[1] == 1:
        return first
    attention = torch.cat([prompt_mask[prompt_of_row], seen[:, :-1]], dim=1)
    later = decoder(
        input_ids=completion_ids[:, :-1],  # nothing asks what follows the last token
        attention_mask=attention.long(),
        position_ids=positions(attention)[:, prompt_ids.shape[1] :],
        past_key_values=Cache(layers=[_Rows(layer, prompt_of_row) for layer in prompts]),
        use_cache=True,
    ).last_hidden_state
    return torch.cat([first, later], dim=1)


class _Prompts(DynamicLayer):
    """Keeps keys and values of the prompts, with their gradient."""

    keys: Tensor
    values: Tensor

    @override
    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:  # else this is a recomputation, and the rows have seen the first ones
            self.keys, self.values, self.is_initialized = key_states, value_states, True
        return key_states, value_states


class _Rows(DynamicLayer):
    """Gives every row the keys and values of its prompt before its own, and keeps nothing."""

    def __init__(self, prompts: _Prompts, prompt_of_row: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as in transformers
        self.prompts = prompts
        self.prompt_of_row = prompt_of_row

    @override
    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        keys, values = (x.index_select(0, self.prompt_of_row) for x in (self.prompts.keys, self.prompts.values))
        return torch.cat([keys, key_states], dim=-2), torch.cat([values, value_states], dim=-2)

    @override
    def get_seq_length(self) -> int:
        return self.prompts.get_seq_length()


@torch.no_grad()
def can_share(model: PreTrainedModel) -> bool:
    """Whether prompts of ``model`` can be shared: attention only, and the states are the same on a few tokens.

    Example:
        >>> from lightning_rlvr.policy.tiny import build_tiny
        >>> can_share(build_tiny()[0])
        True
    """
    decoder, config = model.base_model, model.config
    layers = DynamicCache(config=config).layers
    kinds = set(getattr(config.get_text_config(decoder=True), "layer_types", None) or _ATTENTION)
    arguments = inspect.signature(decoder.forward).parameters
    attention = all(isinstance(layer, DynamicLayer) for layer in layers) and kinds <= _ATTENTION
    if not (layers and attention and {"position_ids", "past_key_values"} <= set(arguments)):
        return False
    prompt, completions = torch.tensor([[0, 1]]), torch.tensor([[2, 3], [1, 2]])
    prompt, completions = prompt.to(model.device), completions.to(model.device)
    seen, rows = torch.ones_like(completions, dtype=torch.bool), torch.zeros_like(completions[:, 0])
    shared = hidden_states(decoder, config, prompt, torch.ones_like(prompt).bool(), rows, completions, seen)
    ids = torch.cat([prompt[rows], completions], dim=1)
    whole = decoder(input_ids=ids, use_cache=False).last_hidden_state[:, 1:-1]
    tolerance = 1e-3 if whole.dtype == torch.float32 else 5e-2
    return bool((shared - whole).abs().max() <= tolerance * whole.abs().max())
