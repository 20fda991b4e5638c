"""What the README shows runs as it is shown."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from lightning.pytorch import Trainer

from command_line import parse, sums
from lightning_rlvr.__main__ import main
from lightning_rlvr.cli import expand_short_names
from lightning_rlvr.policy import loading
from lightning_rlvr.policy.tiny import tiny_folder
from lightning_rlvr.sweep.command import _parsed as parsed_sweep
from lightning_rlvr.sweep.spec import expand, read_spec
from runs import scalars

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    shlex.split(line.partition("  #")[0].partition(" > ")[0])
    for kind, block in BLOCKS
    if not kind
    for line in block.replace("\\\n", "").splitlines()
    if line.startswith("rlvr ")
]
VERIFY, SWEEP, REPORT = ([c for c in COMMANDS if c[1] == name] for name in ("verify", "sweep", "report"))


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in VERIFY + SWEEP + REPORT], ids=" ".join)
def test_every_command_line_parses(command, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    (tmp_path / "surprise.py").write_text(next(block for kind, block in BLOCKS if "SurpriseCredit" in block and kind))
    monkeypatch.syspath_prepend(tmp_path)
    arguments = [argument for argument in command[1:] if not argument.endswith(".ckpt") and argument != "--ckpt_path"]
    parse(*expand_short_names(arguments)[1:])


def test_sweeps_and_reports_are_of_sweeps_that_exist(monkeypatch):
    monkeypatch.chdir(ROOT)
    for command in SWEEP:
        options, _ = parsed_sweep(command[2:])
        assert expand(read_spec(options.spec))
    for command in REPORT:
        assert Path("sweeps", f"{Path(command[2]).name}.yaml").is_file()
    assert (len(SWEEP), len(REPORT)) == (3, 1)


def test_the_verifier_of_the_guide_judges(monkeypatch, tmp_path, capsys):
    [code] = (block for kind, block in BLOCKS if "LengthVerifier" in block)
    (tmp_path / "length.py").write_text(code.replace('register("length")', 'register("length_of_the_guide")'))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    main(["verify", "--verifier", "length.LengthVerifier", "3", "Answer: abc"])
    assert "correct" in capsys.readouterr().out


def test_every_verification_gives_a_verdict(monkeypatch, tmp_path, capsys):
    (tmp_path / "samples.jsonl").write_text('{"gold": "12", "pred": "Answer: 12"}\n')
    monkeypatch.chdir(tmp_path)
    for command in VERIFY:
        main(command[1:])
        assert "correct" in capsys.readouterr().out
    assert len(VERIFY) == 2


def test_the_lines_of_python_train(monkeypatch, tmp_path):
    """To the letter, but for the warm-up of the tiny model."""
    [code] = (block for kind, block in BLOCKS if kind == "python" and "trainer.fit" in block)
    monkeypatch.setattr(loading, "tiny_folder", lambda name: tiny_folder(f"{name}_untrained"))
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(code, names)
    assert isinstance(names["trainer"], Trainer)
    assert names["trainer"].global_step == 2


@pytest.mark.slow
def test_quickstart_shows_what_the_run_measured(tmp_path):
    flags = [
        f"--runs_dir={tmp_path}", f"--data.train={sums(function='runs.digit_share')}", "--data.val_problems=4",
        "--model.policy.name_or_path=tiny_untrained", "--model.rollout.max_completion_length=40",
        "--model.optimizer.learning_rate=1e-2", "--trainer.max_steps=2", "--trainer.enable_progress_bar=false",
    ]  # fmt: skip
    done = in_a_process([sys.executable, "-m", "lightning_rlvr.quickstart", *flags], ROOT)
    [run] = (tmp_path / "sums_mcpo").iterdir()
    logged = {tag: list(values.values()) for tag, values in scalars(run).items() if tag.startswith("eval/")}
    rows = [re.findall(r"[+-]?[\d.]+", line) for line in done.stdout.splitlines() if line.startswith("\u2502")]
    accuracy, *others = [[float(number) for number in numbers] for numbers in rows]
    before, after = (100 * value for value in logged["eval/accuracy"])
    errors = [(share * (100 - share) / 4) ** 0.5 for share in (before, after)]
    assert accuracy == pytest.approx([before, errors[0], after, errors[1], after - before], abs=0.06)
    assert 0 < before < 100
    for row, tag in zip(others, ("length", "truncated", "no_answer"), strict=True):
        first, last = logged[f"eval/{tag}"]
        assert row == pytest.approx([first, last, last - first], abs=0.006), tag
    assert logged["eval/length"][0] != logged["eval/length"][1]
    assert "4 held-out problems x 2 samples" in done.stdout
    assert "\n2 optimizer steps" in done.stdout
    for name, path in (("plot", "quickstart.png"), ("adapter", "adapter")):
        assert re.search(rf"^{name} +{re.escape(str(run / path))}$", done.stdout, re.MULTILINE)
        assert (run / path).exists()
    assert {"config.yaml", "config.validate.yaml"} <= {file.name for file in run.iterdir()}, (
        "it can be resumed and tested"
    )
    assert (run / "quickstart.png").read_bytes().startswith(b"\x89PNG")


def in_a_process(command, folder):
    """Finished without an error; the package and the modules of the tests are those beside this file."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = dict(os.environ, PYTHONPATH=paths, COLUMNS="120")
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done


@pytest.mark.slow
def test_the_assigner_of_the_guide_trains(tmp_path):
    code = next(block for kind, block in BLOCKS if kind == "python" and "SurpriseCredit" in block)
    (tmp_path / "surprise.py").write_text(code)
    config = str(ROOT / "configs/experiment/tiny_grpo.yaml")
    command = [str(Path(sys.executable).parent / "rlvr"), "fit", "-c", config,
               "--credit", "surprise.SurpriseCredit", "--credit.floor", "0.1", "--trainer.max_steps", "1",
               "--model.policy.name_or_path", "tiny_untrained"]  # fmt: skip
    in_a_process(command, tmp_path)
    assert (tmp_path / "runs/tiny_grpo/version_0/checkpoints/last.ckpt").is_file()


def test_the_map_names_what_exists():
    for path in re.findall(r"^  ([\w./]+(?: [\w./]+)*)   ", README.split("## Map")[1], re.MULTILINE):
        for name in path.split():
            assert (ROOT / "lightning_rlvr" / name).exists(), name
