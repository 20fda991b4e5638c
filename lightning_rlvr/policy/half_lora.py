"""The forward of LoRA layers over half-precision weights, with small products in the dtype of the large ones."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from peft.tuners.lora import Linear
from torch import Tensor, nn
from typing_extensions import override


class HalfLinear(Linear):
    """peft's layer, whose master weights stay float32 while its products run in the dtype of the base.

    peft casts the activations up instead, and keeps them for the backward: more memory, products at the slow rate, and
    three more passes over the output. Gradients arrive in float32.
    """

    @override
    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if args or kwargs or self.merged or self.disable_adapters or x.dtype != self.get_base_layer().weight.dtype:
            return super().forward(x, *args, **kwargs)
        result: Tensor = self.base_layer(x)
        for name in self.active_adapters:
            down, up = self._factors(name, x.dtype)
            result = result + F.linear(F.linear(x, down), up)
        return result

    @override
    @torch.no_grad()
    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Put what `forward` multiplies with, rounded once to the dtype of the base, in place of the base weight."""
        weight = cast(Tensor, self.get_base_layer().weight)
        for name in adapter_names or self.active_adapters:
            down, up = self._factors(name, weight.dtype)
            factors = (down.T, up.T) if self.fan_in_fan_out else (up, down)
            weight.data = torch.addmm(weight.data, *factors)  # in one pass; the old tensor stays as it is
            self.merged_adapters.append(name)

    def _factors(self, name: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        down, up = cast(Tensor, self.lora_A[name].weight), cast(Tensor, self.lora_B[name].weight)
        return down.to(dtype), (up * self.scaling[name]).to(dtype)


def use_base_dtype(model: nn.Module) -> None:
    """Give plain LoRA layers over half-precision weights the forward of `HalfLinear`; all others keep peft's.

    Args:
        model: Changed in place; in eval mode for life, as dropout on the way into the adapter is not looked at.

    Example:
        >>> from peft import LoraConfig, get_peft_model
        >>> from lightning_rlvr.policy.tiny import build_tiny
        >>> model = get_peft_model(build_tiny()[0].bfloat16(), LoraConfig(target_modules=["q_proj"]))
        >>> use_base_dtype(model)
        >>> sum(isinstance(module, HalfLinear) for module in model.modules())
        4
    """
    layers = [layer for layer in model.modules() if type(layer) is Linear]
    for layer in layers:
        plain = not layer.lora_variant and not any(layer.lora_bias.values())
        if plain and layer.get_base_layer().weight.dtype in (torch.bfloat16, torch.float16):
            layer.__class__ = HalfLinear
