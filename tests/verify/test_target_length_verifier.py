import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import CONFIGS, parse
from lightning_rlvr.verify.base import VERIFIERS, Attempt
from lightning_rlvr.verify.target_length import TargetLengthVerifier, target_length_punishment


def attempt(length, text=""):
    return Attempt(
        prompt="", completion=text, completion_ids=(7,) * length, truncated=False, columns={"answer": "7"},
        max_completion_length=None,
    )  # fmt: skip


def verdict(length, target=20, tolerance=8):
    return TargetLengthVerifier(target, tolerance).verify([attempt(length)])[0]


def test_registered():
    assert VERIFIERS["target_length"] is TargetLengthVerifier


def test_punishment_is_linear_up_to_the_tolerance():
    # |n - 20| / 8, at most 1
    rewards = [target_length_punishment(length, 20, 8) for length in (1, 12, 14, 20, 21, 28, 29)]
    assert rewards == [-1.0, -1.0, -0.75, 0.0, -0.125, -1.0, -1.0]


@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 60))
def test_punishment_is_the_same_to_either_side_and_best_on_target(target, tolerance, off):
    above, below = (target_length_punishment(target + d, target, tolerance) for d in (off, -off))
    assert above == below == -min(off / tolerance, 1)
    assert (above == 0) == (off == 0)


def test_on_target_counts_as_correct():
    assert [(verdict(n).status, verdict(n).reward) for n in (20, 19, 24, 99)] == [
        ("correct", 0.0), ("wrong", -0.125), ("wrong", -0.5), ("wrong", -1.0),
    ]  # fmt: skip
    assert str(verdict(20).reward) == "0.0", "no minus zero in logs"


def test_without_token_ids_there_is_no_score():
    assert (verdict(0).status, verdict(0).reason) == ("error", "no token ids to count")
    assert math.isnan(verdict(0).reward)


@pytest.mark.parametrize("bad", [True, 0, -3, 2.5, math.inf, None, "20"])
@pytest.mark.parametrize("name", ["target", "tolerance"])
def test_bad_settings_are_refused(name, bad):
    with pytest.raises(ValueError, match=f"`{name}` must be a whole number of at least 1, got {bad!r}"):
        TargetLengthVerifier(**{"target": 20, "tolerance": 8, name: bad})


def test_it_needs_its_settings():
    with pytest.raises(ValueError, match="'target_length' needs settings: target, tolerance"):
        VERIFIERS.build("target_length")


@pytest.mark.parametrize(("file", "answers", "target"), [("exact", "exact", 20), ("math", "math", 1024)])
def test_the_configs_weigh_the_answer_twice_the_length(file, answers, target):
    flags = ["--data.train=SumsSource", f"--data.train.verifier={CONFIGS / 'verifier' / f'{file}_target_length.yaml'}"]
    verifier = parse(*flags).datamodule.train_sources[0].verifier
    assert (verifier.part_names, verifier.weights) == ((answers, "target_length"), [1.0, 0.5])
    assert verifier.verifiers[1].target == target


def test_the_config_for_sums_reads_the_last_number():
    flags = ["-c", CONFIGS / "experiment" / "sums_grpo.yaml"]
    [plain] = parse(*flags).datamodule.train_sources
    composed = CONFIGS / "verifier" / "exact_target_length.yaml"
    [source] = parse(*flags, "--data.train.verifier", composed).datamodule.train_sources
    assert source.verifier.verifiers[0].extract == plain.verifier.extract == "last_number"
    right, wrong = source.verifier.verify([attempt(16, "3 + 4 is 7"), attempt(20, "3 + 4 is 8")])
    assert (right.status, right.reward, wrong.reward) == ("correct", 1 - 0.5 * 4 / 16, 0.0)
