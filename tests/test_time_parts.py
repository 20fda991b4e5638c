"""Where the seconds of a step went: in TensorBoard, and under the same names in the trainer's profilers."""

import logging.handlers
import re
import time

import pytest

from command_line import fit as fit_by_command
from command_line import sums
from lightning_rlvr.rollout.hf import HFEngine
from lightning_rlvr.stopwatch import PARTS
from runs import digit_share, fit, make_module, scalars


class Slow(HFEngine):
    """Takes its time for everything, another one for each thing."""

    def sync(self, policy):
        time.sleep(0.05)

    def sleep(self):
        time.sleep(0.06)

    def generate(self, *args):
        time.sleep(0.17)
        return super().generate(*args)


def slow_reward(completions, **columns):
    time.sleep(0.14)
    return digit_share(completions)


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """Scalars of a slow run under the simple profiler, and the profiler's report: name -> calls and seconds."""
    reward = sums(function="test_time_parts.slow_reward")
    flags = [
        "--model.rollout.engine=test_time_parts.Slow", f"--data.train={reward}", "--model.loss.num_iterations=2",
        "--trainer.max_steps=4", "--trainer.profiler=simple",
    ]  # fmt: skip
    logger, heard = logging.getLogger("lightning.pytorch.profilers.profiler"), logging.handlers.BufferingHandler(100)
    logger.addHandler(heard)
    run = fit_by_command(tmp_path_factory.mktemp("runs"), *flags)
    logger.removeHandler(heard)
    report = "".join(record.getMessage() for record in heard.buffer)
    rows = re.findall(r"^\|  (\S+) +\t\| +\S+ +\t\|  (\d+) +\t\|  (\S+)", report, re.MULTILINE)
    return scalars(run), {name: (int(calls), float(seconds)) for name, calls, seconds in rows}


def test_every_part_gets_its_own_seconds_and_together_they_are_the_step(slow):
    logged, _ = slow
    least = {"rollout": 0.17, "sync": 0.11, "verify": 0.14, "score": 0, "backward": 0, "optimizer": 0}
    assert least.keys() == set(PARTS)
    for step in (2, 4):
        spent = {part: logged[f"time/{part}"][step] for part in PARTS}
        assert all(spent[part] > seconds for part, seconds in least.items())
        assert spent["sync"] < spent["verify"] + spent["rollout"]
        assert 0.5 * logged["time/step"][step] < sum(spent.values()) < logged["time/step"][step]  # a machine may stall


def test_the_profiler_reports_the_same_parts(slow):
    logged, report = slow
    calls = {part: report[part][0] for part in PARTS}
    assert calls == {"rollout": 2, "sync": 4, "verify": 2, "score": 2, "backward": 4, "optimizer": 4}
    for part in PARTS:
        assert report[part][1] == pytest.approx(sum(logged[f"time/{part}"].values()), rel=0.05, abs=0.2)


def test_every_part_is_logged_also_where_nothing_of_it_is_done(tmp_path):
    _, _, folder = fit(tmp_path, module=make_module(), max_steps=1)
    logged = scalars(folder)
    assert logged["time/score"] == {1: 0.0}
    assert all(f"time/{part}" in logged for part in PARTS)
