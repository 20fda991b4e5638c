"""The optimizer steps on one rollout batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_rlvr.distributed import gather_rollouts, gather_rows, reduced, sum_gradients, without_gradient_sync
from lightning_rlvr.functional.batching import micro_batches
from lightning_rlvr.functional.divergence import approx_kl
from lightning_rlvr.functional.losses import LOSS_TYPES, sampling_weights
from lightning_rlvr.functional.random import derive_seed
from lightning_rlvr.memory import fits
from lightning_rlvr.metrics.step import StepMetrics
from lightning_rlvr.objective import Denominators, Objective, objective
from lightning_rlvr.pipeline import Scores, assign, score
from lightning_rlvr.plugins import Needs
from lightning_rlvr.stopwatch import Timed
from lightning_rlvr.types import Rollout, TokenStatistics

if TYPE_CHECKING:
    from lightning_rlvr.calibration.base import RewardCalibrator
    from lightning_rlvr.credit.base import CreditAssigner
    from lightning_rlvr.module import RLVRModule
    from lightning_rlvr.settings import LossSettings


# no statistic can have one of these names: they hold a space
_LOGPROBS, _REFERENCE, _CREDIT = "own logprobs", "reference logprobs", "token advantages"


def reads_training_forward(settings: LossSettings, calibrator: RewardCalibrator, assigner: CreditAssigner) -> bool:
    """Whether credit can be read from the training forward itself, so that no scoring pass has to come first."""
    return settings.updates_per_rollout == 1 and assigner.row_local and not calibrator.requires


class Learner:
    """Takes advantages, assigns credit and steps the optimizer.

    With one update for each rollout the statistics are read from the training forward itself, detached, micro-batch
    by micro-batch: credit costs no forward that would not run anyway. With several updates, or when a plug-in looks
    beyond its row, a pass without gradient comes first and fixes log-probs, statistics and credit for all of them.

    Args:
        module: Owner of policy, plug-ins and settings.
        rollout: Rows of this rank, as they enter the loss.
        metrics: Where sums for the logs go.
        timed: Where seconds go.
    """

    def __init__(self, module: RLVRModule, rollout: Rollout, metrics: StepMetrics, timed: Timed) -> None:
        self.module = module
        self.settings = module.loss_settings
        self.strategy = module.trainer.strategy
        self.metrics = metrics
        self.timed = timed
        self.rollout = rollout
        self.advantages = torch.zeros_like(rollout.rewards)
        self.valid = rollout.completion_mask.any(1)
        self.forwarded = torch.zeros_like(self.valid)
        self.flops = 0.0
        self.num_minibatches = self.settings.num_minibatches
        """Optimizer steps in each pass: fewer than the setting where a short batch has fewer prompts."""
        self.num_updates = 0
        last = module.trainer.max_steps
        self.max_updates = last - module.trainer.global_step if last >= 0 else math.inf
        """Training may end within a rollout: short batches make the steps of an epoch no multiple of the setting."""
        optimizer = module.optimizers()
        assert not isinstance(optimizer, list)
        self.optimizer = optimizer
        self._sampler_logprobs = rollout.old_logprobs
        self._scored = torch.zeros_like(self.valid)
        self._columns: dict[str, Tensor] = {}
        self._weights = module.policy.trainable_weights

    @property
    def token_advantages(self) -> Tensor:
        """Credit of all rows ``[B, T]`` float32; 0 in rows that were not forwarded."""
        return self._column(_CREDIT)

    def take(self, advantages: Tensor) -> None:
        """Accept the calibrated advantages ``[B]`` and decide which rows have to be forwarded.

        A row with advantage 0 contributes exactly nothing, unless there is a KL or an entropy term, or an assigner
        that looks at all rows.
        """
        self.advantages = advantages
        every_row = self.settings.needs_all_rows or not self.module.assigner.row_local
        self.forwarded = self.valid & ((advantages != 0) | every_row)

    def run(self) -> None:
        """All optimizer steps on this rollout."""
        single_pass = reads_training_forward(self.settings, self.module.calibrator, self.module.assigner)
        if not single_pass:
            self._score(self.forwarded & ~self._scored)
            self._probe()
            self._assign_all()
        for iteration in range(self.settings.num_iterations):
            for rows in self._minibatches(iteration):
                if self.num_updates < self.max_updates:
                    self._update(rows, single_pass)
        self._log()

    # --- scoring without gradient ---

    def score_all(self) -> None:
        """Score every row now, because the calibrator declared statistics."""
        self._score(self.valid)

    def _score(self, rows: Tensor) -> None:
        def score_some(batch: Tensor, counts: bool) -> None:
            scores = self._forward(self.rollout.rows(batch), self.module.needs)
            if counts:
                self._keep(batch, scores)

        with self.timed("score"), torch.no_grad():
            self._in_micro_batches(rows, score_some)
        self._complete(rows)

    def _forward(self, rows: Rollout, needs: Needs, backward: int = 0) -> Scores:
        """Scores of some rows; ``backward`` is what their backward pass costs, in forwards, for the logs."""
        policy = self.module.policy
        before = policy.num_tokens
        scores = score(policy, rows, needs, temperature=self.module.rollout_settings.temperature)
        forwards = 1 + backward / (1 + needs.extra_forwards)
        self.flops += 2.0 * policy.num_parameters * (policy.num_tokens - before) * forwards
        return scores

    def _column(self, name: str) -> Tensor:
        if name not in self._columns:
            self._columns[name] = torch.zeros_like(self._sampler_logprobs)
        return self._columns[name]

    def _keep(self, batch: Tensor, scores: Scores) -> None:
        values = {_LOGPROBS: scores.logprobs.detach(), **scores.statistics}
        if scores.reference_logprobs is not None:
            values[_REFERENCE] = scores.reference_logprobs
        for name, rows in values.items():
            self._column(name)[batch, : rows.shape[1]] = rows

    def _complete(self, rows: Tensor) -> None:
        """Replace the rollout by one with the trainer's own log-probs and statistics of the rows scored so far."""
        self._scored = self._scored | rows
        logprobs = torch.where(self._scored[:, None], self._column(_LOGPROBS), self._sampler_logprobs)
        statistics = TokenStatistics({name: self._column(name) for name in self.module.needs.all_statistics})
        self.rollout = self.rollout.scored(logprobs, statistics)

    def _probe(self) -> None:
        """Refuse to learn from completions that the engine sampled from other log-probs than the trainer's.

        The rows scored so far are compared, which costs nothing; where there are none, a few are scored for this.

        Raises:
            ValueError: The mean distance of a token's log-probs is above ``rollout.probe_tolerance``, over all ranks.
        """
        engine, tolerance = self.module.engine, self.module.rollout_settings.probe_tolerance
        if engine.shares_weights:
            return
        mask = self.rollout.completion_mask & self._scored[:, None]
        gaps = (self._sampler_logprobs - self.rollout.old_logprobs).abs() * mask
        total, count = reduced(self.strategy, [float(gaps.sum()), float(mask.sum())], "sum")
        if count == 0:
            total, count = reduced(self.strategy, self._gap_of_a_few(), "sum")
        if count == 0:
            return  # no rank has a valid token
        gap = total / count
        if not gap <= tolerance:
            raise ValueError(
                f"the log-probs of {type(engine).__name__} must be those of the trainer within "
                f"`rollout.probe_tolerance` = {tolerance:g} nats a token, got a mean difference of {gap:.3g}: it "
                f"samples from other weights (not taken over by `sync`?) or reports log-probs before the temperature"
            )
        self.metrics.maximum("policy/probe_gap", gap)

    def _gap_of_a_few(self) -> list[float]:
        """Sum of the distances between the log-probs of engine and trainer in a few rows, and how many they are."""
        numbers = self.valid.nonzero().flatten()
        few = torch.zeros_like(self.valid)
        few[numbers[:: max(1, len(numbers) // 4)]] = True
        needs = replace(self.module.needs.without_statistics, entropy_gradient=False)
        gaps = torch.zeros_like(self.advantages)

        def compare(batch: Tensor, counts: bool) -> None:
            rows = self.rollout.rows(batch)
            distances = (self._forward(rows, needs).logprobs - rows.old_logprobs).abs() * rows.completion_mask
            if counts:
                gaps[batch] = distances.sum(1)

        with self.timed("score"), torch.no_grad():
            self._in_micro_batches(few, compare)
        return [float(gaps.sum()), float(self.rollout.completion_mask[few].sum())]

    def _assign_all(self) -> None:
        assigner, rollout, advantages, own = self.module.assigner, self.rollout, self.advantages, slice(None)
        if not assigner.row_local:
            rollout, own = gather_rollouts(self.strategy, rollout)
            advantages = gather_rows(self.strategy, advantages)
        credit = assign(assigner, rollout, advantages)[own]
        self._columns[_CREDIT] = credit[:, : self._sampler_logprobs.shape[1]] * self.forwarded[:, None]

    # --- one optimizer step ---

    def _minibatches(self, iteration: int) -> Iterator[Tensor]:
        """Row masks ``[B]``; whole prompts, dealt by the same permutation on every rank."""
        if self.settings.num_minibatches == 1:
            yield self.valid
            return
        groups = self.rollout.group_index
        prompts = int(reduced(self.strategy, [float(groups.amax()) + 1], "max")[0])
        self.num_minibatches = min(self.settings.num_minibatches, prompts)
        seed = derive_seed(self.module.sample_seed, "minibatches", self.module.progress.rollouts, iteration)
        order = torch.randperm(prompts, generator=torch.Generator().manual_seed(seed)).to(groups.device)
        for part in torch.tensor_split(order, self.num_minibatches):
            yield self.valid & torch.isin(groups, part)

    def _update(self, rows: Tensor, single_pass: bool) -> None:
        denominators = self._denominators(rows)
        backward = partial(self._backward, denominators=denominators, single_pass=single_pass)
        with self.timed("backward"), without_gradient_sync(self.strategy):
            self._in_micro_batches(rows & self.forwarded, backward)
        if single_pass:
            self._complete(self.forwarded)
            self._probe()
        with self.timed("optimizer"):
            sum_gradients(self.strategy, self._weights)
            self._step()

    def _denominators(self, rows: Tensor) -> Denominators:
        mask = self.rollout.completion_mask
        own = [float((rows & self.valid).sum()), float(mask[rows].sum()), float(mask.sum())]
        sequences, minibatch, total = reduced(self.strategy, own, "sum")
        local = LOSS_TYPES[self.settings.loss_type].aggregation == "minibatch_token_mean"
        return Denominators(num_sequences=sequences, num_tokens=minibatch if local else total / self.num_minibatches)

    def _in_micro_batches(self, rows: Tensor, work: Callable[[Tensor, bool], None]) -> None:
        """Do ``work`` for micro-batches of some rows; all of it again with smaller ones when memory runs out.

        Ranks agree after every attempt, so that none waits for another. Gradients start from nothing.
        """
        while True:
            undo, flops = self.metrics.savepoint(), self.flops
            self.optimizer.zero_grad()
            too_large = (batch for batch, counts in self._batches(rows) if not fits(partial(work, batch, counts)))
            failed = next(too_large, None)
            budget = self.module.micro_batch_tokens
            smaller = self._smaller_budget(budget, None if failed is None else self.rollout.rows(failed))
            if smaller == budget:
                return
            rank_zero_warn(
                f"out of memory: the rest of the run has micro-batches of at most {smaller} padded tokens instead of "
                f"{budget}; the gradients are the same"
            )
            self.module.micro_batch_tokens = smaller
            undo()
            self.flops = flops

    def _smaller_budget(self, budget: int, failed: Rollout | None) -> int:
        """Half of the smallest micro-batch that was too large for any rank; ``budget`` if all got through.

        Raises:
            MemoryError: It was a single row.
        """
        single, size = 0, 2 * budget
        if failed is not None:
            prompts = failed.group_index.unique() if self._shares_prompts else failed.group_index
            tokens = len(prompts) * failed.prompt_ids.shape[1] + len(failed) * failed.completion_ids.shape[1]
            single, size = tokens if len(failed) == 1 else 0, min(budget, tokens)
        single, largest = (int(value) for value in reduced(self.strategy, [single, -size], "max"))
        if single:
            raise MemoryError(
                f"out of memory with a single row of {single} tokens, so `loss.max_tokens_per_micro_batch` cannot "
                f"help: turn on `policy.gradient_checkpointing` or lower `rollout.max_completion_length`"
            )
        return max(1, -largest // 2)

    @property
    def _shares_prompts(self) -> bool:
        return self.module.policy.shares_prompts and not self.rollout.model_inputs

    def _batches(self, rows: Tensor) -> list[tuple[Tensor, bool]]:
        """Micro-batches of row numbers, as many on every rank; False marks one that only keeps step with others."""
        numbers = rows.nonzero().flatten()
        lengths = [mask[numbers].sum(1) for mask in (self.rollout.prompt_mask, self.rollout.completion_mask)]
        parts = micro_batches(
            *lengths,
            max_tokens=self.module.micro_batch_tokens,
            groups=self.rollout.group_index[numbers] if self._shares_prompts else None,
            forward_cost=64 if self.module.device.type == "cpu" else 1024,
        )
        batches = [numbers[part] for part in parts]
        count = int(reduced(self.strategy, [float(len(batches))], "max")[0])
        idle = torch.zeros(1, dtype=torch.int64, device=rows.device)
        return [(batch, True) for batch in batches] + [(idle, False)] * (count - len(batches))

    def _backward(self, batch: Tensor, counts: bool, denominators: Denominators, single_pass: bool) -> None:
        rows = self.rollout.rows(batch)
        mask = rows.completion_mask
        cost = 1 if self.module.policy_settings.lora is not None else 2
        if single_pass:
            scores = self._forward(rows, self.module.needs, cost)
            old_logprobs = scores.logprobs.detach()
            credit = assign(self.module.assigner, rows.scored(old_logprobs, scores.statistics), self.advantages[batch])
        else:
            scores = self._forward(rows, self.module.needs.without_statistics, cost)
            old_logprobs, credit = rows.old_logprobs, self.token_advantages[batch, : mask.shape[1]]
            if self.module.needs.reference:
                scores = replace(scores, reference_logprobs=self._column(_REFERENCE)[batch, : mask.shape[1]])
        terms = objective(
            scores,
            old_logprobs,
            self._sampler_logprobs[batch, : mask.shape[1]],
            credit,
            mask,
            self.settings,
            denominators,
            self.module.rollout_settings.max_completion_length,
        )
        self.module.manual_backward(terms.total * counts)
        if single_pass and counts:
            self._keep(batch, scores)
            self._column(_CREDIT)[batch, : mask.shape[1]] = credit
        self._count(terms, mask, counts, approx_kl(scores.logprobs.detach(), old_logprobs))

    def _step(self) -> None:
        limit = self.module.optimizer_settings.max_grad_norm
        norm = torch.nn.utils.clip_grad_norm_(self._weights, limit if limit > 0 else float("inf"))
        if not bool(norm.isfinite()):
            raise FloatingPointError(
                f"gradient norm is {float(norm)} at optimizer step {self.module.trainer.global_step}; the weights "
                f"were left as they are. Lower `optimizer.learning_rate`, or check the size of the rewards and the "
                f"model's dtype."
            )
        self.metrics.maximum("policy/grad_norm", norm)
        self.metrics.maximum("policy/learning_rate", float(self.optimizer.param_groups[0]["lr"]))
        self.optimizer.step()
        self.num_updates += 1
        schedule = self.module.lr_schedulers()
        assert isinstance(schedule, torch.optim.lr_scheduler.LRScheduler)
        schedule.step()

    # --- what the logs need ---

    def _count(self, terms: Objective, mask: Tensor, counts: bool, approximate_kl: Tensor) -> None:
        mask = mask & counts  # one that keeps step logs nothing, under the names of all ranks
        updates = min(self.settings.num_iterations * self.num_minibatches, self.max_updates)
        for name in self._loss_terms():
            self.metrics.total(f"loss/{name}", getattr(terms, name).detach() * counts / updates)
        self.metrics.mean("policy/clipped_low", terms.tokens.clipped_low.float(), mask)
        self.metrics.mean("policy/clipped_high", terms.tokens.clipped_high.float(), mask)
        self.metrics.mean("policy/approximate_kl", approximate_kl, mask)
        self.metrics.maximum("policy/ratio_max", terms.tokens.ratio[mask])

    def _loss_terms(self) -> list[str]:
        optional = {"kl": self.settings.beta > 0, "entropy": self.settings.entropy_coef > 0}
        return ["total", "policy", *(name for name, used in optional.items() if used)]

    def _log(self) -> None:
        for name in self._loss_terms():
            self.metrics.total(f"loss/{name}", 0.0)
        mask = self.rollout.completion_mask & self._scored[:, None]
        self.metrics.mean("policy/entropy", self._column("entropy"), mask)
        self.metrics.mean("policy/logprob", self.rollout.old_logprobs, mask)
        self.metrics.mean("policy/sampler_gap", (self._sampler_logprobs - self.rollout.old_logprobs).abs(), mask)
        if (correction := self.settings.importance_sampling) is not None:
            cap = self.settings.importance_sampling_cap
            pair = self.rollout.old_logprobs, self._sampler_logprobs
            weights = sampling_weights(*pair, mask, correction=correction, cap=cap)
            self.metrics.mean("policy/sampling_weight_mean", weights, mask)
            self.metrics.maximum("policy/sampling_weight_max", weights[mask])
            self.metrics.mean("policy/sampling_weight_capped", (weights >= cap).float(), mask)
