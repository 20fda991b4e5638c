"""Linear layers over weights in the order in which the processor multiplies them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from lightning_rlvr.memory import fits


@contextmanager
def packed(model: nn.Module) -> Iterator[None]:
    """Inside: bfloat16 linear layers on a CPU multiply with reordered copies of their weights; after: as before.

    A product of few rows otherwise spends half its time on reordering the weights, anew for every token. For forwards
    without gradient, between which no weight changes. The copies take as much memory as the weights. On other devices,
    in other dtypes, where oneDNN has no bfloat16, and where the memory does not suffice, nothing is done; layers whose
    forward was replaced before keep it.

    Example:
        >>> layer, x = nn.Linear(64, 64).bfloat16().requires_grad_(False), torch.ones(2, 64).bfloat16()
        >>> with packed(layer):
        ...     inside = layer(x)
        >>> torch.allclose(inside, layer(x), rtol=1e-2, atol=1e-2)
        True
    """
    linear = [module for module in model.modules() if type(module) is nn.Linear and "forward" not in vars(module)]
    layers = [layer for layer in linear if _gains(layer.weight)]

    def pack() -> None:
        for layer in layers:
            weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), 32)
            layer.forward = partial(_multiply, weight, layer.bias)  # type: ignore[method-assign]

    def unpack() -> None:
        for layer in layers:
            vars(layer).pop("forward", None)

    try:
        if not fits(pack):
            unpack()
        yield
    finally:
        unpack()


def _gains(weight: Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def _multiply(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product
