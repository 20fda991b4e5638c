"""How the time of a GRPO step grows with the number of completions and with their length, as log-log slopes.

A pass is a slope of at most 1.1 for both. Every completion is as long as may be, and every row carries signal.
"""

from __future__ import annotations

import tempfile
from statistics import median
from typing import Any

import torch
from common import command_line, in_new_process, verdict, write
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
    parser = command_line("scaling", __doc__, "config", "dtype", "threads")
    parser.add_argument("--completions", type=int, nargs="+", default=[32, 96, 256], help="in groups of 8")
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 48, 128], help="of 32 completions")
    parser.add_argument("--length", type=int, default=16, help="while the number of completions grows")
    parser.add_argument("--steps", type=int, default=1, help="of each process that count, after one that does not")
    options = parser.parse_args()
    cases = {
        "completions": [(n, n // 8, options.length) for n in options.completions],
        "length": [(n, 4, n) for n in options.lengths],
    }
    result: dict[str, Any] = {"bar": BAR}
    for name, rows in cases.items():
        sizes, found = [], []
        for size, prompts, length in rows:
            arm = Arm(
                name=OURS,
                config=options.config,
                dtype=options.dtype,
                forced_signal=True,
                full_length=True,
                max_completion_length=length,
                checkpointing=False,
                warmup=1,
                steps=options.steps,
                threads=options.threads,
            )
            sizes.append(size)
            found.append(in_new_process(measure, arm, prompts))
            title = f"A step by {name}"
            result[name] = {"sizes": sizes, "steps": found}
            if len(sizes) > 1:
                slopes = {c: slope(sizes, [median(f[c]) for f in found]) for c in ("seconds", "cpu_seconds")}
                result[name]["slope"] = slopes
                title += f": slope {slopes['seconds']} (CPU {slopes['cpu_seconds']}); bar of {BAR} "
                title += verdict(slopes["seconds"], BAR)
            write(options.output, result, [table(title, sizes, found)])


if __name__ == "__main__":
    main()
