"""Trains SmolLM2-135M-Instruct by MCPO on two-term sums and shows what that did to held-out problems."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_rlvr.cli import RLVRCLI, quiet_console
from lightning_rlvr.messages import one_sentence_errors

CONFIG = "configs/experiment/sums_mcpo.yaml"


def quickstart(args: Sequence[str]) -> Path:
    """Evaluate, train, evaluate with the same seeds; print a table and plot the run.

    Args:
        args: Further command line arguments for ``rlvr fit``, after ``-c configs/experiment/sums_mcpo.yaml``.

    Returns:
        The run folder.
    """
    started = time.perf_counter()
    cli = RLVRCLI(["-c", CONFIG, *args], run=False)
    console = Console()
    console.print("[bold]Held-out problems, before training[/bold]")
    before = _held_out(cli)
    console.print(f"accuracy {before['eval/accuracy']:.1%}\n[bold]Training[/bold]")
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    console.print("[bold]Held-out problems, after training, with the same seeds[/bold]")
    after = _held_out(cli)
    problems = len(cli.datamodule.problem_ids["val"])
    folder = Path(cli.trainer.log_dir or ".")
    console.print(_table(before, after, problems, cli.model.evaluation_settings.num_samples))
    plot = _plot(folder, before["eval/accuracy"], after["eval/accuracy"])
    minutes = (time.perf_counter() - started) / 60
    console.print(
        f"{cli.trainer.global_step} optimizer steps, {cli.model.progress.sampled_tokens:,} sampled tokens, "
        f"{minutes:.1f} minutes\nplot         {plot}\nadapter      {folder / 'adapter'}\n"
        f"TensorBoard  .venv/bin/tensorboard --logdir {folder.parent.parent}",
        soft_wrap=True,
    )
    return folder


def _held_out(cli: RLVRCLI) -> dict[str, float]:
    cli.trainer.validate(cli.model, datamodule=cli.datamodule, verbose=False)
    return {name: float(value) for name, value in cli.trainer.callback_metrics.items() if name.startswith("eval/")}


def _table(before: Mapping[str, float], after: Mapping[str, float], problems: int, samples: int) -> Table:
    table = Table(title=f"{problems} held-out problems x {samples} samples, none of them trained on")
    for column in ("", "before", "after", "change"):
        table.add_column(column, justify="left" if not column else "right")
    accuracy = [run["eval/accuracy"] for run in (before, after)]
    errors = [100 * math.sqrt(a * (1 - a) / problems) for a in accuracy]
    shown = [f"{100 * a:.1f} +- {e:.1f}" for a, e in zip(accuracy, errors, strict=True)]
    table.add_row("accuracy, % (+- standard error)", *shown, f"{100 * (accuracy[1] - accuracy[0]):+.1f}")
    for name, label in (
        ("length", "tokens per completion"),
        ("truncated", "truncated, share"),
        ("no_answer", "without an answer, share"),
    ):
        values = [round(run[f"eval/{name}"], 2) for run in (before, after)]
        table.add_row(label, *(f"{value:.2f}" for value in values), f"{values[1] - values[0]:+.2f}")
    return table


def _plot(folder: Path, before: float, after: float) -> Path:
    from matplotlib.figure import Figure

    events = EventAccumulator(str(folder))
    events.Reload()
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    reward, length = figure.subplots(1, 2)
    for axes, tag, label in (
        (reward, "reward/mean", "reward in training"),
        (length, "completion/length", "tokens per completion"),
    ):
        scalars = events.Scalars(tag)
        steps, values = [s.step for s in scalars], [s.value for s in scalars]
        smooth = [sum(values[max(0, i - 4) : i + 1]) / len(values[max(0, i - 4) : i + 1]) for i in range(len(values))]
        axes.plot(steps, values, color="0.75", label="each step")
        axes.plot(steps, smooth, color="C0", label="mean of 5 steps")
        axes.set(xlabel="optimizer step", title=label)
        axes.spines[["top", "right"]].set_visible(False)
    last = events.Scalars("reward/mean")[-1].step
    reward.plot([0, last], [before, after], "o", color="C1", label="held-out accuracy")
    reward.set_ylim(0, 1)
    reward.legend(frameon=False)
    path = folder / "quickstart.png"
    figure.savefig(path, dpi=120)
    return path


if __name__ == "__main__":
    quiet_console()
    with one_sentence_errors():
        quickstart(sys.argv[1:])
