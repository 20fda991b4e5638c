"""Stopping and resuming is the same run, bit for bit on the CPU."""

import resource
import signal
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback

from lightning_rlvr.calibration.ot_normal import OTNormalCalibrator
from lightning_rlvr.credit.evidence_contrast import EvidenceContrastCredit
from lightning_rlvr.credit.margin import MarginCredit
from lightning_rlvr.monitoring.checkpoint import AtomicCheckpointIO
from lightning_rlvr.monitoring.run_folder import RunLogger
from lightning_rlvr.policy.settings import LoraSettings
from runs import fit, make_data, make_module, same_weights, scalars


def plan(**loss):
    torch.manual_seed(0)  # of a new adapter
    policy = {"lora": LoraSettings(rank=4, alpha=8)} if loss.pop("use_lora", False) else {}
    return {
        "module": make_module(loss=loss, policy=policy, optimizer={"lr_scheduler": "cosine", "warmup_steps": 2}),
        "data": make_data(tasks=("sums", "more_sums"), prompts_per_step=5),
        "calibrator": OTNormalCalibrator(scope="task_running"),
    }


@pytest.mark.parametrize("stop", [2, 4, 6])  # inside an epoch, and near the ends of epochs of 5 batches
@pytest.mark.parametrize("loss", [{}, {"num_iterations": 2, "beta": 0.1}, {"use_lora": True, "beta": 0.1}])
def test_resumed_run_equals_the_unbroken_one(tmp_path, stop, loss):
    whole = fit(tmp_path / "whole", **plan(**loss), credit=MarginCredit(), max_steps=8)
    # the schedule needs its full length, so the first part is cut short by an exception, as in real life
    with pytest.raises(RuntimeError, match="went away"):
        fit(tmp_path / "part", **plan(**loss), credit=MarginCredit(), max_steps=8, callbacks=[StopAfter(stop)])
    checkpoint = tmp_path / "part" / "run" / "version_0" / "checkpoints" / "stopped.ckpt"
    rest = fit(tmp_path / "rest", **plan(**loss), credit=MarginCredit(), max_steps=8, ckpt_path=checkpoint)
    same_weights(whole[1].weights[-1], rest[1].weights[-1])
    assert whole[0].progress.rollouts == rest[0].progress.rollouts
    assert whole[0].progress.sampled_tokens == rest[0].progress.sampled_tokens
    unbroken, resumed = scalars(whole[2]), scalars(rest[2])
    assert resumed["loss/total"] == {step: v for step, v in unbroken["loss/total"].items() if step > stop}
    assert resumed["reward/mean"] == {step: v for step, v in unbroken["reward/mean"].items() if step > stop}


class StopAfter(Callback):
    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step >= self.step:
            trainer.save_checkpoint(Path(trainer.log_dir) / "checkpoints" / "stopped.ckpt")
            raise RuntimeError("the machine went away")


def test_checkpoint_holds_what_trains_and_loads_as_weights_only(tmp_path):
    module, _, folder = fit(tmp_path, **plan(use_lora=True), credit=EvidenceContrastCredit(), max_steps=2)
    saved = torch.load(Path(folder) / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["state_dict"].keys() == module.policy.trainable_state_dict().keys()
    assert all("lora" in name for name in saved["state_dict"])
    assert saved["progress"]["rollouts"] == 2


def test_another_adapter_is_refused_by_name(tmp_path):
    _, _, folder = fit(tmp_path, **plan(use_lora=True), max_steps=1)
    with pytest.raises(ValueError, match=r"policy.lora"):
        fit(
            tmp_path,
            module=make_module(),
            data=plan()["data"],
            calibrator=plan()["calibrator"],
            max_steps=2,
            ckpt_path=Path(folder) / "checkpoints" / "last.ckpt",
        )


def test_a_full_disk_costs_no_earlier_checkpoint(tmp_path):
    target = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"step": 1}, target)
    before = target.read_bytes()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"could not save the checkpoint .*; earlier ones are intact"):
            AtomicCheckpointIO().save_checkpoint({"weights": torch.zeros(100_000)}, target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert target.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]


def test_optimizer_settings_of_now_win_over_those_of_the_checkpoint(tmp_path):
    _, _, folder = fit(tmp_path, max_steps=1)
    module = make_module(optimizer={"learning_rate": 5e-4, "weight_decay": 0.3})
    module, recorder, _ = fit(
        tmp_path, module=module, max_steps=2, ckpt_path=Path(folder) / "checkpoints" / "last.ckpt"
    )
    assert recorder.metrics[0]["policy/learning_rate"] == pytest.approx(5e-4)
    assert {group["weight_decay"] for group in module.trainer.optimizers[0].param_groups} == {0.3}


def test_a_run_stopped_after_a_short_batch_goes_on(tmp_path):
    """12 problems in batches of 5 and 4 minibatches are 4, 4 and 2 steps: step 10 is no multiple of 4."""
    loss = {"num_minibatches": 4}
    data = make_data(prompts_per_step=5)
    with pytest.raises(RuntimeError, match="went away"):
        fit(tmp_path, module=make_module(loss=loss), data=data, max_steps=20, callbacks=[StopAfter(10)])
    checkpoint = tmp_path / "run" / "version_0" / "checkpoints" / "stopped.ckpt"
    data = make_data(prompts_per_step=5)
    module, _, _ = fit(tmp_path, module=make_module(loss=loss), data=data, max_steps=20, ckpt_path=checkpoint)
    assert module.progress.rollouts == 6


def test_an_evaluated_checkpoint_is_plotted_at_its_own_step(tmp_path):
    _, _, folder = fit(tmp_path, max_steps=2)
    trainer = Trainer(logger=RunLogger(save_dir=str(tmp_path), name="held_out"), accelerator="cpu")
    checkpoint = Path(folder) / "checkpoints" / "last.ckpt"
    trainer.validate(make_module(), datamodule=make_data(), ckpt_path=checkpoint, verbose=False, weights_only=True)
    assert list(scalars(trainer.log_dir)["eval/accuracy"]) == [2]


def test_a_stretched_schedule_is_reported(tmp_path):
    optimizer = {"lr_scheduler": "linear"}
    _, _, folder = fit(tmp_path, module=make_module(optimizer=optimizer), max_steps=2)
    checkpoint = Path(folder) / "checkpoints" / "last.ckpt"
    with pytest.warns(UserWarning, match="the linear schedule of the learning rate was 2 steps long"):
        fit(tmp_path, module=make_module(optimizer=optimizer), max_steps=4, ckpt_path=checkpoint)
