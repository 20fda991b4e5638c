"""One progress bar over rollouts, with what a person watches: reward, length, entropy, seconds."""

from __future__ import annotations

import sys
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from tqdm.auto import tqdm
from typing_extensions import override

from lightning_rlvr.module import RLVRModule


class StepProgress(ProgressBar):
    """A bar that counts rollout batches; a resumed run goes on where it stopped."""

    def __init__(self) -> None:
        super().__init__()
        self._bar: tqdm[Any] | None = None
        self._enabled = True

    @override
    def disable(self) -> None:
        self._enabled = False

    @override
    def enable(self) -> None:
        self._enabled = True

    def _open(self, label: str, total: float | None, initial: int = 0) -> None:
        self._close()
        if self._enabled:
            known = None if total is None or total == float("inf") else int(total)
            self._bar = tqdm(desc=label, total=known, initial=initial, dynamic_ncols=True, file=sys.stdout, leave=True)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if isinstance(pl_module, RLVRModule):
            updates = pl_module.loss_settings.updates_per_rollout
            total = trainer.max_steps // updates if trainer.max_steps > 0 else None
            self._open("training", total, pl_module.progress.rollouts)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._bar is not None:
            metrics = trainer.callback_metrics
            shown = {"reward": "reward/mean", "length": "completion/length", "entropy": "policy/entropy"}
            self._bar.set_postfix(
                {label: f"{float(metrics[tag]):.3g}" for label, tag in shown.items() if tag in metrics}, refresh=False
            )
            self._bar.update()

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._close()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._close()

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking and self._bar is None:
            self._open("held out", sum(trainer.num_val_batches))

    @override
    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if self._bar is not None and trainer.state.fn == "validate":
            self._bar.update()

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "validate":
            self._close()

    @override
    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._open("test", sum(trainer.num_test_batches))

    @override
    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if self._bar is not None:
            self._bar.update()

    @override
    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._close()
