"""When a run is saved, and what it leaves when it ends."""

import inspect
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from lightning_rlvr.monitoring.checkpoint import RunCheckpoint
from lightning_rlvr.policy.settings import LoraSettings
from runs import fit, make_module

STEPS = 3
CASES = [
    ({"keep_all": True}, {"checkpoints/last.ckpt", "checkpoints/step=3.ckpt", "adapter"}),
    (
        {"keep_all": True, "every_n_steps": 2},
        {"checkpoints/last.ckpt", "checkpoints/step=2.ckpt", "checkpoints/step=3.ckpt", "adapter"},
    ),
    ({"save_adapter": False}, {"checkpoints/last.ckpt"}),
    ({"save_merged": True}, {"checkpoints/last.ckpt", "adapter", "merged"}),
]


@pytest.mark.parametrize(("options", "expected"), CASES, ids=[str(options) for options, _ in CASES])
def test_a_run_leaves_what_its_options_say(tmp_path, options, expected):
    module = make_module(policy={"lora": LoraSettings(rank=2)})
    folder = Path(fit(tmp_path, module=module, checkpoint=RunCheckpoint(**options), max_steps=STEPS)[-1])
    left = {path.relative_to(folder).as_posix() for path in [*folder.glob("*/*.ckpt"), *folder.iterdir()]}
    assert {name for name in left if "events" not in name} == expected | {"checkpoints"}
    for path in folder.glob("*/*.ckpt"):
        steps = torch.load(path, weights_only=True)["global_step"]
        assert steps == (STEPS if path.stem == "last" else int(path.stem.partition("=")[2]))
    for name in expected & {"merged"}:
        AutoModelForCausalLM.from_pretrained(folder / name)


def test_every_option_of_the_checkpoint_is_in_the_table():
    assert {name for options, _ in CASES for name in options} == inspect.signature(RunCheckpoint).parameters.keys()
