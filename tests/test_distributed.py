"""Two processes train like one: same samples, same losses to float32 rounding, no hang."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runs import scalars

pytestmark = pytest.mark.slow
CONFIG = Path(__file__).parents[1] / "configs" / "experiment" / "tiny_tace.yaml"
DATA = """
data:
  train:
    - class_path: lightning_rlvr.data.sources.SumsSource
      init_args:
        size: 20
        val_size: 5
        verifier:
          class_path: lightning_rlvr.verify.function.FunctionVerifier
          init_args: {{function: runs.{reward}}}
  prompts_per_step: {prompts}
"""
SHORT = [
    "--model.policy.name_or_path=tiny_untrained", "--model.rollout.max_completion_length=8",
    "--model.rollout.num_generations=4", "--trainer.accelerator=cpu", "--trainer.max_steps=4",
    "--model.loss.max_tokens_per_micro_batch=60",
]  # fmt: skip


def train(folder, name, data, *flags):
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parent),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-m", "lightning_rlvr", "fit", "-c", str(CONFIG), "-c", str(data), *SHORT,
               "--runs_dir", str(folder), "--name", name, *flags]  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-2000:]
    return scalars(folder / name / "version_0")


def compare(folder, reward, prompts, *flags):
    data = folder / "data.yaml"
    data.write_text(DATA.format(reward=reward, prompts=prompts))
    one = train(folder, "one", data, *flags)
    two = train(folder, "two", data, *flags, "--trainer.devices=2", "--trainer.strategy=ddp")
    assert one.keys() == two.keys()
    assert len(list((folder / "two").iterdir())) == 1
    for tag in one:
        if not tag.startswith("time/") and tag != "policy/sampler_gap":
            assert two[tag] == pytest.approx(one[tag], rel=2e-4, abs=2e-5), tag
    return one


def test_uneven_prompts_lengths_and_skipped_rows(tmp_path):
    logged = compare(tmp_path, "digit_share_of_some", 5)
    assert 0 < min(logged["advantage/rows_forwarded"].values()) < 1


def test_rows_of_all_ranks_enter_calibration_and_every_update(tmp_path):
    flags = ["--calibrator.equalize=rms", "--model.loss.num_iterations=2", "--model.loss.num_minibatches=2",
             "--model.loss.loss_type=dapo", "--model.loss.beta=0.1",
             "--model.loss.mask_truncated_completions=true"]  # fmt: skip
    compare(tmp_path, "digit_share", 3, *flags)


def test_a_rank_without_any_signal_keeps_step_and_retreats_with_the_one_that_ran_out_of_memory(tmp_path):
    data = tmp_path / "data.yaml"
    data.write_text(DATA.format(reward="constant_on_rank_0", prompts=4))
    scarce = ["--trainer.callbacks+=test_out_of_memory.Scarce", "--trainer.callbacks.most=50"]
    logged = train(tmp_path, "two", data, "--trainer.devices=2", "--trainer.strategy=ddp", *scarce)
    assert 1 <= min(logged["policy/micro_batch_tokens"].values()) <= 50
    assert 0 < max(logged["advantage/rows_forwarded"].values()) <= 0.5
    assert min(logged["policy/grad_norm"].values()) > 0


def test_the_process_group_is_left_before_the_interpreter_goes(tmp_path):
    script = f"""
import atexit, torch.distributed as dist
from lightning_rlvr.distributed import leave_group_at_exit
atexit.register(lambda: print("member" if dist.is_initialized() else "left"))  # first registered, last to run
dist.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=0, world_size=1)
leave_group_at_exit()
leave_group_at_exit()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "left\n"
