"""What a run leaves behind besides its logs: environment, problem ids and hyper-parameters."""

from __future__ import annotations

import json
import math
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from torch.utils.tensorboard.summary import hparams
from typing_extensions import override

from lightning_rlvr.module import RLVRModule
from lightning_rlvr.monitoring.files import flat_settings, replace_text

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


FINAL_REWARD, FINAL_ACCURACY = "run/final_reward", "run/final_accuracy"
"""Mean reward over the last tenth of the rollouts, and accuracy of the last validation: columns of HPARAMS."""


def run_folder(trainer: Trainer) -> Path | None:
    """Where the run writes; None without a logger. A collective call: every rank has to make it."""
    log_dir = trainer.log_dir
    return None if trainer.logger is None or log_dir is None else Path(log_dir)


class RunFolder(Callback):
    """Writes ``environment.json``, when training starts also ``problems.json`` and the run's row of HPARAMS.

    Args:
        settings: Nested configuration of the run, the columns of TensorBoard's HPARAMS page.
    """

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        self.settings = settings or {}
        self._rewards: list[float] = []
        self._accuracy: float | None = None

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"rewards": self._rewards, "accuracy": self._accuracy}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._rewards, self._accuracy = list(state_dict["rewards"]), state_dict["accuracy"]

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for logger in trainer.loggers:
            if isinstance(logger, RunLogger):
                logger.void_later_steps()
        folder = run_folder(trainer)
        if not trainer.is_global_zero or folder is None or not isinstance(pl_module, RLVRModule):
            return
        folder.mkdir(parents=True, exist_ok=True)
        data = pl_module.datamodule
        _write_json(unused(folder / "environment.json"), environment() | {"data_hash": data.data_hash})
        chosen = {"data_seed": data.data_seed, "data_hash": data.data_hash, "cleaning": data.cleaning}
        _write_json(folder / "problems.json", chosen | {"ids": data.problem_ids})
        experiment, start, _ = self._hparams()
        for writer in _writers(trainer):
            writer.add_summary(experiment)
            writer.add_summary(start)

    @override
    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        folder = run_folder(trainer)
        if trainer.is_global_zero and folder is not None and isinstance(pl_module, RLVRModule):
            folder.mkdir(parents=True, exist_ok=True)
            data, command = pl_module.datamodule, "test" if trainer.testing else "validate"
            _write_json(folder / f"environment.{command}.json", environment() | {"data_hash": data.data_hash})
            chosen = {"data_hash": data.data_hash, "cleaning": data.cleaning, "ids": data.problem_ids}
            _write_json(folder / f"problems.{command}.json", chosen)

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "validate":
            self.on_test_start(trainer, pl_module)

    @override
    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if isinstance(pl_module, RLVRModule) and pl_module.results and trainer.is_global_zero:
            for logger in trainer.loggers:
                if isinstance(logger, TensorBoardLogger):
                    table, step = markdown(pl_module.results), pl_module.evaluator.conditions["step"]
                    logger.experiment.add_text("eval/results", table, step)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._rewards.append(float(trainer.callback_metrics["reward/mean"]))

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "validate":
            self.on_test_end(trainer, pl_module)
        elif not trainer.sanity_checking:
            self._accuracy = float(trainer.callback_metrics["eval/accuracy"])

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        last = [reward for reward in self._rewards[-math.ceil(len(self._rewards) / 10) :] if not math.isnan(reward)]
        final = {FINAL_REWARD: sum(last) / len(last)} if last else {}
        if self._accuracy is not None:
            final[FINAL_ACCURACY] = self._accuracy
        for logger in trainer.loggers:
            logger.log_metrics(final, step=trainer.global_step)
        if trainer.is_global_zero:
            *_, end = self._hparams()
            for writer in _writers(trainer):
                writer.add_summary(end)

    def _hparams(self) -> tuple[Any, Any, Any]:
        """Summaries: which columns there are, this run's settings, its end; metrics are columns without a value."""
        columns = dict.fromkeys((FINAL_REWARD, FINAL_ACCURACY), 0.0)
        summaries: tuple[Any, Any, Any] = hparams(flat_settings(self.settings), columns)
        return summaries


def unused(path: Path) -> Path:
    """The path, or the first of ``name.resume-1.suffix``, ``name.resume-2.suffix``, ... that does not exist yet.

    Example:
        >>> unused(Path("no_such_folder/config.yaml")).name
        'config.yaml'
    """
    number, free = 0, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.stem}.resume-{number}{path.suffix}")
    return free


def _writers(trainer: Trainer) -> list[Any]:
    return [
        logger.experiment._get_file_writer() for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)
    ]


def markdown(results: Mapping[str, Mapping[str, float]]) -> str:
    """A table of numbers: a column for each group, a row for each name.

    Example:
        >>> print(markdown({"a": {"accuracy": 0.5}, "b": {"accuracy": 0.25}}))
        |  | a | b |
        | --- | --- | --- |
        | accuracy | 0.5 | 0.25 |
    """
    header = ["", *results]
    names = dict.fromkeys(name for values in results.values() for name in values)
    rows = [[name, *(f"{values[name]:.4g}" for values in results.values())] for name in names]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows))


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
        "git_dirty": None
        if (changes := _git("status", "--porcelain", "--untracked-files=no")) is None
        else bool(changes),
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
    replace_text(path, json.dumps(content, indent=2) + "\n")


class RunLogger(TensorBoardLogger):
    """TensorBoard under ``<save_dir>/<name>/version_N``, where N is claimed by creating the folder.

    Several runs started at the same moment hence never share a folder.

    Args:
        save_dir: Folder of all runs.
        name: Name of the run.
        version: A fixed version instead; a resumed run continues its own.
        purge_step: From this step on, what the folder's earlier files say is void: an interrupted run had gone
            further than the checkpoint that it resumes from.
    """

    def __init__(
        self,
        save_dir: str = "runs",
        name: str = "default",
        version: int | str | None = None,
        purge_step: int | None = None,
    ) -> None:
        super().__init__(save_dir=save_dir, name=name, version=version, default_hp_metric=False)
        self.purge_step = purge_step

    @rank_zero_only
    def void_later_steps(self) -> None:
        """Take back what went beyond the checkpoint, once it is loaded: a refused run must change nothing."""
        if self.purge_step is not None:
            writer = self.experiment._get_file_writer()
            writer.add_event(Event(step=self.purge_step, session_log=SessionLog(status=SessionLog.START)))

    @override
    @rank_zero_only
    def save(self) -> None:
        self.experiment.flush()  # and no hparams.yaml: config.yaml says it all

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
