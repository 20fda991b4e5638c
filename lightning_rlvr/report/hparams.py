"""The runs of a sweep on TensorBoard's HPARAMS page."""

from __future__ import annotations

from pathlib import Path

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from lightning_rlvr.report.pass_at_k import by_problem
from lightning_rlvr.report.results import SweepResults, macro


def write(results: SweepResults, folder: Path) -> None:
    """Leave an event file in ``<folder>/<arm>-seed<seed>`` for each run: what tells it apart, and what came out.

    Columns are the arm, the seed and the settings in which arms differ, each of one type, for TensorBoard cannot sort
    text among numbers: all text where any value is, and absent where the arm has no such setting. Metrics are macro
    pass@k in percent (``accuracy`` is pass@1), mean tokens of a sample, and tokens, seconds and FLOPs of the training.
    """
    passes = macro(by_problem(results.samples)).rename(columns={1: "accuracy"})
    passes.columns = [name if name == "accuracy" else f"pass@{name}" for name in passes.columns]
    runs = results.samples.groupby(["arm", "seed"], observed=True)["tokens"].mean().to_frame("tokens")
    used = results.steps.groupby(["arm", "seed"])[["sampled_tokens", "seconds", "flops"]].max()
    texts = {name for of_arm in results.settings.values() for name, value in of_arm.items() if isinstance(value, str)}
    for row in passes.join(runs).join(used).reset_index().to_dict("records"):
        arm, seed = str(row.pop("arm")), int(row.pop("seed"))
        settings = {name: str(value) if name in texts else value for name, value in results.settings[arm].items()}
        columns = {"arm": arm, "seed": seed} | settings
        metrics = {f"sweep/{name}": float(value) for name, value in row.items()}
        with SummaryWriter(str(folder / f"{arm}-seed{seed}")) as writer:
            for summary in hparams(columns, metrics):
                writer.file_writer.add_summary(summary)
            for name, value in metrics.items():
                writer.add_scalar(name, value)
