"""How the time of a GRPO step grows with the number of completions and with their length, as log-log slopes.

A pass is a slope of at most 1.1 for both. Every completion is as long as may be, and every row carries signal.
"""

from __future__ import annotations

import argparse
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch
from common import write
from rich.table import Table
from step_vs_trl import OURS, Arm, Meter, StepMeter, configured

from lightning_rlvr.cli import quiet_console

BAR = 1.1


def measure(arm: Arm, prompts: int) -> dict[str, list[float]]:
    """Wall and processor seconds of each step in this process, which must be a new one."""
    quiet_console()
    meter = Meter(arm)
    with tempfile.TemporaryDirectory() as folder:
        cli = configured(arm, meter, folder, data__prompts_per_step=prompts)
        cli.trainer.callbacks.append(StepMeter(meter))
        cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    columns: dict[str, list[float]] = meter.result()["columns"]
    return columns


def slope(sizes: list[float], seconds: list[float]) -> float:
    """Least-squares slope of log seconds over log sizes: 1 where time grows as size does."""
    x, y = torch.tensor([sizes, seconds], dtype=torch.float64).log()
    x = x - x.mean()
    return round(float(x @ y / (x @ x)), 2)


def table(title: str, sizes: list[int], found: list[dict[str, list[float]]]) -> Table:
    """One row for each size, medians over steps."""
    result = Table(title=title)
    for name in ("size", "s", "CPU s", "rollout s"):
        result.add_column(name, justify="right")
    for size, columns in zip(sizes, found, strict=True):
        cells = [f"{median(columns[name]):.2f}" for name in ("seconds", "cpu_seconds", "rollout_seconds")]
        result.add_row(str(size), *cells)
    return result


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--completions", type=int, nargs="+", default=[32, 64, 128, 256], help="in groups of 8")
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 64, 128, 256], help="of 32 completions")
    parser.add_argument("--length", type=int, default=32, help="while the number of completions grows")
    parser.add_argument("--dtype", default="auto", choices=("auto", "bfloat16", "float32"))
    parser.add_argument("--steps", type=int, default=2, help="of each process that count, after one that does not")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "scaling.json")
    options = parser.parse_args()
    cases = {
        "completions": [(n, n // 8, options.length) for n in options.completions],
        "length": [(n, 4, n) for n in options.lengths],
    }
    result: dict[str, Any] = {"bar": BAR}
    tables = []
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as fresh:
        for name, rows in cases.items():
            found = []
            for _, prompts, length in rows:
                arm = Arm(
                    name=OURS,
                    dtype=options.dtype,
                    forced_signal=True,
                    full_length=True,
                    max_completion_length=length,
                    checkpointing=False,
                    warmup=1,
                    steps=options.steps,
                    threads=options.threads,
                )
                found.append(fresh.submit(measure, arm, prompts).result())
            sizes = [size for size, *_ in rows]
            slopes = {c: slope(sizes, [median(f[c]) for f in found]) for c in ("seconds", "cpu_seconds")}
            verdict = "met" if slopes["seconds"] <= BAR else "missed"
            title = (
                f"A step by {name}: slope {slopes['seconds']} (CPU {slopes['cpu_seconds']}); bar of {BAR} {verdict}"
            )
            result[name] = {"sizes": sizes, "steps": found, "slope": slopes}
            tables.append(table(title, sizes, found))
    write(options.output, result, tables)


if __name__ == "__main__":
    main()
