"""The runs of a sweep on TensorBoard's HPARAMS page."""

from __future__ import annotations

from pathlib import Path

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from lightning_rlvr.report.pass_at_k import by_problem
from lightning_rlvr.report.results import SweepResults, macro


def write(results: SweepResults, folder: Path) -> None:
    """Leave an event file in ``<folder>/<arm>-seed<seed>`` for each run: what tells it apart, and what came out.

    Columns are the arm, the seed and the settings in which arms differ; metrics are macro pass@k in percent
    (``accuracy`` is pass@1), mean tokens of a sample, and the tokens, seconds and FLOPs of the training.
    """
    passes = macro(by_problem(results.samples)).rename(columns={1: "accuracy"})
    passes.columns = [name if name == "accuracy" else f"pass@{name}" for name in passes.columns]
    runs = results.samples.groupby(["arm", "seed"], observed=True)["tokens"].mean().to_frame("tokens")
    used = results.steps.groupby(["arm", "seed"])[["sampled_tokens", "seconds", "flops"]].max()
    names = dict.fromkeys(name for settings in results.settings.values() for name in settings)
    for row in passes.join(runs).join(used).reset_index().to_dict("records"):
        arm, seed = str(row.pop("arm")), int(row.pop("seed"))
        columns = {"arm": arm, "seed": seed} | {name: results.settings[arm].get(name, "") for name in names}
        metrics = {f"sweep/{name}": float(value) for name, value in row.items()}
        with SummaryWriter(str(folder / f"{arm}-seed{seed}")) as writer:
            for summary in hparams(columns, metrics):
                writer.file_writer.add_summary(summary)
            for name, value in metrics.items():
                writer.add_scalar(name, value)
