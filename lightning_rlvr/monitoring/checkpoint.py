"""How a run is saved: atomically, at an interval and at the end, with an adapter that plain peft loads."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, Checkpoint
from typing_extensions import override

from lightning_rlvr.checks import require
from lightning_rlvr.module import RLVRModule
from lightning_rlvr.monitoring.run_folder import run_folder
from lightning_rlvr.plugins import find_all


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its place and moves it there, so that a full disk never costs the previous one."""

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        for name, state in checkpoint.get("callbacks", {}).items():
            check_state(name, state)
        target = Path(path)
        partial = target.with_name(f".{target.name}.partial")
        try:
            super().save_checkpoint(checkpoint, partial, storage_options)
            partial.replace(target)
        except OSError as error:
            partial.unlink(missing_ok=True)
            message = f"could not save the checkpoint ({error.strerror or error}); earlier ones are intact"
            raise OSError(error.errno, message, str(path)) from error


def check_state(name: str, state: Any) -> None:
    """Refuse the state of a plug-in that could be saved but never loaded.

    Raises:
        TypeError: It holds something else than tensors and plain Python.

    Example:
        >>> check_state("MyCredit", {"seen": {1, 2}, "mean": torch.zeros(2)})
        >>> import numpy
        >>> check_state("MyCredit", {"mean": numpy.zeros(2)})
        Traceback (most recent call last):
            ...
        TypeError: the state of MyCredit must hold tensors and plain Python only, got {'mean': array([0., 0.])}
    """
    saved = BytesIO()
    torch.save(state, saved)
    saved.seek(0)
    try:
        torch.load(saved, weights_only=True)
    except UnpicklingError as error:
        raise TypeError(f"the state of {name} must hold tensors and plain Python only, got {state!r}") from error


class RunCheckpoint(Checkpoint):
    """Saves `checkpoints/last.ckpt` every few optimizer steps and at the end, then the trained weights as a folder.

    Args:
        every_n_steps: Optimizer steps between two saves.
        keep_all: Also keep a checkpoint of each save, `step=N.ckpt`.
        save_adapter: At the end write `adapter/`, which plain peft loads (the whole model when there is no adapter).
        save_merged: At the end write `merged/`, which plain transformers loads.
    """

    def __init__(
        self, every_n_steps: int = 20, keep_all: bool = False, save_adapter: bool = True, save_merged: bool = False
    ) -> None:
        require(every_n_steps >= 1, "checkpoint.every_n_steps", ">= 1", every_n_steps)
        self.every_n_steps = every_n_steps
        self.keep_all = keep_all
        self.save_adapter = save_adapter
        self.save_merged = save_merged
        self._saved_step = 0

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for plugin in find_all(trainer, Callback):
            check_state(plugin.state_key, plugin.state_dict())

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._saved_step = trainer.global_step

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step - self._saved_step >= self.every_n_steps:
            self._save(trainer)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        folder = run_folder(trainer)
        if folder is None or not isinstance(pl_module, RLVRModule):
            return
        if trainer.global_step > self._saved_step:
            self._save(trainer)
        if trainer.is_global_zero and self.save_adapter:
            pl_module.policy.save(folder / "adapter")
        if trainer.is_global_zero and self.save_merged:
            pl_module.policy.save(folder / "merged", merged=True)

    def _save(self, trainer: Trainer) -> None:
        folder = run_folder(trainer)
        if folder is None:
            return
        if self.keep_all:
            trainer.save_checkpoint(folder / "checkpoints" / f"step={trainer.global_step}.ckpt")
        trainer.save_checkpoint(folder / "checkpoints" / "last.ckpt")
        self._saved_step = trainer.global_step
