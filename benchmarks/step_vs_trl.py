"""Seconds and memory of a GRPO step beside TRL's GRPOTrainer: same model, prompts, rewards and work, same machine.

A pass is, beside the faster of TRL's arms, a step in 1/4 of its time with natural rewards and in 1/3 with forced ones,
in 1/4 of its memory. `--max-completion-length 64 256` measures all four cases and takes two hours.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch
from common import (
    command_line,
    exact_rewards,
    forced_rewards,
    in_new_process,
    peak_resident,
    shipped_run,
    verdict,
    write,
)
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.cli import LightningCLI
from rich.table import Table

from lightning_rlvr.checks import require_package

OURS = "lightning_rlvr"
BARS = {"natural": 4.0, "forced": 3.0}
"""Rewards -> how many times faster than TRL a step has to be."""
MEMORY_BAR = 4.0
"""How many times as much memory TRL has to take."""
NEVER = -1
"""An id that no token has: completions that only it can end are all as long as the budget."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One side of the comparison and what it is told."""

    name: str
    config: Path
    dtype: str
    forced_signal: bool
    full_length: bool
    max_completion_length: int
    checkpointing: bool
    warmup: int
    steps: int
    threads: int


class Meter:
    """Seconds, tokens and memory of each step, read in the same way on both sides."""

    def __init__(self, arm: Arm) -> None:
        torch.set_num_threads(arm.threads)
        self.arm = arm
        self.dtype = arm.dtype
        self.prompts: list[list[str]] = []
        names = ("seconds", "cpu_seconds", "rollout_seconds", "tokens", "rows")
        self.columns: dict[str, list[float]] = {name: [] for name in names}
        self._reward = 0.0

    def reward(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        answer: Sequence[str],
        **_: object,
    ) -> list[float]:
        """The reward function of both sides; it is called when sampling has just ended."""
        self.columns["rollout_seconds"].append(time.perf_counter() - self._last)
        self.columns["tokens"].append(sum(map(len, completion_ids)))
        self.prompts.append(list(dict.fromkeys(prompts)))
        rewards = forced_rewards(len(prompts)) if self.arm.forced_signal else exact_rewards(completions, answer)
        self._reward += sum(rewards) / len(rewards)
        return rewards

    def start(self) -> None:
        """Training is about to begin: everything is loaded."""
        gc.collect()
        self._resident = psutil.Process().memory_info().rss
        self._loading_peak = peak_resident()
        self._last, self._last_cpu = time.perf_counter(), time.process_time()

    def step_ended(self, rows: int) -> None:
        """A step has ended, in which ``rows`` completions went through the training forward."""
        now, now_cpu = time.perf_counter(), time.process_time()
        self.columns["seconds"].append(now - self._last)
        self.columns["cpu_seconds"].append(now_cpu - self._last_cpu)
        self.columns["rows"].append(rows)
        self._last, self._last_cpu = now, now_cpu

    def result(self) -> dict[str, Any]:
        """What is reported; warm-up steps count for the peak memory only."""
        return {
            "dtype": self.dtype,
            "prompts": self.prompts,
            "columns": {name: [round(v, 2) for v in c[self.arm.warmup :]] for name, c in self.columns.items()},
            "reward": round(self._reward / len(self.prompts), 3),
            "memory_gib": {
                name: round(value / 2**30, 3)
                for name, value in (
                    ("peak", peak_resident()),
                    ("loading_peak", self._loading_peak),
                    ("before_training", self._resident),
                )
            },
        }


class StepMeter(Callback):
    """Reads the meter at the steps of our trainer."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: D102
        if self.meter.arm.full_length:
            pl_module.policy.eos_token_ids = (NEVER,)
        self.meter.dtype = str(pl_module.policy.model.dtype).removeprefix("torch.")
        self.meter.start()

    def on_train_batch_end(  # noqa: D102
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.meter.step_ended(int(outputs["record"].forwarded.sum()))


def configured(arm: Arm, meter: Meter, folder: str, **settings: object) -> LightningCLI:
    """The shipped run of this arm; rewards that mean nothing are not learned, so that lengths do not drift."""
    frozen = {"model__optimizer__learning_rate": 1e-12} if arm.forced_signal else {}
    return shipped_run(
        folder,
        meter.reward,
        config=arm.config,
        dtype=arm.dtype,
        max_steps=arm.warmup + arm.steps,
        model__rollout__max_completion_length=arm.max_completion_length,
        model__policy__gradient_checkpointing=arm.checkpointing,
        **frozen,
        **settings,
    )


def run_ours(arm: Arm, folder: str) -> dict[str, Any]:
    """The shipped configuration, through the shipped command line."""
    meter = Meter(arm)
    cli = configured(arm, meter, folder)
    cli.trainer.callbacks.append(StepMeter(meter))
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    return meter.result()


def run_trl(arm: Arm, folder: str) -> dict[str, Any]:
    """GRPOTrainer with the settings of the shipped configuration, on the prompts that it would see."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from lightning_rlvr.policy.loading import locate

    meter = Meter(arm)
    cli = configured(arm, meter, folder)
    policy, rollout, optimizer = cli.model.policy_settings, cli.model.rollout_settings, cli.model.optimizer_settings
    rows, accumulation = map(int, arm.name.split()[1].split("x"))
    assert policy.lora is not None

    class TRLMeter(TrainerCallback):
        def on_train_begin(self, *_: object, **__: object) -> None:
            meter.start()

        def on_step_end(self, *_: object, **__: object) -> None:
            meter.step_ended(rows * accumulation)

    cli.trainer.strategy.connect(cli.model)
    cli.datamodule.trainer = cli.trainer
    cli.datamodule.setup("fit")
    batches = cli.datamodule.train_dataloader()
    trainer = GRPOTrainer(
        model=locate(policy),
        reward_funcs=meter.reward,
        args=GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=arm.dtype == "bfloat16",
            model_init_kwargs={"dtype": arm.dtype, "attn_implementation": policy.attn_implementation},
            gradient_checkpointing=arm.checkpointing,
            per_device_train_batch_size=rows,
            gradient_accumulation_steps=accumulation,
            num_generations=rollout.num_generations,
            max_completion_length=rollout.max_completion_length,
            generation_kwargs={"min_new_tokens": rollout.max_completion_length} if arm.full_length else None,
            temperature=rollout.temperature,
            loss_type="grpo",
            scale_rewards="group",
            beta=0.0,
            use_vllm=False,
            learning_rate=optimizer.learning_rate,
            weight_decay=optimizer.weight_decay,
            max_grad_norm=optimizer.max_grad_norm,
            lr_scheduler_type="constant",
            max_steps=arm.warmup + arm.steps,
            shuffle_dataset=False,
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(
            [
                {"prompt": prompt, "answer": columns["answer"]}
                for batch in batches
                for prompt, columns in zip(batch.prompts, batch.columns, strict=True)
            ]
        ),
        callbacks=[TRLMeter()],
        peft_config=LoraConfig(
            r=policy.lora.rank,
            lora_alpha=policy.lora.alpha,
            target_modules=policy.lora.target_modules,
            task_type="CAUSAL_LM",
        ),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return meter.result()


def measure(arm: Arm) -> dict[str, Any]:
    """Run an arm in this process, which must be a new one: its peak memory counts from the start."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory() as folder:
        return (run_ours if arm.name == OURS else run_trl)(arm, folder)


def merged(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Rounds of one arm: all steps, and the largest memory."""
    columns = {name: [v for r in rounds for v in r["columns"][name]] for name in rounds[0]["columns"]}
    return {
        **columns,
        "reward": [r["reward"] for r in rounds],
        "memory_gib": {name: max(r["memory_gib"][name] for r in rounds) for name in rounds[0]["memory_gib"]},
        "median_seconds": round(median(columns["seconds"]), 2),
        "median_cpu_seconds": round(median(columns["cpu_seconds"]), 2),
        "median_seconds_per_1000_tokens": round(
            median(1000 * s / t for s, t in zip(columns["seconds"], columns["tokens"], strict=True)), 2
        ),
    }


def compare(arms: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Ours beside the fastest of TRL's settings, and beside the smallest; empty before any of them has run."""
    ours = arms[OURS]
    others = {name: arm for name, arm in arms.items() if name != OURS}
    if not others:
        return {}
    fastest = min(others, key=lambda name: others[name]["median_seconds"])
    smallest = min(others, key=lambda name: others[name]["memory_gib"]["peak"])
    growth = {name: arm["memory_gib"]["peak"] - arm["memory_gib"]["before_training"] for name, arm in arms.items()}
    return {
        "trl_fastest": fastest,
        "trl_smallest": smallest,
        **{
            f"{name}_ratio_to_trl_fastest": round(others[fastest][name] / ours[name], 2)
            for name in ("median_seconds", "median_cpu_seconds", "median_seconds_per_1000_tokens")
        },
        **{
            f"{name}_ratio_to_trl_{kind}": round(values[arm] / values[OURS], 2)
            for kind, arm in (("fastest", fastest), ("smallest", smallest))
            for name, values in (
                ("peak", {name: arm["memory_gib"]["peak"] for name, arm in arms.items()}),
                ("growth", growth),
            )
        },
    }


def table(title: str, arms: dict[str, dict[str, Any]]) -> Table:
    """One row for each arm, medians over steps; the ratios are to our row."""
    result = Table(title=title)
    for name in (
        "",
        "s / step",
        "CPU s / step",
        "rollout s",
        "rows",
        "tokens",
        "s / 1000 tokens",
        "peak GiB",
        "growth GiB",
    ):
        result.add_column(name, justify="right" if name else "left")
    ours = arms[OURS]
    for name, arm in arms.items():
        memory = arm["memory_gib"]
        slower = arm["median_seconds"] / ours["median_seconds"]
        busier = arm["median_cpu_seconds"] / ours["median_cpu_seconds"]
        longer = arm["median_seconds_per_1000_tokens"] / ours["median_seconds_per_1000_tokens"]
        larger = memory["peak"] / ours["memory_gib"]["peak"]
        result.add_row(
            name,
            f"{arm['median_seconds']:.1f} ({slower:.2f}x)",
            f"{arm['median_cpu_seconds']:.1f} ({busier:.2f}x)",
            f"{median(arm['rollout_seconds']):.1f}",
            f"{median(arm['rows']):.0f}",
            f"{median(arm['tokens']):.0f}",
            f"{arm['median_seconds_per_1000_tokens']:.1f} ({longer:.2f}x)",
            f"{memory['peak']:.2f} ({larger:.2f}x)",
            f"{memory['peak'] - memory['before_training']:.2f}",
        )
    return result


def bars(cases: list[dict[str, Any]]) -> Table:
    """One row for each case that TRL has run: the ratios, and whether they reach their bars."""
    result = Table(title="TRL over ours, and bars")
    for name in ("rewards", "tokens", "time", "memory of the fastest", "of the smallest"):
        result.add_column(name, justify="right" if name != "rewards" else "left")
    for case in cases:
        if ratios := case["comparison"]:
            rewards = case["rewards"]
            cells = [
                f"{ratios[name]:.2f}x, {bar:g} {verdict(ratios[name], bar, at_least=True)}"
                for name, bar in (
                    ("median_seconds_ratio_to_trl_fastest", BARS[rewards]),
                    ("peak_ratio_to_trl_fastest", MEMORY_BAR),
                    ("peak_ratio_to_trl_smallest", MEMORY_BAR),
                )
            ]
            result.add_row(rewards, str(case["max_completion_length"]), *cells)
    return result


def same_prompts(rounds: dict[str, list[dict[str, Any]]]) -> None:
    """Refuse to compare steps on different prompts.

    Raises:
        RuntimeError: The arms did not see the same ones.
    """
    if len({str(result["prompts"]) for results in rounds.values() for result in results}) > 1:
        raise RuntimeError("the two sides did not see the same prompts: their times cannot be compared")


def main() -> None:
    """Command line."""
    parser = command_line("step_vs_trl", __doc__, "config", "dtype", "threads")
    parser.add_argument("--rewards", nargs="+", default=list(BARS), choices=BARS, help="forced: no row can be skipped")
    parser.add_argument("--max-completion-length", type=int, nargs="+", default=[64], metavar="TOKENS")
    parser.add_argument("--full-length", action="store_true", help="no end token: all are as long as may be")
    parser.add_argument("--checkpointing", action="store_true", help="recompute layers in the backward on both sides")
    parser.add_argument("--rounds", type=int, default=2, help="new processes for each arm, alternated")
    parser.add_argument("--warmup", type=int, default=1, help="steps of each process that do not count")
    parser.add_argument("--steps", type=int, default=3, help="steps of each process that count")
    parser.add_argument("--trl", nargs="*", default=["8x4", "32x1"], help="batch x accumulation of TRL's arms")
    options = parser.parse_args()
    if options.trl:
        require_package("trl", "trl", "bench", "step_vs_trl.py")
    names = [OURS, *(f"trl {setting}" for setting in options.trl)]
    dtype = options.dtype
    cases: list[dict[str, Any]] = []
    for length, rewards in product(options.max_completion_length, options.rewards):
        rounds: dict[str, list[dict[str, Any]]] = {}
        cases.append({"rewards": rewards, "max_completion_length": length})
        for _, name in product(range(options.rounds), names):
            arm = Arm(
                name=name,
                config=options.config,
                dtype=dtype,
                forced_signal=rewards == "forced",
                full_length=options.full_length,
                max_completion_length=length,
                checkpointing=options.checkpointing,
                warmup=options.warmup,
                steps=options.steps,
                threads=options.threads,
            )
            rounds.setdefault(name, []).append(in_new_process(measure, arm))
            same_prompts(rounds)
            dtype = rounds[OURS][0]["dtype"]
            arms = {name: merged(results) for name, results in rounds.items()}
            cases[-1] |= {"arms": arms, "comparison": compare(arms)}
            lengths = f"{length} tokens " + ("each" if options.full_length else "at most")
            title = f"One step of {options.config.stem}, {lengths}, {rewards} rewards, {dtype}"
            settings = {name: value for name, value in vars(options).items() if name not in ("config", "output")}
            content = {"config": options.config.name, "settings": settings | {"dtype": dtype}, "cases": cases}
            write(options.output, content, [table(title, arms), bars(cases)])


if __name__ == "__main__":
    main()
