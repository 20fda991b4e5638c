import importlib
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parent.parent / "benchmarks"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "common")
TINY = """
name: tiny
trainer: {configs}/base/quickstart.yaml
model: {{policy: {{name_or_path: tiny_untrained, lora: {{rank: 2}}}}, rollout: {{num_generations: 2}}}}
data: {configs}/data/tiny_sums.yaml
calibrator: {configs}/calibrator/zscore.yaml
credit: {configs}/credit/uniform.yaml
"""
SMALL = {
    "credit_cost": "--config tiny.yaml --max-completion-length 4 --rounds 2 --head-rounds 2 --head-tokens 8",
    "engines": "--model tiny_untrained --prompts 2 --group 2 --max-completion-length 4 --processes 1 --rounds 1",
    "gpu": "--device cpu --layers 2 --hidden 64 --intermediate 96 --heads 4 --key-value-heads 2 --head-dim 16 "
    "--words 500 --rank 2 --prompts 1 --group 2 --prompt-length 4 --max-completion-length 4 --budget 64 --repeats 1",
    "head_memory": "--tokens 8 --width 16 --vocabularies 1000 2000",
    "roofline": "--config tiny.yaml --max-completion-length 4 --repeats 1",
    "scaling": "--config tiny.yaml --completions 8 16 --lengths 2 --length 2",
    "step_vs_trl": "--config tiny.yaml --max-completion-length 2 --rounds 1 --warmup 0 --steps 1 --trl",
    "verdicts": "--size 8 --rounds 2 --time-limit 3",
}
"""Script -> arguments that make it a matter of a second or two, in this process and without what is not installed."""


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


def test_every_script_but_the_start_has_small_sizes_here():
    assert sorted([*SMALL, "startup"]) == SCRIPTS


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY.format(configs=FOLDER.parent / "configs"))


@pytest.mark.parametrize("name", SMALL)
def test_a_script_measures_prints_and_writes(script, tiny, name, monkeypatch, capsys):
    module = script(name)
    monkeypatch.setattr(module, "in_new_process", lambda work, *arguments: work(*arguments), raising=False)
    monkeypatch.setattr(script("verdicts"), "HANGING", script("verdicts").HANGING[:1])
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "")  # a script may set it
    monkeypatch.setattr(sys, "argv", [name, *SMALL[name].split(), "--output", "found/result.json"])
    module.main()
    assert "written to found/result.json" in capsys.readouterr().out
    assert json.loads(Path("found/result.json").read_text())["environment"]["packages"]["torch"]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make vllm")
def test_both_sides_of_vllm_are_measured(tmp_path):
    sizes = SMALL["engines"].split()
    command = [sys.executable, str(FOLDER / "engines.py"), "--engines", "vllm", "raw_vllm", *sizes]
    subprocess.run([*command, "--output", tmp_path / "result.json"], check=True, timeout=300)
    arms = json.loads((tmp_path / "result.json").read_text())["arms"]
    assert all(0 < tokens <= 16 for name in ("vllm", "raw_vllm") for tokens in arms[name]["tokens"])


def test_the_clock_of_the_start_reads_every_stage_once(script, tiny, monkeypatch, capsys):
    startup = script("startup")
    monkeypatch.setattr(startup.Clock, "marks", [])
    arguments = ["--runs_dir=runs", "--trainer.max_steps=1", "--trainer.enable_progress_bar=false"]
    with pytest.raises(SystemExit, match="0"):
        startup.start(["fit", "-c", "tiny.yaml", *arguments, "--trainer.callbacks+=startup.Clock"])
    marks = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(marks) == len(startup.STAGES)
    assert marks == sorted(marks)


def test_what_has_been_measured_is_on_disk_before_the_next_arm_begins(script, tiny, monkeypatch):
    engines = script("engines")

    def measure(work, name, options):
        if name == "generate":
            raise KeyboardInterrupt
        return {"seconds": [1.0, 2.0, 4.0], "tokens": [100, 100, 100], "peak_gib": 1.0}

    monkeypatch.setattr(engines, "in_new_process", measure)
    monkeypatch.setattr(sys, "argv", ["engines", "--engines", "hf", "generate", "--output", "cut.json"])
    with pytest.raises(KeyboardInterrupt):
        engines.main()
    assert list(json.loads(Path("cut.json").read_text())["arms"]) == ["hf"]


@pytest.mark.parametrize(("seconds", "gib", "met"), [(40.0, 4.0, 3), (30.0, 4.0, 2), (40.0, 3.9, 1)])
def test_a_step_passes_at_the_bars_and_not_below(script, seconds, gib, met):
    step = script("step_vs_trl")
    arms = {
        name: {
            "memory_gib": {"peak": peak, "before_training": 0.5},
            **dict.fromkeys(("median_seconds", "median_cpu_seconds", "median_seconds_per_1000_tokens"), taken),
        }
        for name, taken, peak in ((step.OURS, 10.0, 1.0), ("trl 8x4", seconds, gib))
    }
    case = {"rewards": "natural", "max_completion_length": 64, "comparison": step.compare(arms)}
    cells = [next(iter(column.cells)) for column in step.bars([case]).columns]
    assert sum(cell.endswith("met") for cell in cells) == met


def test_prompts_that_differ_are_not_compared(script):
    step = script("step_vs_trl")
    step.same_prompts({"a": [{"prompts": [["1+1="]]}], "b": [{"prompts": [["1+1="]]}]})
    with pytest.raises(RuntimeError, match="did not see the same prompts"):
        step.same_prompts({"a": [{"prompts": [["1+1="]]}], "b": [{"prompts": [["1+2="]]}]})


def test_a_gpu_is_asked_for_in_one_sentence(script, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu"])
    with pytest.raises(SystemExit, match="needs a GPU that torch can use, or --device cpu and small sizes"):
        script("gpu").main()


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
