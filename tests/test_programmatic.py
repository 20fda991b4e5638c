"""The same methods from Python, without configuration files."""

import pytest
from lightning.pytorch import Trainer

from lightning_rlvr.calibration.ot_normal import OTNormalCalibrator
from lightning_rlvr.calibration.zscore import ZScoreCalibrator
from lightning_rlvr.credit.evidence_contrast import EvidenceContrastCredit
from lightning_rlvr.credit.margin import MarginCredit
from lightning_rlvr.credit.mixture import MixtureCredit
from lightning_rlvr.credit.uniform import UniformCredit
from lightning_rlvr.data.datamodule import PromptDataModule
from lightning_rlvr.data.sources import SumsSource
from lightning_rlvr.module import RLVRModule
from lightning_rlvr.policy.settings import PolicySettings
from lightning_rlvr.rollout.base import ENGINES
from lightning_rlvr.rollout.hf import HFEngine
from runs import make_data, make_module


def trainer(folder, *callbacks, **settings):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    return Trainer(
        callbacks=list(callbacks), max_steps=2, default_root_dir=folder, limit_val_batches=0, **quiet, **settings
    )


def test_ten_lines_train(tmp_path):
    module = RLVRModule(policy=PolicySettings(name_or_path="tiny_untrained", lora=None))
    data = PromptDataModule(SumsSource(size=16, val_size=4), prompts_per_step=2)
    run = trainer(tmp_path, OTNormalCalibrator(), MarginCredit())
    run.fit(module, datamodule=data)
    assert run.global_step == module.progress.rollouts == 2


def test_an_engine_given_by_name_serves_all_commands_of_a_process(tmp_path, monkeypatch):
    built = []

    class Counted(HFEngine):
        def __init__(self):
            super().__init__()
            built.append(self)

    monkeypatch.setitem(ENGINES._plugins, "counted", Counted)
    module, run = make_module(rollout={"engine": "counted"}), trainer(tmp_path, ZScoreCalibrator(), UniformCredit())
    run.validate(module, datamodule=make_data())
    run.fit(module, datamodule=make_data())
    run.validate(module, datamodule=make_data())
    assert built == [module.engine]


@pytest.mark.parametrize(
    "callbacks",
    [
        (ZScoreCalibrator(), MarginCredit()),
        (OTNormalCalibrator(), EvidenceContrastCredit()),
        (ZScoreCalibrator(), MixtureCredit([MarginCredit(), EvidenceContrastCredit()], weights=[0.3, 0.7])),
    ],
    ids=["mcpo", "tace", "mixture"],
)
def test_methods_are_two_callbacks(tmp_path, callbacks):
    module = make_module()
    trainer(tmp_path, *callbacks).fit(module, datamodule=make_data())
    assert module.progress.sampled_tokens > 0
    assert module.trainer.callback_metrics["policy/grad_norm"] > 0


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        ((), "exactly one RewardCalibrator, got none; add one to"),
        ((ZScoreCalibrator(),), "exactly one CreditAssigner, got none; add one to"),
        ((MarginCredit(),), "exactly one RewardCalibrator, got none"),
        (
            (ZScoreCalibrator(), OTNormalCalibrator(), UniformCredit()),
            "got ZScoreCalibrator, OTNormalCalibrator; combine",
        ),
        (
            (ZScoreCalibrator(), UniformCredit(), MarginCredit()),
            "exactly one CreditAssigner, got UniformCredit, MarginC",
        ),
    ],
)
def test_missing_and_surplus_plugins_are_named(tmp_path, callbacks, message):
    module = make_module()
    with pytest.raises(ValueError, match=message):
        trainer(tmp_path, *callbacks).fit(module, datamodule=make_data())
    assert module.progress.rollouts == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "bf16-true"}, "`trainer.precision` must be 32-true, got 'bf16-true': `policy.dtype`"),
        ({"gradient_clip_val": 0.5}, "`trainer.gradient_clip_val` must be unset, got 0.5: `optimizer.max_grad_norm`"),
        (
            {"accumulate_grad_batches": 4},
            "`trainer.accumulate_grad_batches` must be 1, got 4: `data.prompts_per_step`",
        ),
    ],
)
def test_trainer_settings_without_a_meaning_here_are_refused(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        trainer(tmp_path, ZScoreCalibrator(), UniformCredit(), **settings).fit(make_module(), datamodule=make_data())
