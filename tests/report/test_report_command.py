"""`rlvr report` as people use it."""

import io
import json
import shutil
from contextlib import redirect_stdout

import pandas as pd
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from fabricated_results import make_results
from lightning_rlvr.report import hparams, overview
from lightning_rlvr.report.command import report_command
from lightning_rlvr.report.paired import points
from lightning_rlvr.report.results import SweepResults
from lightning_rlvr.report.section import Section
from lightning_rlvr.report.statistics import compare
from report_folders import make_curve, write_json


@pytest.fixture(scope="module")
def shown(written_once, tmp_path_factory):
    """Folder of a report and what was printed; one run of five had failed."""
    sweep = shutil.copytree(written_once, tmp_path_factory.mktemp("reported") / "runs")
    write_json(sweep / "mcpo" / "seed_2" / "cell.json", {"status": "failed", "message": "it [broke]"})
    with redirect_stdout(io.StringIO()) as printed:
        report_command([str(sweep), "--confidence", "0.9"])
    return sweep / "report", printed.getvalue()


@pytest.fixture(scope="module")
def reported(shown):
    return shown[0]


def test_the_report_is_written(reported):
    assert {path.name for path in reported.iterdir()} == {
        "report.html", "report.md", "table.tex", "tables", "plots", "hparams",
    }  # fmt: skip
    text = (reported / "report.md").read_text()
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    assert titles[0] == "## Summary"
    assert titles[-2:] == ["## What cannot be concluded", "## How this was made"]
    assert r"\label{tab:paired}" in (reported / "table.tex").read_text()


def test_verdicts_notes_and_path_are_printed(shown):
    folder, printed = shown
    assert "verdict" in printed
    assert "Note: `mcpo/seed_2` is left out: it failed (it [broke])." in " ".join(printed.split())
    assert printed.splitlines()[-1] == str(folder / "report.html")


def test_all_intervals_have_the_level_that_was_asked_for(reported):
    text = (reported / "report.md").read_text()
    assert "90% t-interval" in text
    assert "95%" not in text


def test_the_summary_says_what_the_tests_say():
    results = make_results(effects=(("grpo", 0.0), ("mcpo", 0.3), ("same", 0.0)), seeds=range(5), samples=16)
    compared = compare(points(results), "grpo")
    frame = overview.summary(results).tables[0].frame.set_index("arm")
    assert frame["verdict"].to_dict() == {"grpo": "baseline", "mcpo": "better", "same": "inconclusive"}
    for arm, (found, p_holm) in compared.items():
        assert frame.loc[arm, ["difference", "low", "p Holm"]].tolist() == [found.mean, found.low, p_holm]
    assert frame.loc["grpo", "accuracy"] == pytest.approx(points(results)["grpo"].mean())
    assert overview.summary(results, 0.9999999).tables[0].frame["verdict"].iloc[1] == "inconclusive"


def test_one_seed_is_said_to_have_no_interval():
    section = overview.summary(make_results(seeds=(3,)))
    assert "One seed has no interval and no test." in " ".join(section.text)
    assert section.tables[0].frame["verdict"].tolist() == ["baseline", "no test"]


def test_two_pairs_have_no_verdict_however_small_their_p():
    results = make_results(effects=(("grpo", 0.0), ("mcpo", 0.5)), seeds=(0, 1), problems=60, samples=16)
    row = overview.summary(results, 0.5).tables[0].frame.iloc[1]
    assert row["p Holm"] < 0.5
    assert row["verdict"] == "too few pairs"


def test_caveats_are_gathered_once():
    sections = [Section(title="A?", caveats=("x.", "x.")), Section(title="B", caveats=("x.",))]
    assert overview.limits(sections).caveats == ("**A.** x.", "**B.** x.")


def test_commands_are_those_of_the_sweep_or_of_the_runs(sweep, reported):
    assert "rlvr fit -c a.yaml" in (reported / "report.md").read_text()
    cells = [
        {
            "arm": "grpo",
            "seed": 0,
            "folder": "grpo/seed_0",
            "fit": ["fit", "-c", "b c.yaml"],
            "test": ["test", "-c", "d"],
        }
    ]
    write_json(sweep / "sweep.json", {"name": "s", "baseline": "grpo", "cells": cells})
    section = overview.origin(make_results(), sweep, [str(sweep)])
    checkpoint = sweep / "grpo" / "seed_0" / "version_0" / "checkpoints" / "last.ckpt"
    assert section.text[1].splitlines()[1:-1] == [
        "rlvr fit -c 'b c.yaml'",
        f"rlvr test -c d --ckpt_path {checkpoint}",
    ]
    assert section.tables[0].frame["commit"].tolist() == ["01234567"]


def test_tensorboard_gets_a_row_for_each_run(tmp_path):
    results = make_results()
    hparams.write(results, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2 * 3
    events = EventAccumulator(str(tmp_path / "mcpo-seed1"))
    events.Reload()
    mean = points(results).loc[1, "mcpo"]
    assert events.Scalars("sweep/accuracy")[-1].value == pytest.approx(mean, rel=1e-6)
    assert events.Scalars("sweep/flops")[-1].value == pytest.approx(1e11)
    data = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    values = HParamsPluginData.FromString(data).session_start_info.hparams
    assert (values["arm"].string_value, values["seed"].number_value, values["credit"].string_value) == (
        "mcpo",
        1,
        "mcpo",
    )


def test_columns_of_tensorboard_have_one_type_each(tmp_path):
    settings = {"grpo": {"beta": 0.1, "lo": 1}, "mcpo": {"beta": "auto"}}
    hparams.write(SweepResults(**vars(make_results(seeds=(0,))) | {"settings": settings}), tmp_path)
    found = {}
    for arm in settings:
        events = EventAccumulator(str(tmp_path / f"{arm}-seed0"))
        events.Reload()
        data = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
        values = HParamsPluginData.FromString(data).session_start_info.hparams
        found[arm] = {name: value.WhichOneof("kind") for name, value in values.items() if name in ("beta", "lo")}
    assert found == {"grpo": {"beta": "string_value", "lo": "number_value"}, "mcpo": {"beta": "string_value"}}


def test_a_bad_folder_is_refused_before_the_work(sweep, monkeypatch):
    monkeypatch.setattr(overview, "summary", None)
    with pytest.raises(ValueError, match="`--out` must be a new folder or that of a former report"):
        report_command([str(sweep), "--out", str(sweep)])


def test_resumed_runs_make_tensorboard_say_nothing(sweep, caplog):
    make_curve(sweep / "grpo" / "seed_0" / "version_0", 20, first=11, purge=11)
    with pytest.raises(ValueError, match="--out"):  # after all was read
        report_command([str(sweep), "--out", str(sweep)])
    assert "out of order" not in caplog.text


def test_a_failed_report_leaves_the_former_one(sweep):
    former = sweep / "report" / "report.html"
    former.parent.mkdir()
    former.write_text("former")
    (sweep / "grpo" / "seed_1" / "version_0" / "problems.json").write_text(
        json.dumps({"data_seed": 1, "data_hash": "x"})
    )
    with pytest.raises(ValueError, match="cannot be compared"):
        report_command([str(sweep)])
    assert former.read_text() == "former"


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--confidence", "95"], "`--confidence` must be between 0 and 1, got 95.0"),
        (["--basline", "grpo"], "unknown setting `basline`; did you mean baseline?"),
        (["--baseline", "grop"], "`--baseline` must be one of grpo, mcpo, got 'grop'"),
    ],
)
def test_bad_arguments_end_in_a_sentence(sweep, args, sentence):
    with pytest.raises(ValueError) as error:  # noqa: PT011  # the whole sentence is compared
        report_command([str(sweep), *args])
    assert str(error.value) == sentence


def test_a_missing_package_ends_in_a_sentence(sweep, monkeypatch):
    monkeypatch.setattr("lightning_rlvr.checks.find_spec", lambda name: None if name == "statsmodels" else name)
    with pytest.raises(ImportError, match=r'rlvr report needs statsmodels: pip install "lightning-rlvr\[report\]"'):
        report_command([str(sweep)])


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit):
        report_command(["-h"])
    assert "    rlvr report runs/mine --baseline grpo\n" in capsys.readouterr().out


def test_csv_files_hold_every_run(reported):
    assert len(pd.read_csv(reported / "tables" / "runs.csv")) == 5
