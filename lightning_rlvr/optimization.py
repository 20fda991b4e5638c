"""AdamW and the schedule of its learning rate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

from lightning_rlvr.settings import OptimizerSettings


def make_optimizer(
    weights: Iterable[nn.Parameter], settings: OptimizerSettings, max_steps: int
) -> tuple[AdamW, LambdaLR]:
    """The optimizer of ``weights`` and its schedule over ``max_steps`` optimizer steps.

    Example:
        >>> settings = OptimizerSettings(learning_rate=1.0, lr_scheduler="linear", warmup_steps=2)
        >>> optimizer, schedule = make_optimizer(nn.Linear(1, 1).parameters(), settings, max_steps=4)
        >>> [schedule.lr_lambdas[0](step) for step in range(5)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    optimizer = AdamW(
        weights,
        lr=settings.learning_rate,
        betas=(settings.adam_beta1, settings.adam_beta2),
        weight_decay=settings.weight_decay,
    )
    name = "constant_with_warmup" if settings.lr_scheduler == "constant" else settings.lr_scheduler
    schedule = get_scheduler(
        name, optimizer, num_warmup_steps=settings.warmup_steps, num_training_steps=max(1, max_steps)
    )
    return optimizer, cast(LambdaLR, schedule)


def use_settings_of_now(schedule: LambdaLR, settings: OptimizerSettings) -> None:
    """Replace what a checkpoint brought along: rate, betas and weight decay."""
    schedule.base_lrs = [settings.learning_rate] * len(schedule.base_lrs)
    for group, factor in zip(schedule.optimizer.param_groups, schedule.lr_lambdas, strict=True):
        group["initial_lr"] = settings.learning_rate
        group["lr"] = settings.learning_rate * factor(schedule.last_epoch)
        group["betas"] = (settings.adam_beta1, settings.adam_beta2)
        group["weight_decay"] = settings.weight_decay
