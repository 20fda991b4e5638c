"""What the README shows runs as it is shown."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import parse

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    line.partition("  #")[0].split()
    for kind, block in BLOCKS
    if not kind
    for line in block.replace("\\\n", "").splitlines()
    if line.startswith("rlvr ")
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_line_parses(command, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    (tmp_path / "surprise.py").write_text(next(block for kind, block in BLOCKS if "SurpriseCredit" in block and kind))
    monkeypatch.syspath_prepend(tmp_path)
    arguments = [argument for argument in command[2:] if not argument.endswith(".ckpt") and argument != "--ckpt_path"]
    parse(*arguments)


@pytest.mark.slow
def test_the_assigner_of_the_guide_trains(tmp_path):
    code = next(block for kind, block in BLOCKS if kind == "python" and "SurpriseCredit" in block)
    (tmp_path / "surprise.py").write_text(code)
    config = str(ROOT / "configs/experiment/tiny_grpo.yaml")
    command = [str(Path(sys.executable).parent / "rlvr"), "fit", "-c", config,
               "--credit", "surprise.SurpriseCredit", "--credit.floor", "0.1", "--trainer.max_steps", "1",
               "--model.policy.name_or_path", "tiny_untrained"]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "runs/tiny_grpo/version_0/checkpoints/last.ckpt").is_file()


def test_the_map_names_what_exists():
    for path in re.findall(r"^  ([\w./]+(?: [\w./]+)*)   ", README.split("## Map")[1], re.MULTILINE):
        for name in path.split():
            assert (ROOT / "lightning_rlvr" / name).exists(), name
