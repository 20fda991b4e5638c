"""What a run has done so far, for other processes: how far it is, and what it sampled from which seeds."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from typing_extensions import override

from lightning_rlvr.distributed import gather_list
from lightning_rlvr.module import RLVRModule
from lightning_rlvr.monitoring.files import PROGRESS_FILE, ROLLOUTS_FILE, replace_text
from lightning_rlvr.monitoring.run_folder import run_folder
from lightning_rlvr.pipeline import Collection


class RunLedger(Callback):
    """Writes ``progress.json``, at most once a second, and ``rollouts.jsonl``, a line for each rollout batch.

    A line holds the step, the ids of the problems in order, and the seeds of their completions (problem by problem,
    sorted): two arms are paired exactly if these lines agree. A resumed run takes back what went beyond its
    checkpoint.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._written = -1.0

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._folder = run_folder(trainer)
        if self._folder is None or not trainer.is_global_zero:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / ROLLOUTS_FILE
        if file.exists():
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= trainer.global_step]
            replace_text(file, "".join(kept))
        self._progress(trainer, pl_module, finished=False)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._folder is None:
            return
        rows = gather_list(trainer.strategy, _problems(outputs["record"].collection))
        if not trainer.is_global_zero:
            return
        rows.sort()
        line = {
            "step": trainer.global_step,
            "problems": [problem for _, problem, _ in rows],
            "seeds": [seed for *_, seeds in rows for seed in seeds],
        }
        with (self._folder / ROLLOUTS_FILE).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line, ensure_ascii=False) + "\n")
        if time.monotonic() - self._written >= 1:
            self._progress(trainer, pl_module, finished=False)

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # after the last checkpoint: a run that says it is finished has one
        if self._folder is not None and trainer.is_global_zero:
            self._progress(trainer, pl_module, finished=not 0 < trainer.global_step < trainer.max_steps)

    def _progress(self, trainer: Trainer, pl_module: LightningModule, *, finished: bool) -> None:
        assert self._folder is not None
        assert isinstance(pl_module, RLVRModule)
        progress = {"step": trainer.global_step, "max_steps": trainer.max_steps, "finished": finished}
        replace_text(self._folder / PROGRESS_FILE, json.dumps(progress | vars(pl_module.progress), indent=2) + "\n")
        self._written = time.monotonic()


def _problems(collection: Collection) -> list[tuple[int, str, list[int]]]:
    """Number of each prompt in the batch of all ranks, its problem, and the seeds of its completions."""
    index, groups = collection.prompt_index.tolist(), collection.rollout.group_index.tolist()
    seeds: dict[int, list[int]] = {}
    number: dict[int, int] = {}
    for prompt, group, seed in zip(index, groups, collection.rollout.seeds.tolist(), strict=True):
        seeds.setdefault(prompt, []).append(seed)
        number[prompt] = group
    return [(number[prompt], collection.prompts.problem_ids[prompt], sorted(seeds[prompt])) for prompt in seeds]
