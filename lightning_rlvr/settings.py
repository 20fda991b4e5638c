"""The settings of a run beside policy and data; names are those of TRL where they mean the same."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from lightning_rlvr.checks import require, require_choice
from lightning_rlvr.functional.losses import LOSS_TYPES, Correction
from lightning_rlvr.rollout.base import RolloutEngine


@dataclass(frozen=True, kw_only=True)
class RolloutSettings:
    """How completions are sampled while training.

    Args:
        num_generations: Completions for each prompt (the group size G), at least 2.
        max_completion_length: Budget of sampled tokens, end token included.
        temperature: Sampling temperature, above 0; log-probs and statistics are those of this temperature.
        engine: Rollout engine, or its short name (`hf` or `vllm`).
        probe_tolerance: Largest mean difference, in nats a token, between the log-probs of an engine with weights of
            its own and the trainer's; above it the run stops before anything is learned. Rounding to bfloat16 makes
            0.01 to 0.04.
        sample_seed: Seed of the sampling; by default the data seed, so that paired arms share both.
        top_p: Must stay 1 while training: log-probs would be those of another distribution.
        top_k: Must stay 0 (off) while training, likewise.
        repetition_penalty: Must stay 1 while training, likewise.
    """

    num_generations: int = 8
    max_completion_length: int = 256
    temperature: float = 1.0
    engine: RolloutEngine | str = "hf"
    probe_tolerance: float = 0.1
    sample_seed: int | None = None
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        require(self.num_generations >= 2, "rollout.num_generations", "at least 2", self.num_generations)
        require(self.max_completion_length >= 1, "rollout.max_completion_length", ">= 1", self.max_completion_length)
        sane = 1e-4 <= self.temperature < math.inf
        require(sane, "rollout.temperature", "positive (>= 1e-4) while training", self.temperature)
        require(self.probe_tolerance > 0, "rollout.probe_tolerance", "positive", self.probe_tolerance)
        reason = "while training (a filter would make the log-probs those of another distribution)"
        require(self.top_p == 1.0, "rollout.top_p", f"1 {reason}", self.top_p)
        require(self.top_k == 0, "rollout.top_k", f"0 {reason}", self.top_k)
        require(self.repetition_penalty == 1.0, "rollout.repetition_penalty", f"1 {reason}", self.repetition_penalty)


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """The clipped surrogate, its aggregation and what is added to it.

    Args:
        loss_type: `grpo` mean over sequences of the mean over tokens: (1/B) sum_i (1/T_i) sum_t. `dapo` mean over
            all tokens of the rollout batch: sum / tokens. `bnpo` mean over all tokens of the minibatch. `dr_grpo`
            constant length: sum / (B * max_completion_length). `cispo` dapo's mean of -sg[min(ratio, 1 +
            epsilon_high)] * A * logprob. `gspo_token` grpo's mean with the sequence's geometric mean ratio and the
            token's gradient.
        epsilon: Lower clip range of the ratio (and upper one, unless `epsilon_high` is given). With one optimizer
            step for each rollout every ratio is 1, so the clip ranges matter from the second update on.
        epsilon_high: Upper clip range of the ratio.
        delta: Dual clip c > 1: bound on ratio * A for A < 0; by default off.
        beta: Weight of the k3 estimate of KL(policy || policy as training starts); 0 needs no reference forward.
        entropy_coef: Weight of the entropy bonus; 0 is off.
        importance_sampling: Weight of the policy loss where the engine sampled under other log-probs than the
            trainer's (other kernels, or adapters merged into bfloat16): `token_truncate` exp(difference) of each
            token, `sequence_truncate` exp(sum of differences) for all tokens of a completion; by default off. KL
            and entropy terms are left alone.
        importance_sampling_cap: Largest such weight, at least 1.
        num_iterations: Passes over each rollout batch.
        num_minibatches: Optimizer steps in each pass; whole prompts stay together.
        mask_truncated_completions: Leave completions without end token out of the loss and its denominators.
        max_tokens_per_micro_batch: Budget of padded tokens in one forward, rows x longest completion + prompts x
            longest prompt (a prompt once for all its rows, if that saves a tenth); never changes the gradient.
    """

    loss_type: str = "grpo"
    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    beta: float = 0.0
    entropy_coef: float = 0.0
    importance_sampling: Correction | None = None
    importance_sampling_cap: float = 2.0
    num_iterations: int = 1
    num_minibatches: int = 1
    mask_truncated_completions: bool = False
    max_tokens_per_micro_batch: int = 4096

    def __post_init__(self) -> None:
        require(self.loss_type in LOSS_TYPES, "loss.loss_type", f"one of {', '.join(LOSS_TYPES)}", self.loss_type)
        require(0 < self.epsilon < 1, "loss.epsilon", "in (0, 1)", self.epsilon)
        high = self.epsilon_high
        require(high is None or high > 0, "loss.epsilon_high", "positive", high)
        require(
            self.delta is None or self.delta > 1 + (high or self.epsilon),
            "loss.delta",
            "above 1 + epsilon_high",
            self.delta,
        )
        cispo = self.loss_type == "cispo"
        ranges = "unset beside `loss.epsilon_high` with loss_type cispo, which has no lower clip"
        require(
            not (cispo and high is not None and self.epsilon != type(self).epsilon),
            "loss.epsilon",
            ranges,
            self.epsilon,
        )
        require(not (cispo and self.delta is not None), "loss.delta", "unset with loss_type cispo", self.delta)
        require(self.beta >= 0, "loss.beta", ">= 0", self.beta)
        require(self.entropy_coef >= 0, "loss.entropy_coef", ">= 0", self.entropy_coef)
        correction, cap = self.importance_sampling, self.importance_sampling_cap
        if correction is not None:
            require_choice("loss.importance_sampling", get_args(Correction), correction)
        require(cap >= 1, "loss.importance_sampling_cap", ">= 1", cap)
        used = correction is not None or cap == type(self).importance_sampling_cap
        require(used, "loss.importance_sampling_cap", "unset without `loss.importance_sampling`", cap)
        require(self.num_iterations >= 1, "loss.num_iterations", ">= 1", self.num_iterations)
        require(self.num_minibatches >= 1, "loss.num_minibatches", ">= 1", self.num_minibatches)
        require(
            self.max_tokens_per_micro_batch >= 1,
            "loss.max_tokens_per_micro_batch",
            ">= 1",
            self.max_tokens_per_micro_batch,
        )

    @property
    def updates_per_rollout(self) -> int:
        """Optimizer steps for each rollout batch."""
        return self.num_iterations * self.num_minibatches

    @property
    def needs_all_rows(self) -> bool:
        """Rows with advantage 0 still contribute: there is a KL or an entropy term."""
        return self.beta > 0 or self.entropy_coef > 0


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """AdamW over the trainable weights, which are float32.

    Args:
        learning_rate: Peak learning rate.
        weight_decay: Decoupled weight decay.
        adam_beta1: Decay of the first moment.
        adam_beta2: Decay of the second moment.
        lr_scheduler: Shape of the learning rate after warm-up, over `trainer.max_steps` optimizer steps.
        warmup_steps: Optimizer steps of linear warm-up.
        max_grad_norm: Gradients are scaled down to this global norm; 0 is off.
    """

    learning_rate: float = 1e-5
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    lr_scheduler: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        require(self.learning_rate > 0, "optimizer.learning_rate", "positive", self.learning_rate)
        require(self.weight_decay >= 0, "optimizer.weight_decay", ">= 0", self.weight_decay)
        require(0 <= self.adam_beta1 < 1, "optimizer.adam_beta1", "in [0, 1)", self.adam_beta1)
        require(0 <= self.adam_beta2 < 1, "optimizer.adam_beta2", "in [0, 1)", self.adam_beta2)
        require(self.warmup_steps >= 0, "optimizer.warmup_steps", ">= 0", self.warmup_steps)
        require(self.max_grad_norm >= 0, "optimizer.max_grad_norm", ">= 0", self.max_grad_norm)


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """How held-out and test problems are sampled; the seeds depend on problem and number of the sample alone.

    Args:
        num_samples: Completions for each problem (short: `--num_samples`); 1 at temperature 0, where all would be
            the same.
        temperature: 1 is what training samples with; 0 is greedy.
        max_completion_length: By default that of training.
        keep: What the commands `validate` and `test` leave of every sample in `eval/<set>/per_problem.parquet`:
            verdicts and completions, which a later evaluation continues from; verdicts only; or nothing.
    """

    num_samples: int = 1
    temperature: float = 1.0
    max_completion_length: int | None = None
    keep: Literal["texts", "verdicts", "nothing"] = "texts"

    def __post_init__(self) -> None:
        require(self.num_samples >= 1, "evaluation.num_samples", ">= 1", self.num_samples)
        sane = self.temperature == 0 or 1e-4 <= self.temperature < math.inf
        require(sane, "evaluation.temperature", "0 (greedy) or at least 1e-4", self.temperature)
        limit = self.max_completion_length
        require(limit is None or limit >= 1, "evaluation.max_completion_length", ">= 1", limit)
