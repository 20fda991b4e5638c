"""What a person reads after an evaluation."""

import math
import re

import pytest
from rich.console import Console

from lightning_rlvr.evaluation.summary import EvaluationSummary
from lightning_rlvr.evaluation.table import evaluation_table

HEADER = {
    "temperature": 0.6, "top_p": 1.0, "top_k": 0, "max_completion_length": 20480, "stop_ids": [2, 0], "sample_seed": 7,
    "num_samples": 32, "checkpoint": "runs/sums_mcpo/version_0/checkpoints/last.ckpt",
}  # fmt: skip


def printed(results, header=HEADER, width=100):
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(evaluation_table(results, header))
    return capture.get()


def cells(text, name):
    (line,) = (line for line in text.splitlines() if line.startswith(name + " "))
    return line.split()[1:]


@pytest.fixture
def results(make_sample):
    summary = EvaluationSummary(["aime24", "hmmt_feb_2025"], 32)
    for problem, status in enumerate(["correct", "wrong", "timeout", "no_answer"]):
        rows = [make_sample(str(problem), n, status, tokens=20_000 + n, truncated=n == 0) for n in range(32)]
        for name in ("aime24", "hmmt_feb_2025")[: 1 + (problem < 2)]:
            summary.update(name, rows)
    return summary.compute()


def test_a_row_says_what_the_results_say(results):
    # 1 of 4 problems solved: se = sd(1, 0, 0, 0) / 2 = 0.5 / 2; one problem is unscored, one without answer
    rates = ["25.0", "(25.0)", "25.0", "25.0", "25.0", "25.0"]
    expected = ["4", *rates, "20016", "20016", "20028", "3.1", "25.0", "25.0"]
    text = printed(results)
    assert cells(text, "aime24") == expected
    assert cells(text, "hmmt_feb_2025")[:3] == ["2", "50.0", "(50.0)"]
    assert cells(text, "micro")[:2] == ["6", "33.3"]
    assert cells(text, "macro")[:2] == ["6", "37.5"]
    assert "avg@32" in text
    assert re.search(r"\(se\) +@2 +@4 +@8 +@32 +mean +p50 +p90 +cated +swer +scored", text)


def test_the_header_lists_the_conditions_as_used(results):
    text = " ".join(printed(results).split())
    for name, value in HEADER.items():
        assert f"{name} {value}" in text


def test_one_set_has_one_row(results):
    single = {"aime24": results["aime24"]}
    text = printed(single)
    assert "aime24" in text
    assert "micro" not in text
    assert "macro" not in text


def test_six_sets_of_long_completions_fit_into_a_hundred_columns(results):
    names = ["aime24", "aime25", "amc23", "hmmt_feb_2025", "brumo_2025", "cmimc_2025"]
    extreme = results["aime24"] | {"accuracy": 1.0, "accuracy_se": 0.123, "length": 20480.0, "num_problems": 1000.0}
    text = printed(dict.fromkeys((*names, "micro", "macro"), extreme))
    assert len(text.splitlines()) <= len(names) + 10
    assert "\u2026" not in text
    for name in names:
        assert cells(text, name)[:3] == ["1000", "100.0", "(12.3)"]


def test_a_single_sample_has_no_columns_for_several(make_sample):
    summary = EvaluationSummary(["[red]"], 1)
    summary.update("[red]", [make_sample()])
    text = printed(summary.compute())
    assert "pass" not in text
    assert "maj" not in text
    assert cells(text, "[red]")[:3] == ["1", "100.0", "(-)"]


def test_what_is_not_known_is_a_dash(results):
    unknown = {"a": results["aime24"] | {"maj@32": math.nan}}
    assert cells(printed(unknown), "a")[6] == "-"


def test_no_results_are_an_empty_table():
    assert "temperature 0.6" in printed({})
