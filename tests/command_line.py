"""The command line in process, on the untrained tiny model with a graded reward."""

import contextlib
import json
import os
from pathlib import Path

import pytest

from lightning_rlvr.__main__ import main
from lightning_rlvr.cli import RLVRCLI

CONFIGS = Path(__file__).parents[1] / "configs"
TINY = CONFIGS / "experiment" / "tiny_mcpo.yaml"


def sums(size=12, val_size=4, function="runs.digit_share"):
    """A value for ``--data.train``."""
    verifier = {
        "class_path": "lightning_rlvr.verify.function.FunctionVerifier",
        "init_args": {"function": function},
    }
    source = {"size": size, "val_size": val_size, "verifier": verifier}
    return json.dumps({"class_path": "lightning_rlvr.data.sources.SumsSource", "init_args": source})


SMALL = [
    "--model.policy.name_or_path=tiny_untrained",
    "--model.rollout.max_completion_length=8",
    "--model.rollout.num_generations=4",
    "--model.optimizer.learning_rate=1e-3",
    "--data.prompts_per_step=2",
    f"--data.train={sums()}",
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
    "--trainer.max_steps=2",
]


def parse(*args, config=TINY):
    """The objects that a command line resolves to; nothing is trained."""
    return RLVRCLI(["-c", str(config), *map(str, args)], run=False)


def plugins(cli):
    """Callback by class name."""
    return {type(callback).__name__: callback for callback in cli.trainer.callbacks}


def fit(folder, *args):
    """Train for 2 steps; returns the folder of the run."""
    runs = folder / "tiny_mcpo"
    before = set(runs.iterdir()) if runs.is_dir() else set()
    main(["fit", "-c", str(TINY), *SMALL, "--runs_dir", str(folder), *map(str, args)])
    [run] = set(runs.iterdir()) - before
    return run


def error(capsys, *args):
    """The sentence with which a command line ends."""
    with pytest.raises(SystemExit) as end:
        main([*map(str, args)])
    assert end.value.code not in (0, None)
    sentence, hint = str(end.value.code).splitlines()
    assert hint.startswith("(RLVR_DEBUG=1")
    assert "Traceback" not in capsys.readouterr().err
    return sentence


def fit_error(capsys, folder, *args):
    """The sentence with which a small run ends, and the files that it leaves."""
    with contextlib.chdir(folder):
        sentence = error(capsys, "fit", "-c", TINY, *SMALL, *args)
    assert not list(folder.rglob("checkpoints")), "nothing was learned, nothing is saved"
    return sentence


os.environ.pop("RLVR_DEBUG", None)
