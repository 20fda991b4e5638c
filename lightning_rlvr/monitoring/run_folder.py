"""What a run leaves behind besides its logs: environment, problem ids and hyper-parameters; and how it is saved."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from typing_extensions import override

from lightning_rlvr.module import RLVRModule

_PACKAGES = (
    "lightning-rlvr",
    "torch",
    "lightning",
    "transformers",
    "peft",
    "jsonargparse",
    "math-verify",
    "reasoning-gym",
)


class RunFolder(Callback):
    """Writes ``environment.json`` and ``problems.json`` into the run folder when training starts."""

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        log_dir = trainer.log_dir  # a collective call: every rank makes it
        if not trainer.is_global_zero or log_dir is None or not isinstance(pl_module, RLVRModule):
            return
        folder = Path(log_dir)
        folder.mkdir(parents=True, exist_ok=True)
        data = pl_module.datamodule
        _write_json(folder / "environment.json", environment() | {"data_hash": data.data_hash})
        _write_json(folder / "problems.json", {"data_seed": data.data_seed, "ids": data.problem_ids})


def environment() -> dict[str, Any]:
    """Versions, commit and device of this process.

    Example:
        >>> environment()["python"].count(".")
        2
    """
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "command": sys.argv,
        "packages": {name: _version(name) for name in _PACKAGES},
        "git_commit": _git("rev-parse", "HEAD"),
        "git_dirty": bool(_git("status", "--porcelain")),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    folder = Path(__file__).parent
    try:
        result = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


class RunLogger(TensorBoardLogger):
    """TensorBoard under ``<save_dir>/<name>/version_N``, where N is claimed by creating the folder.

    Several runs started at the same moment hence never share a folder.

    Args:
        save_dir: Folder of all runs.
        name: Name of the run.
        version: A fixed version instead; a resumed run continues its own.
    """

    def __init__(self, save_dir: str = "runs", name: str = "default", version: int | str | None = None) -> None:
        super().__init__(save_dir=save_dir, name=name, version=version, default_hp_metric=False)

    @override
    def _get_next_version(self) -> int:
        if getattr(rank_zero_only, "rank", 0):  # the folder is that of rank 0, which broadcasts it
            return 0
        root = Path(self.root_dir)
        root.mkdir(parents=True, exist_ok=True)
        version = super()._get_next_version()
        while True:
            try:
                (root / f"version_{version}").mkdir()
            except FileExistsError:
                version += 1
            else:
                return version
