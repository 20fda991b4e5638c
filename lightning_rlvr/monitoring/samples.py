"""Writes a few completions of each logged step, with the credit of every token, to TensorBoard and to a file."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from typing_extensions import override

from lightning_rlvr.checks import require
from lightning_rlvr.module import RLVRModule
from lightning_rlvr.monitoring.files import replace_text
from lightning_rlvr.monitoring.run_folder import run_folder
from lightning_rlvr.record import StepRecord


class SampleWriter(Callback):
    """Sample completions as text, read-only.

    Args:
        every_n_steps: Optimizer steps between two samples; the first step is always written.
        num_samples: Completions each time: those of the highest and of the lowest advantages.
    """

    def __init__(self, every_n_steps: int = 10, num_samples: int = 4) -> None:
        require(every_n_steps >= 1, "samples.every_n_steps", ">= 1", every_n_steps)
        require(num_samples >= 1, "samples.num_samples", ">= 1", num_samples)
        self.every_n_steps = every_n_steps
        self.num_samples = num_samples
        self._last: int | None = None
        self._folder: Path | None = None

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._folder = run_folder(trainer)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        due = self._last is None or step - self._last >= self.every_n_steps
        if not (due and trainer.is_global_zero and isinstance(pl_module, RLVRModule)):
            return
        self._last = step
        rows = _chosen(outputs["record"], self.num_samples)
        samples = [_described(outputs["record"], row, pl_module) for row in rows]
        if self._folder is not None:
            folder = self._folder / "samples"
            folder.mkdir(parents=True, exist_ok=True)
            lines = "".join(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples)
            replace_text(folder / f"step_{step:06d}.jsonl", lines)
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                text = "\n\n---\n\n".join(_rendered(sample) for sample in samples)
                logger.experiment.add_text("samples/completions", text, step)


def _chosen(record: StepRecord, count: int) -> list[int]:
    """Rows with the largest positive and negative advantages, highest first."""
    order = record.advantages.argsort(descending=True, stable=True).tolist()
    best, worst = order[: (count + 1) // 2], order[::-1][: count // 2]
    return sorted({*best, *worst}, key=order.index)


def _described(record: StepRecord, row: int, module: RLVRModule) -> dict[str, Any]:
    collection, rollout = record.collection, record.rollout
    prompt = int(collection.prompt_index[row])
    verdict = collection.verdicts[row]
    length = int(collection.rollout.completion_mask[row].sum())
    ids = collection.rollout.completion_ids[row, :length].tolist()
    return {
        "problem_id": collection.prompts.problem_ids[prompt],
        "prompt": collection.prompts.prompts[prompt],
        "completion": collection.texts[row],
        "status": verdict.status,
        "answer": verdict.answer,
        "reason": verdict.reason,
        "reward": None if verdict.reward != verdict.reward else verdict.reward,
        "advantage": float(record.advantages[row]),
        "truncated": bool(rollout.truncated[row]),
        "tokens": [module.tokenizer.decode([token]) for token in ids],
        "token_advantages": [round(value, 5) for value in record.token_advantages[row, :length].tolist()],
    }


def _rendered(sample: dict[str, Any]) -> str:
    """Markdown in which nothing of prompt or completion is markup, with a table of the tokens and their credit."""
    answer = "none" if sample["answer"] is None else sample["answer"]
    head = (
        f"**{sample['status']}**, reward {sample['reward']}, advantage {sample['advantage']:+.3f}, "
        f"{len(sample['tokens'])} tokens{', truncated' if sample['truncated'] else ''}"
    )
    answer = f"answer: <code>{_escaped(answer)}</code>"
    texts = [f"{part}:\n\n<pre>{_escaped(sample[part])}</pre>" for part in ("prompt", "completion")]
    return "\n\n".join([head, *texts, answer, _token_table(sample)])


def _token_table(sample: dict[str, Any]) -> str:
    """One line for each token: credit as a bar, then the token; TensorBoard strips colours but keeps tables."""
    advantage = sample["advantage"]
    rows = ["| token | weight | |", "|---|---|---|"]
    for token, credit in zip(sample["tokens"], sample["token_advantages"], strict=True):
        weight = credit / advantage if advantage else 0.0
        bar = "#" * min(40, round(8 * abs(weight)))
        rows.append(f"| <code>{_escaped(json.dumps(token, ensure_ascii=False)[1:-1])}</code> | {weight:.2f} | {bar} |")
    return "\n".join(rows)


def _escaped(text: str) -> str:
    """HTML-escaped, and with the characters that Markdown would read replaced by entities."""
    escaped = html.escape(text)
    for character in "\\`*_{}[]()+-.!|$~":
        escaped = escaped.replace(character, f"&#{ord(character)};")
    return escaped
