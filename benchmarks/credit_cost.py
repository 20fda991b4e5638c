"""What margin and evidence contrast credit cost over uniform credit: paired updates on one recorded rollout."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from common import command_line, forced_rewards, shipped_run, spread, write
from lightning.pytorch.callbacks import Callback
from rich.table import Table

from lightning_rlvr.credit.base import CREDIT_ASSIGNERS
from lightning_rlvr.distributed import gather_rollouts
from lightning_rlvr.learner import Learner
from lightning_rlvr.metrics.step import StepMetrics
from lightning_rlvr.module import RLVRModule
from lightning_rlvr.pipeline import Collection, calibrate, collect
from lightning_rlvr.plugins import unite_needs
from lightning_rlvr.policy.scoring import token_scores
from lightning_rlvr.rollout.base import Sampling

T = TypeVar("T")
ARMS = ("uniform", "margin", "evidence_contrast", "uniform, again")
"""The second uniform arm shows how far from 1 a ratio gets by noise alone."""
HEAD = {"log-prob, entropy": ("entropy",), "log-prob, entropy, margin": ("entropy", "margin")}


def clocks() -> dict[str, float]:
    """Wall time, and processor time of all threads: the second is hardly disturbed by other load on the machine."""
    return {"wall": time.perf_counter(), "cpu": time.process_time()}


def timed(run: Callable[[], T]) -> tuple[T, dict[str, float]]:
    """What ``run`` returns, and the seconds that it took by each clock."""
    started = clocks()
    result = run()
    return result, {clock: now - started[clock] for clock, now in clocks().items()}


def paired(arms: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[dict[str, float]]]:
    """Seconds of each arm in each round; every round runs all arms, each time beginning with another one."""
    seconds: dict[str, list[dict[str, float]]] = {name: [] for name in arms}
    names = list(arms)
    for turn in range(-1, rounds):  # the first round is a warm-up
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            _, took = timed(arms[name])
            if turn >= 0:
                seconds[name].append(took)
    return seconds


def summary(
    seconds: dict[str, list[dict[str, float]]], common: dict[str, float] | None = None
) -> dict[str, dict[str, dict[str, float]]]:
    """By clock and arm: quartiles of the seconds, and of their ratio to the first arm in the same round.

    Args:
        seconds: What ``paired`` returned.
        common: Seconds that every arm takes on top of its own, by clock.
    """
    base = next(iter(seconds.values()))
    result: dict[str, dict[str, dict[str, float]]] = {}
    for clock in base[0]:
        more = common[clock] if common else 0.0
        for name, values in seconds.items():
            pairs = [(a[clock] + more, b[clock] + more) for a, b in zip(values, base, strict=True)]
            result.setdefault(f"{clock}_seconds", {})[name] = spread([a for a, _ in pairs])
            result.setdefault(f"{clock}_ratio", {})[name] = spread([a / b for a, b in pairs])
    return result


class CreditCost(Callback):
    """Runs all arms at the start of training, while everything is in place, and then stops it."""

    def __init__(self, rounds: int, head_rounds: int, head_tokens: int) -> None:
        self.rounds = rounds
        self.head_rounds = head_rounds
        self.head_tokens = head_tokens
        self.result: dict[str, Any] = {}

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> int:  # noqa: D102
        collection, sampling = timed(lambda: _sample(pl_module, batch))
        update = {name: _update(pl_module, collection, name) for name in ARMS}
        seconds = paired(update, self.rounds)
        head = paired(_head(pl_module, self.head_tokens), self.head_rounds)
        self.result = {
            "completion_tokens": int(collection.rollout.completion_mask.sum()),
            "update": summary(seconds),
            "step": summary(seconds, sampling),
            "head": summary(head),
        }
        trainer.should_stop = True
        return -1  # no step of its own


def _sample(module: RLVRModule, batch: Any) -> Collection:
    settings = module.rollout_settings
    return collect(
        module.policy,
        module.engine,
        module.datamodule.judge,
        batch,
        Sampling(temperature=settings.temperature, max_completion_length=settings.max_completion_length),
        num_generations=settings.num_generations,
        seed_parts=("credit cost",),
    )


def _update(module: RLVRModule, collection: Collection, name: str) -> Callable[[], None]:
    """What a training step does after sampling, with the assigner called ``name``."""
    assigner = CREDIT_ASSIGNERS[name.partition(",")[0]]()
    needs = unite_needs(module.calibrator, assigner, reference=False, entropy_gradient=False)

    def run() -> None:
        module.assigner, module.needs = assigner, needs
        learner = Learner(module, collection.rollout, StepMetrics(), nullcontext)
        learner.take(calibrate(module.calibrator, learner.rollout, partial(gather_rollouts, module.trainer.strategy)))
        learner.run()

    return run


def _head(module: RLVRModule, num_tokens: int) -> dict[str, Callable[[], None]]:
    """Forward and backward of the chunked head alone, on random hidden states."""
    weight = module.policy.model.get_output_embeddings().weight.detach()
    hidden = torch.randn(num_tokens, weight.shape[1]).to(weight.dtype).requires_grad_()
    targets = torch.randint(len(weight), (num_tokens,))

    def run(statistics: tuple[str, ...]) -> None:
        scores = token_scores(hidden, weight, None, targets, temperature=1.0, statistics=statistics)
        scores.logprobs.sum().backward()

    return {name: lambda statistics=statistics: run(statistics) for name, statistics in HEAD.items()}


def reward(prompts: list[str], **_: object) -> list[float]:
    """Every row carries signal."""
    return forced_rewards(len(prompts))


def tables(result: dict[str, Any]) -> list[Table]:
    """Medians and quartiles over rounds."""
    what = f"{result['dtype']}, {result['threads']} threads, {result['rounds']} rounds"
    titles = {
        "update": f"One update on the same {result['completion_tokens']} sampled tokens ({what})",
        "step": "The same with the sampling, which is common to all",
        "head": f"The LM head alone, forward and backward of {result['head_tokens']} tokens",
    }
    return [_table(title, result[name]) for name, title in titles.items()]


def _table(title: str, part: dict[str, dict[str, dict[str, float]]]) -> Table:
    table = Table(title=title)
    for column in ("", "s", "ratio", "CPU s", "ratio"):
        table.add_column(column, justify="right" if column else "left")
    for name in part["wall_seconds"]:
        cells = [_shown(part[f"{clock}_{kind}"][name]) for clock in ("wall", "cpu") for kind in ("seconds", "ratio")]
        table.add_row(name, *cells)
    return table


def _shown(values: dict[str, float]) -> str:
    return f"{values['median']:.3f} ({values['q25']:.3f} to {values['q75']:.3f})"


def main() -> None:
    """Command line."""
    parser = command_line("credit_cost", __doc__, "config", "dtype", "threads")
    parser.add_argument("--max-completion-length", type=int, default=64, metavar="TOKENS")
    parser.add_argument("--rounds", type=int, default=12, help="updates of each arm")
    parser.add_argument("--head-rounds", type=int, default=40, help="passes of each arm through the head alone")
    parser.add_argument("--head-tokens", type=int, default=512)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    cost = CreditCost(options.rounds, options.head_rounds, options.head_tokens)
    with tempfile.TemporaryDirectory() as folder:
        cli = shipped_run(
            folder,
            reward,
            config=options.config,
            dtype=options.dtype,
            max_steps=1,
            model__rollout__max_completion_length=options.max_completion_length,
            model__optimizer__learning_rate=1e-12,  # as good as fixed weights: every update does the same work
        )
        cli.trainer.callbacks.append(cost)
        cli.trainer.fit(cli.model, datamodule=cli.datamodule)
        dtype = str(cli.model.policy.model.dtype).removeprefix("torch.")
    settings = {name: getattr(options, name) for name in ("threads", "rounds", "head_rounds", "head_tokens")}
    result = {"dtype": dtype, **settings, **cost.result}
    write(options.output, result, tables(result))


if __name__ == "__main__":
    main()
