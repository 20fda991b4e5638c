"""Runs are found, refused where they are not paired, and read as they are."""

import json
import math
import shutil

import pytest
import yaml

from lightning_rlvr.report.loading import load
from lightning_rlvr.report.results import accuracy
from report_folders import (
    ENVIRONMENT,
    change,
    make_curve,
    make_evaluation,
    make_run,
    make_samples,
    make_sweep,
    write_json,
)


def version(sweep, arm="mcpo", seed=0, number=0):
    return sweep / arm / f"seed_{seed}" / f"version_{number}"


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


# --- what is read ---


def test_all_of_a_paired_sweep_is_read(sweep):
    results = load(sweep)
    assert (results.name, results.baseline, results.arms, results.seeds) == (
        "runs",
        "grpo",
        ("grpo", "mcpo"),
        (0, 1, 2),
    )
    assert results.notes == ()
    assert len(results.samples) == 2 * 3 * 6 * 4
    assert list(results.samples) == [
        "arm", "seed", "set", "problem", "sample", "correct", "reward", "tokens", "truncated", "status",
    ]  # fmt: skip
    assert (results.samples.dtypes[["arm", "set", "problem", "status"]] == "category").all()
    expected = make_samples("mcpo", 1)["reward"].mean()
    assert accuracy(results.samples).loc[1, "mcpo"] == pytest.approx(expected)


def test_settings_are_those_in_which_arms_differ(sweep):
    assert load(sweep).settings == {"grpo": {"credit": "UniformCredit"}, "mcpo": {"credit": "MarginCredit"}}


def test_steps_have_compute_and_scalars_by_tag(sweep):
    steps = load(sweep).steps
    last = steps[(steps["arm"] == "mcpo") & (steps["seed"] == 1)].iloc[-1]
    assert len(steps) == 2 * 3 * 20
    assert last[["step", "rollouts", "sampled_tokens", "seconds", "flops"]].tolist() == [20, 20, 4000, 10, 4e10]
    assert last["reward/mean"] == pytest.approx(0.2)


def test_voided_events_of_a_resumed_run_do_not_come_twice(tmp_path):
    path = make_run(tmp_path, "grpo", 0, **{"reward/mean": 0.25})
    make_curve(path, 20, first=16, purge=16, **{"reward/mean": 0.75})
    steps = load(tmp_path).steps
    assert steps["step"].tolist() == list(range(1, 21))
    assert steps["reward/mean"].tolist() == [0.25] * 15 + [0.75] * 5


def test_events_beyond_the_checkpoint_are_void_until_they_are_made_again(tmp_path):
    path = make_run(tmp_path, "grpo", 0, steps=20)
    make_curve(path, 12, first=11, purge=11)
    assert load(tmp_path).steps["step"].tolist() == list(range(1, 13))


def test_nan_stays_nan_and_unscored_samples_are_counted(tmp_path):
    path = make_run(tmp_path, "grpo", 0, **{"policy/entropy": math.nan})
    frame = make_samples("grpo", 0)
    frame.loc[[0, 1], ["reward", "status"]] = [math.nan, "timeout"]
    make_evaluation(path, frame, 20)
    results = load(tmp_path)
    assert results.steps["policy/entropy"].isna().all()
    assert results.samples["reward"].isna().sum() == 2
    assert results.samples["correct"].iloc[:2].tolist() == [0.0, 0.0]
    assert results.notes == ("Samples that could not be scored count as not correct: `grpo` 2 of 24.",)


@pytest.mark.parametrize("other", [0, 1, 2])
def test_arms_that_differ_in_unscored_samples_are_pointed_out(tmp_path, other):
    for arm, count in (("grpo", 2), ("mcpo", other)):
        frame = make_samples(arm, 0)
        frame.loc[range(count), ["reward", "status"]] = [math.nan, "timeout"]
        make_evaluation(make_run(tmp_path, arm, 0), frame, 20)
    [note] = load(tmp_path).notes
    assert f"`grpo` 2 of 24, `mcpo` {other} of 24." in note
    assert ("Arms differ in this" in note) == (other != 2)


def test_benchmarks_may_differ_in_the_number_of_samples(sweep):
    for arm in ("grpo", "mcpo"):
        for seed in range(3):
            frame = make_samples(arm, seed, samples=2)
            make_evaluation(version(sweep, arm, seed), frame, 20, name="aime", sample_seed=seed)
    sizes = load(sweep).samples.groupby(["set", "arm", "seed", "problem"], observed=True).size()
    assert sizes.groupby("set", observed=True).unique().map(list).to_dict() == {"aime": [2], "sums": [4]}


def test_sweep_file_names_baseline_and_order(sweep):
    cells = [
        {"arm": arm, "seed": seed, "folder": f"{arm}/seed_{seed}", "fit": ["fit"], "test": None}
        for arm in ("mcpo", "grpo") for seed in (0, 1)
    ]  # fmt: skip
    write_json(sweep / "sweep.json", {"name": "credit", "baseline": "mcpo", "cells": cells})
    results = load(sweep)
    assert (results.name, results.arms, results.seeds) == ("credit", ("mcpo", "grpo"), (0, 1))


def test_conditions_of_the_evaluation_are_the_baselines(sweep):
    assert load(sweep).conditions == {"step": 20, "temperature": 1.0}
    for arm in ("grpo", "mcpo"):
        for seed in range(3):
            used = {"sample_seed": seed, "temperature": 0.6}
            make_evaluation(version(sweep, arm, seed), make_samples(arm, seed), 20, name="aime", **used)
    assert load(sweep).conditions == {"step": 20, "temperature": "0.6 (aime), 1.0 (sums)"}


def test_the_evaluation_of_the_last_step_counts(sweep):
    for arm in ("grpo", "mcpo"):
        for seed in range(3):
            make_evaluation(version(sweep, arm, seed), make_samples("grpo", 7), 10, folder="sums.2")
    assert set(load(sweep).samples["problem"].str[0]) == {"0", "1", "2"}


def test_the_newest_finished_version_counts(sweep):
    make_run(sweep, "mcpo", 0, version=2)
    make_run(sweep, "mcpo", 0, version=10)
    make_run(sweep, "mcpo", 0, version=11, steps=3, finished=False)
    make_evaluation(version(sweep, number=10), make_samples("grpo", 0), 20)
    results = load(sweep)
    assert results.notes == ("`mcpo/seed_0` ran to its end more than once; version_10 counts.",)
    assert accuracy(results.samples).loc[0, "mcpo"] == make_samples("grpo", 0)["reward"].mean()


def test_the_newest_unfinished_version_is_named_and_copies_are_no_versions(sweep):
    change(version(sweep) / "progress.json", finished=False)
    for number in (9, 10):
        make_run(sweep, "mcpo", 0, version=number, steps=number, finished=False)
    shutil.copytree(version(sweep, "grpo"), version(sweep).parent / "version_11.bak")
    assert load(sweep).notes == ("`mcpo/seed_0` is left out: unfinished, at step 10 of 20.",)


# --- what is left out, and said ---


def test_unfinished_failed_and_missing_cells_are_left_out_and_named(sweep):
    change(version(sweep, seed=0) / "progress.json", finished=False, step=7)
    write_json(version(sweep, seed=1).parent / "cell.json", {"status": "failed", "message": "out of memory"})
    (sweep / "mcpo" / "seed_3").mkdir()
    results = load(sweep)
    assert set(results.notes) == {
        "`mcpo/seed_0` is left out: unfinished, at step 7 of 20.",
        "`mcpo/seed_1` is left out: it failed (out of memory).",
        "Left out, for there is no run: `mcpo/seed_3`.",
    }
    assert set(results.samples.query("arm == 'mcpo'")["seed"]) == {2}
    assert results.seeds == (0, 1, 2)


def test_an_arm_without_a_finished_run_is_dropped(sweep):
    make_run(sweep, "inverted", 0, finished=False)
    results = load(sweep)
    assert results.arms == ("grpo", "mcpo")
    assert "The arm `inverted` is left out: it has no finished run." in results.notes
    assert "p is adjusted for the arms present only, not for those left out." in results.notes


def test_runs_whose_seed_the_baseline_lacks_are_named(sweep):
    shutil.rmtree(sweep / "grpo" / "seed_1")
    assert load(sweep).notes == ("Part of no difference, for `grpo` has no run of this seed: `mcpo/seed_1`.",)


def test_runs_without_a_curve_are_named(tmp_path):
    make_run(tmp_path, "grpo", 0)
    path = make_run(tmp_path, "grpo", 1)
    make_run(tmp_path, "mcpo", 0, **{"reward/mean": math.nan})
    for file in path.glob("events*"):
        file.unlink()
    [note] = load(tmp_path).notes
    assert note.startswith("No training reward")
    assert note.endswith("`grpo/seed_1`, `mcpo/seed_0`.")


def test_a_baseline_without_a_finished_run_is_an_error(sweep):
    for seed in range(3):
        change(version(sweep, "grpo", seed) / "progress.json", finished=False)
    with pytest.raises(ValueError, match=r"the baseline 'grpo' has no run to compare with: .*grpo/seed_0"):
        load(sweep)


def test_without_any_evaluation_the_command_is_told(tmp_path):
    path = make_run(tmp_path, "grpo", 0, evaluated=False)
    command = f"rlvr test -c {path}/config.yaml --ckpt_path {path}/checkpoints/last.ckpt --num_samples 64"
    with pytest.raises(ValueError, match="no run was evaluated") as error:
        load(tmp_path)
    assert command in str(error.value)


def test_a_run_without_evaluation_is_left_out(sweep):
    (version(sweep) / "eval" / "sums" / "per_problem.parquet").unlink()
    assert load(sweep).notes == ("`mcpo/seed_0` is left out: it has no evaluation at its last step, 20.",)


def test_code_that_differs_is_said(sweep):
    change(version(sweep) / "environment.json", git_commit="fedcba9876543210", git_dirty=True)
    write_json(
        version(sweep) / "environment.test.json",
        ENVIRONMENT | {"git_commit": None, "git_dirty": None, "packages": {"torch": "3"}},
    )
    assert load(sweep).notes == (
        "Runs were made with different commits: 01234567, None, fedcba98.",
        "Some runs were made with code that was not committed.",
        "Runs were made with different versions of torch: 2.13.0, 3.",
    )


def test_runs_of_an_arm_that_differ_in_a_setting_are_named(sweep):
    file = version(sweep) / "config.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"model": {"beta": 0.1}}))
    assert load(sweep).notes == ("The runs of `mcpo` differ in `model.beta`.",)


def test_arms_of_different_length_are_said(tmp_path):
    make_run(tmp_path, "grpo", 0)
    make_run(tmp_path, "mcpo", 0, steps=12)
    assert load(tmp_path).notes == ("Arms differ in length, in optimizer steps: `grpo` 20, `mcpo` 12.",)


@pytest.mark.parametrize("arm", ["grpo", "mcpo"])
@pytest.mark.parametrize("count", [0, 2])
def test_runs_that_lack_recorded_rollouts_are_named(sweep, arm, count):
    file = version(sweep, arm) / "rollouts.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:count]))
    [note] = load(sweep).notes
    assert note.startswith("Order of the problems and sampling seeds in training could not be checked")
    assert note.endswith(f": `{arm}/seed_0` ({count} of 20).")


def test_without_the_baselines_record_other_arms_are_still_compared(sweep):
    make_run(sweep, "inverted", 1)
    (version(sweep, "grpo", 1) / "rollouts.jsonl").unlink()
    file = version(sweep, seed=1) / "rollouts.jsonl"
    file.write_text(file.read_text().replace('"seeds": [5, 1]', '"seeds": [99, 1]'))
    refused(sweep, "inverted/seed_1 and mcpo/seed_1 cannot be compared: rollout batch 5 drew the same problems")


# --- what is refused ---


def refused(sweep, match):
    with pytest.raises(ValueError, match=match):
        load(sweep)


def test_other_problems_in_training_are_refused(sweep):
    file = version(sweep, seed=1) / "rollouts.jsonl"
    rows = lines(file)
    rows[4]["problems"] = ["another"]
    file.write_text("\n".join(map(json.dumps, rows)))
    refused(sweep, "grpo/seed_1 and mcpo/seed_1 cannot be compared: rollout batch 5 drew other problems")


def test_other_sampling_seeds_in_training_are_refused(sweep):
    file = version(sweep, seed=1) / "rollouts.jsonl"
    rows = lines(file)
    rows[19]["seeds"].reverse()
    file.write_text("\n".join(map(json.dumps, rows)))
    refused(sweep, "rollout batch 20 drew the same problems with other sampling seeds")


def test_other_data_is_refused(sweep):
    change(version(sweep) / "problems.json", data_hash="another")
    refused(sweep, r"they trained on other problems \(data_hash\)")


def test_a_seed_that_is_not_the_folders_is_refused(sweep):
    change(version(sweep, seed=1) / "problems.json", data_seed=5)
    refused(sweep, "has data_seed 5, not 1")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.6}, r"differ in temperature \(1.0 against 0.6\)"),
        ({"top_p": 0.9}, r"differ in top_p \(None against 0.9\)"),
        ({"sample_seed": 9}, r"differ in sample_seed \(0 against 9\)"),
    ],
)
def test_other_conditions_of_the_evaluation_are_refused(sweep, changes, message):
    make_evaluation(version(sweep), make_samples("mcpo", 0), 20, **changes)
    refused(sweep, message)


def test_conditions_are_compared_between_seeds_too(sweep):
    for arm in ("grpo", "mcpo"):
        make_evaluation(version(sweep, arm, 2), make_samples(arm, 2), 20, sample_seed=2, temperature=0.6)
    refused(sweep, "grpo/seed_0 and grpo/seed_2 cannot be compared: evaluations of 'sums' differ in temperature")


def test_other_sets_are_refused(sweep):
    make_evaluation(version(sweep), make_samples("mcpo", 0), 20, name="aime")
    refused(sweep, "evaluated on sums against aime, sums")


def test_other_sample_seeds_are_refused(sweep):
    frame = make_samples("mcpo", 0)
    frame.loc[3, "seed"] = 77
    make_evaluation(version(sweep), frame, 20)
    refused(sweep, "1 of 24 samples have another seed")


def test_other_evaluated_problems_are_refused(sweep):
    make_evaluation(version(sweep), make_samples("mcpo", 0, problems=5), 20)
    refused(sweep, "`mcpo` of seed 0 lacks problem '0-5' of `sums`")


def test_unequal_numbers_of_samples_are_refused(sweep):
    for arm in ("grpo", "mcpo"):
        make_evaluation(version(sweep, arm, 1), make_samples(arm, 1, samples=3), 20, sample_seed=1)
    refused(sweep, "problems of `sums` must have equally many samples in all runs, got 3")


def test_two_evaluations_of_one_step_are_refused(sweep):
    make_evaluation(version(sweep), make_samples("mcpo", 0), 20, folder="sums.2", temperature=0.6)
    refused(sweep, r"two evaluations of 'sums' at step 20, which differ in temperature \(1.0 against 0.6\); move one")


def test_runs_of_an_arm_of_different_length_are_refused(sweep):
    make_run(sweep, "mcpo", 3, steps=10)
    refused(sweep, "the runs of 'mcpo' differ in length .10 steps: mcpo/seed_3; 20 steps: mcpo/seed_0")


@pytest.mark.parametrize(("name", "choice"), [("baseline", "grop"), ("arms", ["mcop"])])
def test_misspelt_arms_are_refused_with_the_choices(sweep, name, choice):
    with pytest.raises(ValueError, match=f"`--{name}` must be one of grpo, mcpo"):
        load(sweep, **{name: choice})


def test_a_baseline_that_cannot_be_guessed_must_be_named(tmp_path):
    make_sweep(tmp_path, arms=("inverted", "mcpo"), seeds=(0,))
    refused(tmp_path, "`--baseline` must name one of the arms inverted, mcpo")
    assert load(tmp_path, "mcpo").arms == ("mcpo", "inverted")


def test_arms_are_restricted_to_those_named_and_the_family_of_tests_with_them(sweep):
    make_run(sweep, "inverted", 0)
    results = load(sweep, arms=["inverted"])
    assert results.arms == ("grpo", "inverted")
    note = "Shown: 1 of the sweep's 2 arms beside the baseline (`--arms`); p is adjusted for no others."
    assert results.notes == (note,)
    assert load(sweep, arms=["inverted", "mcpo"]).notes == ()


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("nothing", "no such folder"),
        (".", "neither"),
        ("runs/grpo/seed_0", "a single run"),
        ("runs/grpo", "a single arm, of '.*/runs'"),
    ],
)
def test_what_is_no_sweep_is_refused(sweep, path, what):
    folder = sweep.parent / path
    with pytest.raises(FileNotFoundError, match=f"<arm>/seed_<data seed>/version_<N>; .*{what}"):
        load(folder)


def test_a_damaged_file_is_named(sweep):
    (version(sweep) / "problems.json").write_text("{")
    refused(sweep, "problems.json' cannot be read as JSON")


def test_two_folders_of_one_seed_are_refused(sweep):
    shutil.copytree(sweep / "mcpo" / "seed_1", sweep / "mcpo" / "seed_01")
    refused(sweep, "seed_01' and '.*seed_1' are of one arm and seed; move one away")


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("problems.json", None, "problems.json' is missing"),
        ("problems.json", '{"data_seed": 0}', "problems.json' lacks 'data_hash'"),
        ("environment.json", None, "environment.json' is missing"),
        ("environment.json", "{}", "environment.json' lacks 'git_commit'"),
        ("progress.json", '{"finished": true}', "progress.json' lacks 'step'"),
        ("rollouts.jsonl", '{"step": 1}', "line 1 of .*rollouts.jsonl' lacks 'problems'"),
        ("config.yaml", "a: [1", "config.yaml' cannot be read as YAML"),
        ("eval/sums/settings.json", "{}", "settings.json' lacks 'name'"),
        ("eval/sums/per_problem.parquet", "torn", r"per_problem.parquet' cannot be read as Parquet \("),
        ("../../../sweep.json", "{}", "sweep.json' lacks 'cells'"),
        ("../../../sweep.json", '{"cells": [{"arm": "grpo"}]}', "sweep.json' lacks 'seed'"),
    ],
)
def test_damaged_files_and_the_missing_key_are_named(sweep, name, text, what):
    file = version(sweep) / name
    file.unlink(missing_ok=True)
    if text is not None:
        file.write_text(text)
    refused(sweep, what)


@pytest.mark.parametrize(
    ("column", "value", "what"),
    [
        ("tokens", 0, "must have tokens at least 1, got 0"),
        ("tokens", math.nan, "must have tokens at least 1, got nan"),
        ("status", "CORRECT", "must have status one of correct, .*, got CORRECT"),
        ("status", None, "must have status one of correct, .*, got (None|nan)"),
    ],
)
def test_samples_that_cannot_be_are_refused(sweep, column, value, what):
    frame = make_samples("mcpo", 0).astype({column: object if column == "status" else float})
    frame[column] = [value if row == 3 else old for row, old in enumerate(frame[column])]
    make_evaluation(version(sweep), frame, 20)
    refused(sweep, f"row 3 of '.*mcpo.seed_0.*per_problem.parquet' {what}")


def test_a_missing_column_is_named_in_one_line(sweep):
    make_evaluation(version(sweep), make_samples("mcpo", 0).drop(columns="seed"), 20)
    refused(sweep, "per_problem.parquet' lacks 'seed'$")
