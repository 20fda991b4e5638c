"""Plug-ins of other packages: import path, class name, decorator, entry point."""

import os
import re
import subprocess
import sys
import textwrap

import pytest

from command_line import SMALL, TINY, parse
from lightning_rlvr.credit.base import CREDIT_ASSIGNERS, CreditAssigner
from lightning_rlvr.credit.margin import MarginCredit
from lightning_rlvr.registry import Registry
from runs import scalars

PACKAGE = '''
"""A package that knows lightning_rlvr; lightning_rlvr does not know it."""
import torch
from lightning_rlvr.calibration.base import RewardCalibrator
from lightning_rlvr.credit.base import CreditAssigner
from lightning_rlvr.verify.base import Verdict, Verifier

def top_probability(logprobs):
    return logprobs.amax(-1).exp()

class HalfCalibrator(RewardCalibrator):
    """Twice above one half, once below."""
    centered = False
    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale
    def calibrate(self, rollout):
        return self.scale * (rollout.rewards - 0.5)

class DoubtCredit(CreditAssigner):
    """Less credit where the likeliest token was likely."""
    conserves = False
    requires = frozenset({"top_probability"})
    def __init__(self, power: float = 1.0) -> None:
        self.power = power
    def assign(self, rollout, advantages):
        doubt = (1 - rollout.statistics["top_probability"]) ** self.power
        return advantages[:, None] * doubt * rollout.completion_mask
    def diagnostics(self, rollout):
        return {"top_probability": rollout.statistics["top_probability"]}

class LengthVerifier(Verifier):
    """The number of characters, even or odd."""
    def verify(self, attempts):
        odd = [len(attempt.completion) % 2 for attempt in attempts]
        return [Verdict(status="correct" if o else "wrong", reward=float(o)) for o in odd]
'''
ENTRY_POINTS = """
[lightning_rlvr.credit_assigners]
doubt = doubtful:DoubtCredit
[lightning_rlvr.reward_calibrators]
half = doubtful:HalfCalibrator
[lightning_rlvr.token_statistics]
top_probability = doubtful:top_probability
[lightning_rlvr.verifiers]
odd_length = doubtful:LengthVerifier
"""


def install(folder, module, source, entry_points):
    """What pip leaves in site-packages."""
    (folder / f"{module}.py").write_text(source)
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(textwrap.dedent(entry_points))


def test_plugins_of_an_installed_package_train_by_short_name(tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    install(site, "doubtful", PACKAGE, ENTRY_POINTS)
    small = [flag for flag in SMALL if not flag.startswith("--data.train")]
    data = (
        '--data.train={"class_path": "SumsSource", "init_args": {"size": 12, "val_size": 4, "verifier": "odd_length"}}'
    )
    command = [sys.executable, "-m", "lightning_rlvr", "fit", "-c", str(TINY), *small, data,
               "--calibrator", "half", "--calibrator.scale=2", "--credit", "doubt", "--credit.power=0.5",
               "--runs_dir", str(tmp_path)]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-2000:]
    logged = scalars(tmp_path / "tiny_mcpo" / "version_0")
    assert list(logged["credit/top_probability"]) == [1, 2]
    assert all(0 < value < 1 for value in logged["credit/top_probability"].values())
    assert all(value <= 1 for value in logged["advantage/abs_max"].values())
    assert "class_path: doubtful.DoubtCredit" in (tmp_path / "tiny_mcpo" / "version_0" / "config.yaml").read_text()


class LastTokenCredit(CreditAssigner):
    """All credit to the last token.

    Args:
        share: Of the advantage.
    """

    conserves = False

    def __init__(self, share: float = 1.0):
        self.share = share

    def assign(self, rollout, advantages):
        mask = rollout.completion_mask
        return self.share * advantages[:, None] * (mask & (mask.cumsum(1) == mask.sum(1, keepdim=True)))


@pytest.fixture
def registered():
    CREDIT_ASSIGNERS.register("last_token")(LastTokenCredit)
    yield "last_token"
    del CREDIT_ASSIGNERS._plugins["last_token"]


def last_token(cli):
    return next(c for c in cli.trainer.callbacks if isinstance(c, LastTokenCredit))


@pytest.mark.parametrize("name", [f"{__name__}.LastTokenCredit", "LastTokenCredit"])
def test_import_path_and_class_name(name):
    assert last_token(parse("--credit", name, "--credit.share=0.5")).share == 0.5


def test_decorator(registered):
    assert last_token(parse("--credit", registered, "--credit.share=0.5")).share == 0.5
    with pytest.raises(ValueError, match=r"choices: .*last_token"):
        parse("--credit", "first_token")


def test_a_name_belongs_to_one_plugin():
    with pytest.raises(ValueError, match=r"credit assigner name 'margin' is taken by .*MarginCredit.*LastTokenCredit"):
        CREDIT_ASSIGNERS.register("margin")(LastTokenCredit)
    assert CREDIT_ASSIGNERS.register("margin")(MarginCredit) is CREDIT_ASSIGNERS["margin"] is MarginCredit


@pytest.mark.parametrize("name", ["Margin", "top-2", "2nd", "", "a.b", "two words"])
def test_names_are_snake_case(name):
    with pytest.raises(ValueError, match=f"must be lower-case snake case, got {re.escape(repr(name))}"):
        CREDIT_ASSIGNERS.register(name)


@pytest.mark.parametrize(
    ("entry", "error", "message"),
    [
        ("margin = broken:Plugin", ValueError, "token thing name 'margin' is taken by"),
        ("other = broken:Missing", ImportError, "'other' of the installed package broken cannot be imported"),
        ("other = brokken:Plugin", ImportError, "'other' of the installed package broken cannot be imported"),
        ("Other = broken:Plugin", ValueError, "snake case"),
    ],
)
def test_a_broken_package_is_named(tmp_path, monkeypatch, entry, error, message):
    install(tmp_path, "broken", "class Plugin: ...\n", f"[test.things]\n{entry}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    things = Registry("token thing", "test.things")
    things.register("margin")(object())
    with pytest.raises(error, match=message):
        things.names()
