"""Which completions are kept, and how often."""

import inspect
import json
from pathlib import Path

import pytest

from lightning_rlvr.monitoring.samples import SampleWriter
from runs import fit

CASES = [
    ({"every_n_steps": 1}, [1, 2, 3], 4),
    ({"every_n_steps": 2}, [1, 3], 4),
    ({"num_samples": 1}, [1], 1),
    ({"num_samples": 99}, [1], 8),
]


@pytest.mark.parametrize(("options", "steps", "count"), CASES, ids=[str(case[0]) for case in CASES])
def test_samples_are_those_of_the_extreme_advantages_at_the_steps_that_are_due(tmp_path, options, steps, count):
    _, recorder, folder = fit(tmp_path, max_steps=3, callbacks=[SampleWriter(**options)])
    files = sorted((Path(folder) / "samples").iterdir())
    assert [file.name for file in files] == [f"step_{step:06d}.jsonl" for step in steps]
    for file, step in zip(files, steps, strict=True):
        written = [json.loads(line)["advantage"] for line in file.read_text().splitlines()]
        ranked = sorted(recorder.records[step - 1].advantages.tolist(), reverse=True)
        best = (count + 1) // 2
        assert written == ranked[:best] + ranked[len(ranked) - (count - best) :]


def test_every_option_of_the_samples_is_in_the_table():
    assert {name for options, *_ in CASES for name in options} == inspect.signature(SampleWriter).parameters.keys()
