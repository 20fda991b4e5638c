import importlib
import sys
from pathlib import Path

import pytest

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
