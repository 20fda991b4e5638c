"""Small real runs: the tiny model, sums, and a graded reward that an untrained model gets a signal from."""

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_rlvr.calibration.zscore import ZScoreCalibrator
from lightning_rlvr.credit.uniform import UniformCredit
from lightning_rlvr.data.datamodule import PromptDataModule
from lightning_rlvr.data.sources import SumsSource
from lightning_rlvr.data.templates import PromptTemplate
from lightning_rlvr.module import RLVRModule
from lightning_rlvr.monitoring.checkpoint import RunCheckpoint
from lightning_rlvr.monitoring.run_folder import RunLogger
from lightning_rlvr.policy.settings import PolicySettings
from lightning_rlvr.rollout.base import RolloutEngine
from lightning_rlvr.settings import EvaluationSettings, LossSettings, OptimizerSettings, RolloutSettings
from lightning_rlvr.types import Completions
from lightning_rlvr.verify.function import FunctionVerifier


def digit_share(completions, **columns):
    return [sum(c.isdigit() for c in text) / max(1, len(text)) for text in completions]


def make_data(reward=digit_share, tasks=("sums",), prompts_per_step=2, **changes):
    sources = [SumsSource(size=12, val_size=4, task=task, verifier=FunctionVerifier(reward)) for task in tasks]
    return PromptDataModule(
        sources,
        prompts_per_step=prompts_per_step,
        template=PromptTemplate(chat="plain"),
        max_prompt_length=32,
        **changes,
    )


def make_module(loss=None, rollout=None, policy=None, optimizer=None, evaluation=None):
    return RLVRModule(
        policy=PolicySettings(**({"name_or_path": "tiny_untrained", "lora": None} | (policy or {}))),
        rollout=RolloutSettings(**({"num_generations": 4, "max_completion_length": 8} | (rollout or {}))),
        loss=LossSettings(**(loss or {})),
        optimizer=OptimizerSettings(**({"learning_rate": 1e-3} | (optimizer or {}))),
        evaluation=EvaluationSettings(**(evaluation or {})),
    )


class OneToken(RolloutEngine):
    """Every completion is the same token."""

    def __init__(self, token=5):
        self.token = token

    def generate(self, policy, prompts, prompt_index, seeds, sampling, finished=None):
        shape = (len(seeds), 1)
        return Completions(
            completion_ids=torch.full(shape, self.token),
            completion_mask=torch.ones(shape, dtype=torch.bool),
            truncated=torch.ones(len(seeds), dtype=torch.bool),
            logprobs=torch.zeros(shape),
            prompt_index=prompt_index,
            seeds=seeds,
        )


class Recorder(Callback):
    """Keeps what every step did, and the weights after it."""

    def __init__(self):
        self.records, self.weights, self.metrics = [], [], []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.records.append(outputs["record"])
        self.weights.append({k: v.clone() for k, v in pl_module.policy.trainable_state_dict().items()})
        self.metrics.append({k: float(v) for k, v in trainer.callback_metrics.items()})


def fit(
    folder,
    *,
    module=None,
    data=None,
    calibrator=None,
    credit=None,
    checkpoint=None,
    max_steps=2,
    ckpt_path=None,
    version=None,
    callbacks=(),
):
    """Train; returns module, recorder and the run folder."""
    recorder = Recorder()
    module = module or make_module()
    trainer = Trainer(
        logger=RunLogger(save_dir=str(folder), name="run", version=version),
        callbacks=[
            calibrator or ZScoreCalibrator(),
            credit or UniformCredit(),
            recorder,
            checkpoint or RunCheckpoint(),
            *callbacks,
        ],
        max_steps=max_steps,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
    )
    trainer.fit(module, datamodule=data or make_data(), ckpt_path=ckpt_path)
    return module, recorder, trainer.log_dir


def scalars(folder):
    """tag -> {step: value} as TensorBoard reads them."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: {s.step: s.value for s in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def same_weights(a, b, **tolerance):
    assert a.keys() == b.keys()
    for name in a:
        if tolerance:
            torch.testing.assert_close(a[name], b[name], **tolerance)
        else:
            assert torch.equal(a[name], b[name]), name


def digit_share_of_some(completions, problem, **columns):
    """Nothing to learn for every third problem."""
    values = digit_share(completions)
    return [0.5 if sum(map(ord, p)) % 3 == 0 else value for p, value in zip(problem, values, strict=True)]


def constant_on_rank_0(completions, **columns):
    return [1.0] * len(completions) if torch.distributed.get_rank() == 0 else digit_share(completions)
