"""The command line: `rlvr fit | validate | test` are LightningCLI; the other commands stand beside them."""

from __future__ import annotations

import logging
import re
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jsonargparse import _typehints
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import SIGTERMException
from rich.console import Console
from transformers.utils.logging import disable_progress_bar
from typing_extensions import override

from lightning_rlvr.calibration.base import CALIBRATORS, RewardCalibrator
from lightning_rlvr.calibration.zscore import ZScoreCalibrator
from lightning_rlvr.credit.base import CREDIT_ASSIGNERS, CreditAssigner
from lightning_rlvr.credit.uniform import UniformCredit
from lightning_rlvr.data.datamodule import PromptDataModule
from lightning_rlvr.evaluation.table import evaluation_table
from lightning_rlvr.explain import explain
from lightning_rlvr.messages import ExplainedErrors, explained, one_sentence_errors
from lightning_rlvr.module import RLVRModule
from lightning_rlvr.monitoring.checkpoint import AtomicCheckpointIO, RunCheckpoint
from lightning_rlvr.monitoring.files import replace_text
from lightning_rlvr.monitoring.ledger import RunLedger
from lightning_rlvr.monitoring.progress import StepProgress
from lightning_rlvr.monitoring.run_folder import RunFolder, RunLogger, run_folder, unused
from lightning_rlvr.monitoring.samples import SampleWriter
from lightning_rlvr.plugins import load_plugins
from lightning_rlvr.registry import class_path, with_class_paths

_DESCRIPTION = """Token-level credit for RLVR. The last value given for a setting wins, files and flags in the order of
the command line. `rlvr explain -c FILE ...` says in words what a configuration does, without loading the model;
`rlvr verify GOLD COMPLETION` and `rlvr verify FILE.jsonl` show what a verifier makes of completions. `rlvr sweep FILE`
runs paired ablations, and `rlvr report FOLDER` says whether a method won."""


def _start_afresh(parser_or_action: object, former: Any, value: Any) -> None:
    """A class that is named anew starts from its own defaults.

    jsonargparse would keep those settings of the former class whose names the new one shares: margin credit's
    thresholds, say, for entropy credit.
    """
    if former and "init_args" in former and former["class_path"] != value["class_path"]:
        former.pop("init_args")


@contextmanager
def _settings_of_former_class_dropped() -> Iterator[None]:
    kept = _typehints.discard_init_args_on_class_path_change
    _typehints.discard_init_args_on_class_path_change = _start_afresh
    try:
        yield
    finally:
        _typehints.discard_init_args_on_class_path_change = kept


class RunParser(ExplainedErrors, LightningArgumentParser):
    """Lightning's parser, with errors of one sentence."""

    short_flags = ("limit", "num_samples")


class SaveRunConfig(SaveConfigCallback):
    """Keeps the resolved configuration with the run; a resumed run adds its own beside the first.

    It is written once a checkpoint is loaded and the folder is found free: what is refused leaves no trace in it.
    An evaluation writes `config.validate.yaml` or `config.test.yaml`, over that of the one before.
    """

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Nothing yet: whatever is refused later leaves no trace."""

    @override
    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "validate":
            self.on_test_epoch_start(trainer, pl_module)

    @override
    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        folder = run_folder(trainer)
        if folder is not None:
            self._keep(trainer, folder / f"config.{'test' if trainer.testing else 'validate'}.yaml")

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        folder = run_folder(trainer)
        if folder is not None:
            self._keep(trainer, unused(folder / "config.yaml"))

    @rank_zero_only
    def _keep(self, trainer: Trainer, file: Path) -> None:
        text = self.parser.dump(self.config, skip_none=False, format="yaml")
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(file, text)
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                block = "".join(f"    {line}\n" for line in text.splitlines())
                logger.experiment.add_text("run/config", block, trainer.global_step)


class RLVRCLI(LightningCLI):
    """LightningCLI with calibrator, credit and checkpoint as keys of their own.

    A key of its own survives a second configuration file; an entry of `trainer.callbacks` does not.
    """

    def __init__(self, args: Sequence[str], run: bool = True) -> None:
        load_plugins()
        mode = {"parser_mode": "omegaconf+"}
        super().__init__(
            RLVRModule,
            PromptDataModule,
            save_config_callback=SaveRunConfig,
            seed_everything_default=0,
            parser_class=RunParser,
            parser_kwargs={"description": _DESCRIPTION, **mode, **{name: dict(mode) for name in self.subcommands()}},
            auto_configure_optimizers=False,
            args=expand_short_names(args),
            run=run,
        )

    @staticmethod
    @override
    def subcommands() -> dict[str, set[str]]:
        commands = LightningCLI.subcommands()
        return {name: commands[name] for name in ("fit", "validate", "test")}

    @override
    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        with _settings_of_former_class_dropped():
            self.config = parser.parse_args(args)

    @override
    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("--name", type=str, default="run", help="Name of the run: its folder below `runs_dir`.")
        parser.add_argument("--runs_dir", type=str, default="runs", help="Folder of all runs.")
        parser.add_lightning_class_args(RewardCalibrator, "calibrator", subclass_mode=True)
        parser.add_lightning_class_args(CreditAssigner, "credit", subclass_mode=True)
        parser.add_lightning_class_args(RunCheckpoint, "checkpoint")
        parser.add_lightning_class_args(SampleWriter, "samples")
        parser.set_defaults(
            {
                "calibrator": {"class_path": class_path(ZScoreCalibrator)},
                "credit": {"class_path": class_path(UniformCredit)},
            }
        )

    @override
    def instantiate_classes(self) -> None:
        try:
            super().instantiate_classes()
        except ValueError as error:
            raise ValueError(explained(str(error))) from error

    @override
    def _parse_ckpt_path(self) -> None:
        # Lightning would let the hyper-parameters of a checkpoint win over flags; ours hold none
        checkpoint = self.config[self.config.subcommand]["ckpt_path"] if "subcommand" in self.config else None
        if checkpoint is not None:
            _step_of(checkpoint)

    @override
    def before_instantiate_classes(self) -> None:
        checkpoint = self._get(self.config, "ckpt_path")
        name = self._get(self.config, "name")
        if not name or Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"`name` must be the name of a folder below `runs_dir`, got {name!r}")
        if checkpoint is not None and self.subcommand == "fit":
            step, last = _step_of(checkpoint), self._get(self.config, "trainer")["max_steps"]
            if 0 < last <= step:
                raise ValueError(
                    f"`trainer.max_steps` must be above {step}, the checkpoint's step, to go on from it, got {last}"
                )

    def after_fit(self) -> None:
        """Say where the run is."""
        folder = run_folder(self.trainer)
        if folder is not None and self.trainer.is_global_zero:
            print(f"run folder: {folder}")  # noqa: T201  # the command's output

    def after_validate(self) -> None:
        """Show what was found, and where it is kept."""
        module, folder = self.model, run_folder(self.trainer)
        if not module.results:
            raise ValueError("nothing was evaluated: `--limit` or `trainer.limit_*_batches` is 0")
        if self.trainer.is_global_zero:
            console = Console()
            console.print(evaluation_table(module.results, module.evaluator.conditions))
            if module.evaluator.num_reused:
                console.print(f"{module.evaluator.num_reused} samples were there already")
            for store in module.evaluator.stores.values():
                console.print(f"samples: {store.path}", soft_wrap=True)
            console.print(f"run folder: {folder}", soft_wrap=True)

    def after_test(self) -> None:
        """Show what was found, and where it is kept."""
        self.after_validate()

    @override
    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        settings = self._get(self.config_init, "trainer")
        if settings.get("logger") in (None, True):
            kwargs["logger"] = self._run_logger()
        plugins = settings.get("plugins") or []
        kwargs["plugins"] = [*(plugins if isinstance(plugins, list) else [plugins]), AtomicCheckpointIO()]
        bar = [] if settings.get("enable_progress_bar") is False else [StepProgress()]
        settings["callbacks"] = [*(settings.get("callbacks") or []), RunFolder(self.run_settings()), RunLedger(), *bar]
        return super().instantiate_trainer(**kwargs)

    @override
    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        kwargs = super()._prepare_subcommand_kwargs(subcommand)
        kwargs |= {"weights_only": True}  # a checkpoint of ours holds tensors and plain Python
        return kwargs if subcommand == "fit" else kwargs | {"verbose": False}  # there is a table of our own

    def run_settings(self) -> dict[str, Any]:
        """See the function of this name."""
        return run_settings((self.config[self.subcommand] if self.subcommand else self.config).as_dict())

    def _run_logger(self) -> RunLogger:
        """The logger of a new run, or that of the run which ``--ckpt_path`` continues or which is evaluated.

        An evaluation has a folder that its next call finds again: without a checkpoint, `initial`.
        """
        runs_dir, name = self._get(self.config, "runs_dir"), self._get(self.config, "name")
        checkpoint, fit = self._get(self.config, "ckpt_path"), self.subcommand in ("fit", None)
        if checkpoint is not None:
            run = Path(checkpoint).resolve().parent.parent
            if (run / "config.yaml").is_file():
                return RunLogger(
                    save_dir=str(run.parent.parent),
                    name=run.parent.name,
                    version=run.name,
                    purge_step=_step_of(checkpoint) + 1 if fit else None,
                )
        version = None if fit else "initial" if checkpoint is None else Path(checkpoint).stem
        return RunLogger(save_dir=runs_dir, name=name, version=version)


def run_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """What distinguishes runs in a whole configuration: everything but where and how they were run."""
    names = ("seed_everything", "model", "data", "calibrator", "credit")
    return {name: config[name] for name in names} | {"max_steps": config["trainer"]["max_steps"]}


def _step_of(checkpoint: str | Path) -> int:
    if not Path(checkpoint).is_file():
        raise ValueError(f"`ckpt_path` must be a checkpoint file, got {str(checkpoint)!r}")
    try:
        saved = torch.load(checkpoint, weights_only=True, map_location="cpu")
        if missing := {"pytorch-lightning_version", "state_dict", "progress", "random_states"} - saved.keys():
            raise KeyError(f"no {', '.join(sorted(missing))}")
        return int(saved["global_step"])
    except Exception as error:  # torch raises whatever the bytes of another file lead to
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"`ckpt_path` must be a checkpoint that a run saved, got {str(checkpoint)!r} "
            f"({type(error).__name__}: {reason})"
        ) from error


_SHORT_FLAGS = {
    subcommand: {"--num_samples": "--model.evaluation.num_samples", "--limit": limit}
    for subcommand, limit in (("validate", "--data.val_problems"), ("test", "--data.test_problems"))
}


def expand_short_names(args: Sequence[str]) -> list[str]:
    """Replace registry names after ``--calibrator`` and ``--credit`` by class paths, short flags by whole ones.

    Raises:
        ValueError: No plug-in has that name; the message lists the choices.

    Example:
        >>> expand_short_names(["--credit", "uniform", "--calibrator=x.yaml"])
        ['--credit', 'lightning_rlvr.credit.uniform.UniformCredit', '--calibrator=x.yaml']
        >>> expand_short_names(["test", "--num_samples", "4", "--limit=50"])
        ['test', '--model.evaluation.num_samples', '4', '--data.test_problems=50']
    """
    short = _SHORT_FLAGS.get(args[0], {}) if args else {}
    parts = [arg.partition("=") for arg in args]
    whole = [short.get(flag, flag) + equals + value for flag, equals, value in parts]
    return with_class_paths(whole, {"--calibrator": CALIBRATORS, "--credit": CREDIT_ASSIGNERS})


def quiet_console() -> None:
    """Silence what libraries print about choices that this project makes on purpose."""
    disable_progress_bar()
    for message in (
        r"Found \d+ module\(s\) in eval mode",  # dropout is off for life
        r"`isinstance\(treespec, LeafSpec\)` is deprecated",
        r"The `?\w*_dataloader`? does not have many workers",
        r"`weights_only` was not set",
        r"It is recommended to use `self.log\(.*sync_dist=True",  # all that is logged is reduced over ranks already
    ):
        warnings.filterwarnings("ignore", message=message)
    for name in (
        "lightning.pytorch.utilities.rank_zero",
        "lightning.fabric.utilities.seed",
        "lightning.pytorch.trainer.connectors.checkpoint_connector",
    ):
        logging.getLogger(name).addFilter(lambda record: not _ADVERTISED.search(record.getMessage()))


_ADVERTISED = re.compile(r"litlogger|TPU available|Seed set to|`weights_only` was not set|`Trainer.fit` stopped")


def main(args: Sequence[str]) -> None:
    """Run ``rlvr`` with these arguments: ``fit``, ``validate``, ``test`` or ``explain`` first, or ``--help``."""
    quiet_console()
    with one_sentence_errors():
        try:
            if args[0] == "explain":
                print(explain(RLVRCLI(args[1:], run=False)))  # noqa: T201  # the command's output
            else:
                RLVRCLI(args)
        except MisconfigurationException as error:
            raise ValueError(str(error)) from error
        except SIGTERMException:
            sys.exit(128 + signal.SIGTERM)
