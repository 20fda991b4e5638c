"""The LightningModule that owns rollout and loss; what may vary comes in as callbacks."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities import rank_zero_warn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedTokenizerBase
from typing_extensions import override

from lightning_rlvr.calibration.base import RewardCalibrator
from lightning_rlvr.checks import require
from lightning_rlvr.credit.base import CreditAssigner
from lightning_rlvr.data.datamodule import PromptDataModule
from lightning_rlvr.data.sources import Split
from lightning_rlvr.distributed import gather_rollouts, leave_group_at_exit
from lightning_rlvr.evaluation.evaluator import Evaluator
from lightning_rlvr.evaluation.store import SampleStore, open_stores
from lightning_rlvr.evaluation.summary import EvaluationSummary
from lightning_rlvr.learner import Learner
from lightning_rlvr.metrics.step import StepMetrics
from lightning_rlvr.optimization import make_optimizer, use_settings_of_now
from lightning_rlvr.pipeline import Collection, calibrate, collect, without_truncated
from lightning_rlvr.plugins import Needs, find_all, find_one, unite_needs
from lightning_rlvr.policy.loading import load_policy, load_tokenizer
from lightning_rlvr.policy.policy import Policy
from lightning_rlvr.policy.settings import PolicySettings
from lightning_rlvr.random_states import random_states, restore_random_states
from lightning_rlvr.record import StepRecord, log_record
from lightning_rlvr.rollout.base import ENGINES, RolloutEngine, Sampling
from lightning_rlvr.settings import EvaluationSettings, LossSettings, OptimizerSettings, RolloutSettings
from lightning_rlvr.stopwatch import Stopwatch
from lightning_rlvr.types import PromptBatch, Rollout


@dataclass
class Progress:
    """What a run has consumed so far; saved with it, and the x-axes of comparisons at equal compute."""

    rollouts: int = 0
    sampled_tokens: int = 0
    seconds: float = 0.0
    flops: float = 0.0
    """Estimated: 2 operations for each parameter and token of a forward; a backward is 1 forward, without LoRA 2."""


_OF_EACH_SET = ("accuracy", "length", "truncated", "no_answer")
"""What is logged of each of several sets; all numbers are in ``results``, and of all sets together also logged."""


class RLVRModule(LightningModule):
    """Reinforcement learning with verifiable rewards: sample, verify, calibrate, assign credit, step.

    One ``training_step`` is one rollout batch and ``loss.num_iterations * loss.num_minibatches`` optimizer steps,
    under manual optimization; ``trainer.global_step`` and ``trainer.max_steps`` count optimizer steps. The trainer
    must hold exactly one RewardCalibrator and one CreditAssigner among its callbacks.

    Args:
        policy: Which model is trained, and its adapter.
        rollout: How completions are sampled.
        loss: Surrogate, aggregation, KL and entropy terms.
        optimizer: AdamW, its schedule and clipping.
        evaluation: How held-out problems are sampled.
    """

    policy: Policy
    engine: RolloutEngine
    calibrator: RewardCalibrator
    assigner: CreditAssigner
    needs: Needs
    evaluator: Evaluator

    def __init__(
        self,
        policy: PolicySettings = PolicySettings(),
        rollout: RolloutSettings = RolloutSettings(),
        loss: LossSettings = LossSettings(),
        optimizer: OptimizerSettings = OptimizerSettings(),
        evaluation: EvaluationSettings = EvaluationSettings(),
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.strict_loading = False  # checkpoints hold what trains, not the base model
        self.policy_settings = policy
        self.rollout_settings = rollout
        self.loss_settings = loss
        self.optimizer_settings = optimizer
        self.evaluation_settings = evaluation
        self.progress = Progress()
        self.micro_batch_tokens = loss.max_tokens_per_micro_batch
        """Budget of padded tokens in one forward: the setting, and less once memory ran out."""
        self._loaded_step: int | None = None
        self._loaded_max_steps = 0
        self.results: dict[str, dict[str, float]] = {}

    # --- set-up: everything that can be wrong is wrong here, before the first token is sampled ---

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The policy's tokenizer, loaded without its weights."""
        return load_tokenizer(self.policy_settings)

    @override
    def configure_callbacks(self) -> list[Callback]:
        # the first hook of all: Lightning's own refusals come next, and cannot name the setting to use instead
        trainer = self.trainer
        if not isinstance(trainer.strategy, (SingleDeviceStrategy, DDPStrategy)):
            raise ValueError(f"`trainer.strategy` must be one device or ddp, got {type(trainer.strategy).__name__}")
        if trainer.strategy.root_device.type == "mps":
            raise ValueError("`trainer.accelerator` must be cpu or gpu, got mps, which has no float64")
        for name, expected, instead in (
            ("precision", "32-true", "`policy.dtype` is the dtype of weights that do not train"),
            ("overfit_batches", 0.0, "`data.num_problems` is the number of problems to train on"),
            ("gradient_clip_val", None, "`optimizer.max_grad_norm` clips gradients"),
            (
                "accumulate_grad_batches",
                1,
                "`data.prompts_per_step` is the size of a step; memory: `loss.max_tokens_per_micro_batch`",
            ),
        ):
            if (got := getattr(trainer, name)) != expected:
                raise ValueError(f"`trainer.{name}` must be {expected or 'unset'}, got {got!r}: {instead}")
        return []

    @override
    def setup(self, stage: str) -> None:
        leave_group_at_exit()
        self._loaded_step = None  # a checkpoint comes next, if there is one
        if not hasattr(self, "engine"):  # of an earlier command: it may hold memory and a state of its own
            self.engine = ENGINES.build(self.rollout_settings.engine)
        tolerance = self.rollout_settings.probe_tolerance
        probed = not self.engine.shares_weights or tolerance == RolloutSettings.probe_tolerance
        unprobed = f"unset with {type(self.engine).__name__}, which samples with the trainer's own weights"
        require(probed, "rollout.probe_tolerance", unprobed, tolerance)
        if stage != "fit":
            return
        self.calibrator = find_one(self.trainer, RewardCalibrator)
        self.assigner = find_one(self.trainer, CreditAssigner)
        self.needs = unite_needs(
            self.calibrator,
            self.assigner,
            reference=self.loss_settings.beta > 0,
            entropy_gradient=self.loss_settings.entropy_coef > 0,
        )
        if not getattr(self.trainer, "fast_dev_run", False):  # it sets `max_steps` itself
            self.check_sizes(self.trainer.max_steps, self.datamodule.prompts_per_step)

    def check_sizes(self, max_steps: int, prompts_per_step: int) -> None:
        """Refuse sizes that do not fit together.

        Raises:
            ValueError: ``max_steps`` is no whole number of rollouts or missing, or there are too many minibatches.
        """
        updates = self.loss_settings.updates_per_rollout
        if max_steps > 0 and max_steps % updates:
            raise ValueError(
                f"`trainer.max_steps` counts optimizer steps and must be a multiple of num_iterations * "
                f"num_minibatches = {updates}, got {max_steps}"
            )
        if self.optimizer_settings.lr_scheduler != "constant" and max_steps < 0:
            raise ValueError(
                f"`optimizer.lr_scheduler` {self.optimizer_settings.lr_scheduler!r} needs `trainer.max_steps` as its "
                f"length, got none"
            )
        if prompts_per_step < self.loss_settings.num_minibatches:
            raise ValueError(
                f"`loss.num_minibatches` must be at most `data.prompts_per_step` = {prompts_per_step} "
                f"(prompts stay whole), got {self.loss_settings.num_minibatches}"
            )

    @property
    def datamodule(self) -> PromptDataModule:
        """The data module: it owns the gold answers and therefore the verifiers."""
        data = getattr(self.trainer, "datamodule", None)  # set by the data connector
        if not isinstance(data, PromptDataModule):
            raise TypeError(f"RLVRModule needs `datamodule=PromptDataModule(...)`, got {type(data).__name__}")
        return data

    @override
    def configure_model(self) -> None:
        if not hasattr(self, "policy"):
            ablations = (a for plugin in find_all(self.trainer, CreditAssigner) for a in plugin.ablations)
            reference = self.loss_settings.beta > 0 or any(ablation.reference for ablation in ablations)
            device = self.trainer.strategy.root_device
            self.policy = load_policy(self.policy_settings, self.tokenizer, with_reference=reference, device=device)

    @override
    def configure_optimizers(self) -> Any:
        optimizer, schedule = make_optimizer(
            self.policy.trainable_weights, self.optimizer_settings, self.trainer.max_steps
        )
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def _check_positions(self, split: Split, completion: int) -> None:
        positions = getattr(self.policy.model.config.get_text_config(), "max_position_embeddings", None)
        prompt = self.datamodule.longest_prompt(split)
        for most, whose in (
            (positions, f"positions of {self.policy_settings.name_or_path}"),
            (self.engine.max_length, f"tokens that {type(self.engine).__name__} is set up for"),
        ):
            if most is not None and prompt and prompt + completion > most:
                raise ValueError(
                    f"the longest prompt and `max_completion_length` must fit into the {most} {whose}, "
                    f"got {prompt} + {completion} tokens"
                )

    @override
    def on_fit_start(self) -> None:
        self._check_positions("train", self.rollout_settings.max_completion_length)
        self._check_positions("val", self.max_evaluated_length)

    @property
    def max_evaluated_length(self) -> int:
        """Budget of sampled tokens for held-out problems."""
        return self.evaluation_settings.max_completion_length or self.rollout_settings.max_completion_length

    @override
    def on_train_start(self) -> None:
        schedule, name = self.lr_schedulers(), self.optimizer_settings.lr_scheduler
        assert isinstance(schedule, LambdaLR)
        use_settings_of_now(schedule, self.optimizer_settings)
        length = self._loaded_max_steps or self.trainer.max_steps
        if name != "constant" and length != self.trainer.max_steps:
            rank_zero_warn(
                f"the {name} schedule of the learning rate was {length} steps long and is now stretched "
                f"to `trainer.max_steps` = {self.trainer.max_steps}: the rate jumps"
            )

    # --- one step ---

    @override
    def training_step(self, prompts: PromptBatch, batch_idx: int) -> dict[str, StepRecord]:
        started = time.perf_counter()
        profiler: Profiler = self.trainer.profiler  # type: ignore[attr-defined]  # set outside of the class
        metrics, timed = StepMetrics(), Stopwatch(profiler, self.device)
        collection = self._collect(prompts, timed)
        learner = Learner(self, self._loss_rows(collection), metrics, timed)
        if self.calibrator.requires:
            learner.score_all()
        learner.take(calibrate(self.calibrator, learner.rollout, partial(gather_rollouts, self.trainer.strategy)))
        learner.run()
        record = StepRecord(
            collection=collection,
            rollout=learner.rollout,
            advantages=learner.advantages,
            token_advantages=learner.token_advantages,
            forwarded=learner.forwarded,
        )
        part_names = {name for verifier in self.datamodule.verifiers.values() for name in verifier.part_names}
        log_record(metrics, record, self.assigner, sorted(part_names))
        metrics.total("flops", learner.flops)
        self._log_step(metrics, record, timed.seconds | {"step": time.perf_counter() - started})
        return {"record": record}

    def _collect(self, prompts: PromptBatch, timed: Stopwatch) -> Collection:
        collection = collect(
            self.policy,
            self.engine,
            self.datamodule.judge,
            prompts,
            Sampling(
                temperature=self.rollout_settings.temperature,
                max_completion_length=self.rollout_settings.max_completion_length,
            ),
            row_local=self.datamodule.row_local_tasks,
            num_generations=self.rollout_settings.num_generations,
            seed_parts=(self.sample_seed, "train", self.progress.rollouts),
            first_group=self.global_rank,
            group_stride=self.trainer.world_size,
            timed=timed,
        )
        with timed("sync"):
            self.engine.sleep()
        return collection

    @property
    def sample_seed(self) -> int:
        """Seed of the sampling: the setting, or else the data seed."""
        seed = self.rollout_settings.sample_seed
        return self.datamodule.data_seed if seed is None else seed

    def _loss_rows(self, collection: Collection) -> Rollout:
        if not self.loss_settings.mask_truncated_completions:
            return collection.rollout
        return without_truncated(collection.rollout)

    def _log_step(self, metrics: StepMetrics, record: StepRecord, seconds: Mapping[str, float]) -> None:
        collection = record.collection
        lengths = collection.rollout.completion_mask.sum()
        metrics.total("sampled_tokens", lengths)
        metrics.total("flops", self._rollout_flops(collection.rollout))
        for part, spent in seconds.items():
            metrics.maximum(f"time/{part}", spent)
        metrics.maximum("policy/micro_batch_tokens", self.micro_batch_tokens)
        scalars = metrics.reduce(self.trainer.strategy)
        if scalars["reward/unscored"] == 1:
            first = collection.verdicts[0]
            rank_zero_warn(f"no completion of this rollout could be scored ({first.status}: {first.reason})")
        if self.loss_settings.mask_truncated_completions and scalars["completion/truncated"] == 1:
            rank_zero_warn("every completion of this rollout was truncated and masked: it contributes no gradient")
        mass_error = scalars.get("credit/mass_error", 0.0)  # nothing is said of it where no row got credit
        if self.assigner.conserves and mass_error > 1e-3 * max(1.0, scalars["advantage/abs_max"]):
            rank_zero_warn(
                f"{type(self.assigner).__name__} claims to conserve, but the mean credit of a completion is off its "
                f"advantage by {mass_error:.3g}; mend it, or set `conserves = False`"
            )
        sampled = scalars.pop("sampled_tokens")
        scalars["time/tokens_per_second"] = sampled / max(scalars["time/rollout"], 1e-9)
        self.progress.rollouts += 1
        self.progress.sampled_tokens += int(sampled)
        self.progress.seconds += scalars["time/step"]
        self.progress.flops += scalars.pop("flops")
        scalars["time/total_rollouts"] = self.progress.rollouts
        scalars["time/total_sampled_tokens"] = self.progress.sampled_tokens
        scalars["time/total_seconds"] = self.progress.seconds
        scalars["time/total_flops"] = self.progress.flops
        self._write(scalars)
        shown = {"reward/mean", "completion/length", "loss/total"}
        self.log_dict({k: v for k, v in scalars.items() if k not in shown}, logger=False)
        self.log_dict({k: scalars.get(k, float("nan")) for k in sorted(shown)}, logger=False, prog_bar=True)

    def _write(self, scalars: dict[str, float]) -> None:
        for logger in self.trainer.loggers:
            logger.log_metrics(scalars, step=self.trainer.global_step)

    def _rollout_flops(self, rollout: Rollout) -> float:
        prefilled = torch.unique(rollout.group_index).numel() / len(rollout)
        tokens: float = rollout.completion_mask.sum().item() + rollout.prompt_mask.sum().item() * prefilled
        return 2.0 * self.policy.num_parameters * tokens

    # --- held-out and test problems ---

    @override
    def on_validation_start(self) -> None:
        self._start_evaluation("val")

    @override
    def on_test_start(self) -> None:
        self._start_evaluation("test")

    def _start_evaluation(self, split: Split) -> None:
        self._check_positions(split, self.max_evaluated_length)
        settings, data = self.evaluation_settings, self.datamodule
        num_samples = settings.num_samples
        if settings.temperature == 0 and num_samples > 1:
            rank_zero_warn(f"greedy samples are all the same: 1 instead of `evaluation.num_samples` = {num_samples}")
            num_samples = 1
        self._evaluated_split: Split = split
        sets = data.set_names(split)
        keeps = self.trainer.state.fn != "fit"  # a digest of all weights is not for every validation of a training
        conditions = self._evaluation_conditions() if keeps else {}
        self.evaluator = Evaluator(
            self.policy,
            self.engine,
            data.judge,
            Sampling(temperature=settings.temperature, max_completion_length=self.max_evaluated_length),
            num_samples=num_samples,
            sample_seed=self.sample_seed,
            summary=EvaluationSummary(sets, num_samples, self.device),
            stores=self._stores(sets, conditions),
            conditions=conditions,
            rank=self.global_rank,
        )

    def _evaluation_conditions(self) -> dict[str, Any]:
        """All that a sample depends on beside its problem and its number.

        Of the engine its name only: its settings are about speed and memory, and may change in the middle.
        """
        return {
            "policy": self.policy_settings.name_or_path,
            "weights": self.policy.digest,
            "dtype": str(self.policy.model.dtype).removeprefix("torch."),
            "step": self._evaluated_step,
            "engine": type(self.engine).__name__,
            "temperature": self.evaluation_settings.temperature,
            "top_p": 1.0,  # no engine filters what it samples
            "top_k": 0,
            "max_completion_length": self.max_evaluated_length,
            "stop_ids": list(self.policy.eos_token_ids),
            "sample_seed": self.sample_seed,
        }

    def _stores(self, sets: Sequence[str], conditions: Mapping[str, Any]) -> dict[str, SampleStore]:
        folder, keep = self.trainer.log_dir, self.evaluation_settings.keep
        if not conditions or keep == "nothing" or folder is None or not self.trainer.loggers:
            return {}
        return open_stores(self.trainer.strategy, Path(folder) / "eval", sets, conditions, keep_text=keep == "texts")

    @override
    def validation_step(self, prompts: PromptBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.evaluator.evaluate(prompts)

    @override
    def test_step(self, prompts: PromptBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.evaluator.evaluate(prompts)

    @override
    def on_validation_epoch_end(self) -> None:
        self._finish_evaluation()

    @override
    def on_test_epoch_end(self) -> None:
        self._finish_evaluation()

    def _finish_evaluation(self) -> None:
        self.engine.sleep()
        self.results = self.evaluator.finish(self.trainer.strategy)
        over_all = "micro" if "micro" in self.results else next(iter(self.results), None)
        held_out = self._evaluated_split == "val" or not self.datamodule.test_sources
        scalars: dict[str, float] = {}
        for group, values in self.results.items():
            shown = values if group in (over_all, "macro") else {name: values[name] for name in _OF_EACH_SET}
            prefix = "eval" if held_out and group == over_all else f"eval/{group}"
            scalars |= {f"{prefix}/{name}": value for name, value in shown.items() if not math.isnan(value)}
        self.log_dict(scalars | {"step": float(self._evaluated_step)}, sync_dist=True)  # "step" is the x-axis

    @property
    def _evaluated_step(self) -> int:
        """Optimizer steps of the weights: Lightning restores its count for ``fit`` only."""
        fitting = self.trainer.state.fn == "fit"
        return self.trainer.global_step if fitting or self._loaded_step is None else self._loaded_step

    # --- checkpoints: what trains, what was consumed, and every random state ---

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["state_dict"] = self.policy.trainable_state_dict()
        checkpoint["progress"] = vars(self.progress)
        checkpoint["max_steps"] = self.trainer.max_steps
        checkpoint["micro_batch_tokens"] = self.micro_batch_tokens
        checkpoint["random_states"] = random_states(self.device)

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.policy.load_trainable_state_dict(checkpoint["state_dict"])
        checkpoint["state_dict"] = {}
        self.progress = Progress(**checkpoint["progress"])
        self._loaded_step = int(checkpoint["global_step"])
        self._loaded_max_steps = int(checkpoint["max_steps"])
        self.micro_batch_tokens = min(self.micro_batch_tokens, int(checkpoint["micro_batch_tokens"]))
        restore_random_states(checkpoint["random_states"], self.device)
