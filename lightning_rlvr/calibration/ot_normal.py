"""OT-normal: rewards moved to a standard normal law."""

from __future__ import annotations

from typing import Any, Literal, get_args

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from typing_extensions import override

from lightning_rlvr.calibration.base import CALIBRATORS, RewardCalibrator
from lightning_rlvr.checks import require, require_choice
from lightning_rlvr.functional.calibration import (
    Position,
    Scale,
    centered,
    extend_reservoir,
    ot_normal,
    population_scores,
    rms_gain,
    signal_only,
)
from lightning_rlvr.functional.groups import is_constant_group
from lightning_rlvr.types import Rollout

Scope = Literal["group", "task_batch", "group_then_task", "task_running"]
Equalize = Literal["none", "rms"]

EMA_DECAY = 0.99
"""Of the running mean square of a task's scores, for each rollout in which the task has a group that varies."""
WARM_UP = 20
"""Rollouts of a task before its scores are equalized."""
RESERVOIR_SIZE = 4096
"""Rewards of each task that ``task_running`` keeps."""


@CALIBRATORS.register("ot_normal")
class OTNormalCalibrator(RewardCalibrator):
    """Rewards moved to N(0, 1) by the monotone (optimal transport) map; first stage of TACE.

    The paper fixes the map and a deterministic cap; plotting position, ties, population and equalization are choices
    of this project. On binary groups of one size the result is the z-score times a factor of the number correct.

    Args:
        position: Rule for the score of a sorted position: ``hazen`` (j - 1/2) / n, ``bary`` the barycentric projection
            of the transport plan, ``vdw`` j / (n + 1), ``blom`` (j - 3/8) / (n + 1/4).
        scope: The population in which a reward is ranked. ``group``: its prompt's group. ``task_batch``: all rows of
            the task in the rollout, without a baseline for each prompt. ``group_then_task``: the group, then the
            scores of all varying groups of the task again (G2RPO, arXiv:2604.08539); the second stage moves the zero,
            so an advantage may change sign: an arm to compare with, not to use. ``task_running``: a running sample of
            the task's rewards, then minus the mean of the group.
        equalize: ``rms`` multiplies each group by one factor that moves all tasks toward the same second moment
            without passing the cap; scope ``group`` only.
        scale: ``c_n`` divides by the standard deviation of the scores of a population without ties; not with scope
            ``task_running``.
        tie_tol: Rewards are rounded to this share of their population's range before they are ranked; 1e-3 suits
            rewards that depend on length.

    Raises:
        ValueError: An unknown choice, a negative ``tie_tol``, or a setting without effect in this combination.
    """

    def __init__(
        self,
        position: Position = "hazen",
        scope: Scope = "group",
        equalize: Equalize = "none",
        scale: Scale = "none",
        tie_tol: float = 1e-6,
    ) -> None:
        for name, value, choices in (
            ("position", position, get_args(Position)),
            ("scope", scope, get_args(Scope)),
            ("equalize", equalize, get_args(Equalize)),
            ("scale", scale, get_args(Scale)),
        ):
            require_choice(name, choices, value)
        require(0 <= tie_tol < 1, "tie_tol", "in [0, 1)", tie_tol)
        require(equalize == "none" or scope == "group", "equalize", f"none with `scope` {scope}", equalize)
        require(scale == "none" or scope != "task_running", "scale", f"none with `scope` {scope}", scale)
        self.position = position
        self.scope = scope
        self.equalize = equalize
        self.scale = scale
        self.tie_tol = tie_tol
        score = {
            "hazen": "mean of Phi^-1((j - 1/2) / n)",
            "bary": "barycentre of the standard normal",
            "vdw": "mean of Phi^-1(j / (n + 1))",
            "blom": "mean of Phi^-1((j - 3/8) / (n + 1/4))",
        }[position]
        population = {
            "group": "its group",
            "task_batch": "all rows of its task in the rollout",
            "group_then_task": "its group, then once more among the scores of its task",
            "task_running": "a running sample of its task, minus the mean of the group",
        }[scope]
        self.formula = f"A = {score} over the sorted positions j that tie with r, among {population}"
        self.formula += "; one factor for each group moves tasks to one second moment" if equalize == "rms" else ""
        self.formula += "; divided by the standard deviation without ties" if scale == "c_n" else ""
        self.centered = scope in ("group", "task_running")
        self.group_local = scope == "group" and equalize == "none"
        self._mean_squares: dict[int, tuple[float, int]] = {}  # task -> (moving average from 0, number of updates)
        self._reservoirs: dict[int, Tensor] = {}

    @property
    @override
    def state_key(self) -> str:
        return self._generate_state_key(
            position=self.position,
            scope=self.scope,
            equalize=self.equalize,
            scale=self.scale,
            tie_tol=self.tie_tol,
        )

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if self.scope == "group_then_task" and stage == "fit":
            rank_zero_warn(
                "`scope: group_then_task` ranks the scores of a task a second time, which moves their zero: correct "
                "completions may get a negative advantage. Use it as a baseline arm only."
            )

    @override
    def observe(self, rollout: Rollout) -> None:
        rewards, task_id = rollout.rewards, rollout.task_id
        if self.scope == "task_running":
            for task in torch.unique(task_id).tolist():
                rows = task_id == task
                known = self._reservoirs.get(task, torch.empty(2, 0)).to(rewards.device)
                self._reservoirs[task] = extend_reservoir(known, rewards[rows], rollout.seeds[rows], RESERVOIR_SIZE)
        if self.equalize == "rms":
            squares = self._ranked(rewards, rollout.group_index) ** 2
            varied = ~rewards.isnan() & ~is_constant_group(rewards, rollout.group_index)
            for task in torch.unique(task_id[varied]).tolist():
                average, updates = self._mean_squares.get(task, (0.0, 0))
                square = squares[varied & (task_id == task)].mean().item()
                self._mean_squares[task] = (EMA_DECAY * average + (1 - EMA_DECAY) * square, updates + 1)

    @override
    def calibrate(self, rollout: Rollout) -> Tensor:
        rewards, groups, tasks = rollout.rewards, rollout.group_index, rollout.task_id
        match self.scope:
            case "group":
                advantages = self._ranked(rewards, groups, self.scale)
            case "task_batch":
                advantages = self._ranked(rewards, tasks, self.scale)
            case "group_then_task":
                silent = rewards.isnan() | is_constant_group(rewards, groups)
                first = self._ranked(rewards, groups).masked_fill(silent, torch.nan)
                advantages = self._ranked(first, tasks, self.scale)
            case "task_running":
                advantages = centered(self._running_scores(rollout), groups)
        if self.equalize == "rms":
            scores = self._ranked(rewards, groups)
            advantages = advantages * rms_gain(scores, rewards, groups, self._running_rms(tasks), self.position)
        return signal_only(advantages, rewards, groups)

    def _ranked(self, values: Tensor, population: Tensor, scale: Scale = "none") -> Tensor:
        return ot_normal(values, population, self.position, self.tie_tol, scale)

    def _running_rms(self, task_id: Tensor) -> Tensor:
        """Root mean square of the scores of each row's task; NaN during its warm-up."""
        rms = torch.full(task_id.shape, torch.nan, dtype=torch.float64, device=task_id.device)
        for task, (average, updates) in self._mean_squares.items():
            if updates > WARM_UP:
                rms[task_id == task] = (average / (1 - EMA_DECAY**updates)) ** 0.5
        return rms

    def _running_scores(self, rollout: Rollout) -> Tensor:
        """Scores in the running law of each row's task; NaN for rows without a score and for tasks never observed."""
        scores = torch.full_like(rollout.rewards, torch.nan, dtype=torch.float64)
        for task, reservoir in self._reservoirs.items():
            rows = rollout.task_id == task
            if reservoir.shape[1] > 0 and rows.any():
                sample = reservoir[1].to(scores.device)
                scores[rows] = population_scores(rollout.rewards[rows], sample, self.position, self.tie_tol)
        return scores

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"mean_squares": dict(self._mean_squares), "reservoirs": dict(self._reservoirs)}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._mean_squares = dict(state_dict["mean_squares"])
        self._reservoirs = dict(state_dict["reservoirs"])
