import importlib
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parent.parent / "benchmarks"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "common")


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_tells_what_it_measures_and_the_readme_how_to_run_it(script, name, monkeypatch, capsys):
    module = script(name)
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit, match="0"):
        module.main()
    shown = "".join(capsys.readouterr().out.split())
    assert "".join(module.__doc__.split()) in shown
    assert f"python benchmarks/{name}.py" in (FOLDER / "README.md").read_text()


def test_the_slope_of_a_power_law_is_its_exponent(script):
    slope = script("scaling").slope
    sizes = [32, 64, 128, 256]
    assert slope(sizes, [0.1 * size for size in sizes]) == 1.0
    assert slope(sizes, [3.0 * size**1.5 for size in sizes]) == 1.5
    assert slope(sizes, [7.0] * 4) == 0.0


def test_a_stage_of_the_start_lasts_from_the_end_of_the_one_before(script):
    marks = [(5.0, 4.0), (6.0, 4.5), (7.0, 5.0), (9.0, 6.0), (12.0, 8.0), (12.5, 8.25)]
    taken = script("startup").stages(marks)
    assert list(taken) == [*script("startup").STAGES, "all"]
    assert taken["model"] == {"wall": 3.0, "cpu": 2.0}
    assert taken["all"] == {"wall": 12.5, "cpu": 8.25}
    assert sum(seconds["wall"] for seconds in taken.values()) == 25.0


def test_an_engine_is_compared_by_the_median_rate_where_both_ran(script):
    arms = {
        "hf": {"seconds": [1.0, 2.0, 4.0], "tokens": [100, 100, 100]},  # 100, 50, 25 a second
        "generate": {"seconds": [5.0, 5.0, 5.0], "tokens": [100, 100, 100]},
        "vllm": {"seconds": [1.0], "tokens": [1]},
    }
    assert script("engines").compare(arms) == {"hf": 2.5}


def test_a_part_takes_at_least_its_operations_over_the_rate_and_its_bytes_over_the_bandwidth(script):
    part = script("roofline").Part(name="forward", operations=6e9, bytes=2e9, tokens=1, seconds=10.0)
    assert part.bound(rate=2e9, bandwidth=1e9) == (3.0, "rate")
    assert part.bound(rate=6e9, bandwidth=1e9) == (2.0, "bandwidth")


def test_operations_and_bytes_of_a_rollout_and_of_training_are_those_counted_by_hand(script):
    roofline = script("roofline")
    model = roofline.Sizes(layers=10, adapter=1, head=5, width=2, cache=3, item=2)
    prompt, completion = torch.tensor([4, 4]), torch.tensor([1, 2])
    # prompt 4 x 2 x 10, its head 2 x 5, attention 4 x 2 x (1 + 2 + 3 + 4); second token of row 1: 2 x 15 + 4 x 2 x 5
    # weights 15 x 2 bytes in both forwards, and the cache of 5 tokens in the second
    assert roofline.rollout_work(model, prompt, completion, num_prompts=1) == (170 + 70, 30 + 30 + 30)
    # layers 7 x 2 x 11, head 3 x 2 x 5, attention of tokens 5; 5 and 6: 4 x 2 x 16
    forward = 154 + 30 + 128
    # adapters twice, head and attention twice
    backward = 7 * 2 * 12 + 60 + 256
    work = roofline.training_work(model, prompt, completion, tokens=7, batches=1)
    assert work == ((forward, 30), (backward, 30))
