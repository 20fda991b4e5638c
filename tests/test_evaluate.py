"""`rlvr test` and `validate`: what they sample, keep, continue and report."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from lightning.pytorch import Trainer

from command_line import SMALL, TINY, error, fit
from lightning_rlvr.__main__ import main
from lightning_rlvr.calibration.zscore import ZScoreCalibrator
from lightning_rlvr.credit.uniform import UniformCredit
from lightning_rlvr.evaluation.store import SampleStore
from lightning_rlvr.monitoring.run_folder import RunLogger
from lightning_rlvr.policy.policy import Policy
from lightning_rlvr.rollout.hf import HFEngine
from runs import make_data, make_module, scalars

ROWS = [{"question": f"What is {a}+{b}?", "answer": f"... #### {a + b}"} for a in range(1, 4) for b in range(1, 4)]


class Counting(HFEngine):
    """Remembers the rows that it was asked for; gives up before a batch that would be one too many."""

    rows: ClassVar[list[int]] = []
    batches_left = 99

    def generate(self, policy, prompts, prompt_index, seeds, sampling, finished=None):
        if Counting.batches_left == 0:
            raise OSError("out of patience")
        Counting.batches_left -= 1
        Counting.rows += seeds.tolist()
        return super().generate(policy, prompts, prompt_index, seeds, sampling)


def right(completions, **columns):
    return [1.0] * len(completions)


def broken(completions, **columns):
    raise KeyError("no such column")


@pytest.fixture(autouse=True)
def counting():
    Counting.rows, Counting.batches_left = [], 99
    return Counting


@pytest.fixture
def benchmarks(tmp_path):
    """A value for ``--data.test``: two sets of 9 and 4 problems."""
    sources = []
    for name, rows in (("nine", ROWS), ("four", ROWS[:4])):
        file = tmp_path / f"{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        sources.append(
            {
                "class_path": "lightning_rlvr.data.sources.DatasetSource",
                "init_args": {
                    "path": str(file),
                    "columns": {"problem": "question", "answer": "answer"},
                    "verifier": {
                        "class_path": "lightning_rlvr.verify.exact.ExactVerifier",
                        "init_args": {"extract": "last_number"},
                    },
                },
            }
        )
    return json.dumps(sources)


def evaluate(folder, *args, command="test"):
    """Evaluate the untrained model; returns the folder of the run."""
    main(
        [command, "-c", str(TINY), *SMALL, "--model.rollout.engine=test_evaluate.Counting", "--runs_dir",
         str(folder), "--num_samples=1", *map(str, args)]
    )  # fmt: skip
    return folder / "tiny_mcpo" / "initial"


def per_problem(run, name):
    import pyarrow.parquet as pq

    return pq.read_table(run / "eval" / name / "per_problem.parquet").to_pylist()


def logged(run):
    return {tag: list(values.values())[-1] for tag, values in scalars(run).items() if tag.startswith("eval/")}


def test_the_file_has_one_row_for_each_sample_and_gives_the_logged_numbers(tmp_path, benchmarks, capsys):
    run = evaluate(tmp_path, "--data.test", benchmarks, "--num_samples=3")
    rows, numbers = per_problem(run, "nine"), logged(run)
    assert [row["problem_id"] for row in rows] == [f"nine/{1 + i // 3}" for i in range(27)]
    assert [row["sample"] for row in rows] == [0, 1, 2] * 9
    assert all(row["text"] and row["tokens"] > 0 for row in rows)
    both = rows + per_problem(run, "four")
    for tag, of_set in (("eval/micro", both), ("eval/nine", rows)):
        assert numbers[f"{tag}/accuracy"] == pytest.approx(sum(r["status"] == "correct" for r in of_set) / len(of_set))
        assert numbers[f"{tag}/length"] == pytest.approx(sum(row["tokens"] for row in of_set) / len(of_set))
        truncated = sum(row["truncated"] for row in of_set)
        assert numbers[f"{tag}/truncated"] == pytest.approx(truncated / len(of_set))
    assert numbers["eval/micro/wrong"] == pytest.approx(sum(row["status"] == "wrong" for row in both) / len(both))
    halves = [numbers[f"eval/{name}/truncated"] for name in ("nine", "four")]
    assert numbers["eval/macro/truncated"] == pytest.approx(sum(halves) / 2)
    shown = " ".join(capsys.readouterr().out.split())
    for words in ("avg@3", "nine 9", "four 4", "micro 13", "macro 13", "temperature 1.0, top_p 1.0, top_k 0"):
        assert words in shown  # EV-07
    assert "max_completion_length 8, stop_ids [1]" in shown


def test_an_interrupted_evaluation_continues_and_draws_nothing_twice(tmp_path, benchmarks, capsys, counting):
    whole = evaluate(tmp_path / "whole", "--data.test", benchmarks, "--num_samples=2")
    uninterrupted, counting.rows = counting.rows, []
    flags = ["--data.test", benchmarks, "--num_samples=2", "--data.val_prompts_per_step=3"]
    counting.batches_left = 2
    assert "out of patience" in error(
        capsys, "test", "-c", TINY, *SMALL, "--model.rollout.engine=test_evaluate.Counting",
        "--runs_dir", tmp_path / "cut", *flags
    )  # fmt: skip
    assert len(counting.rows) == 12
    counting.batches_left = 99
    cut = evaluate(tmp_path / "cut", *flags)
    assert sorted(counting.rows) == sorted(uninterrupted), "every sample once, in two sittings"
    assert per_problem(cut, "nine") == per_problem(whole, "nine")
    assert logged(cut) == logged(whole)
    counting.batches_left = 0
    capsys.readouterr()
    evaluate(tmp_path / "cut", *flags)
    assert "26 samples were there already" in capsys.readouterr().out
    assert {path.name for path in (cut / "eval").iterdir() if path.is_dir()} == {"four", "nine"}


def test_more_samples_or_problems_add_to_what_is_there(tmp_path, benchmarks, counting):
    run = evaluate(tmp_path, "--data.test", benchmarks, "--num_samples=2", "--limit=3")
    few, counting.rows = per_problem(run, "nine"), []
    assert len(few) == 6
    assert run == evaluate(tmp_path, "--data.test", benchmarks, "--num_samples=4", "--limit=5")
    assert len(counting.rows) == 2 * 3 + 4 * 2 + 2 * 3 + 4 * 1
    many = per_problem(run, "nine")
    assert len(many) == 20
    assert all(row in many for row in few)
    evaluate(tmp_path, "--data.test", benchmarks, "--num_samples=2", "--limit=3")
    assert per_problem(run, "nine") == few, "the file is the result of the last evaluation"
    counting.batches_left = 0
    evaluate(tmp_path, "--data.test", benchmarks, "--num_samples=4", "--limit=5")


@pytest.mark.parametrize(
    "change",
    [
        "--model.evaluation.temperature=0.5",
        "--model.evaluation.max_completion_length=4",
        "--data.data_seed=1",
        "--model.policy.name_or_path=tiny",
    ],
)
def test_other_conditions_are_another_evaluation(tmp_path, benchmarks, change, counting):
    run = evaluate(tmp_path, "--data.test", benchmarks)
    before, counting.rows = per_problem(run, "nine"), []
    evaluate(tmp_path, "--data.test", benchmarks, change)
    assert len(counting.rows) == 13
    assert per_problem(run, "nine") == before
    assert len(per_problem(run, "nine.2")) == 9


def test_a_changed_problem_is_drawn_again_and_a_changed_gold_or_verifier_only_judged_again(
    tmp_path, benchmarks, counting
):
    run = evaluate(tmp_path, "--data.test", benchmarks)
    before, counting.rows = per_problem(run, "nine"), []
    file = tmp_path / "nine.jsonl"
    file.write_text(file.read_text().replace("What is 3+1", "How much is 3+1"))
    evaluate(tmp_path, "--data.test", benchmarks)
    assert len(counting.rows) == 1
    counting.rows = []
    reward = {"class_path": "FunctionVerifier", "init_args": {"function": "test_evaluate.right"}}
    judged = json.loads(benchmarks)
    judged[0]["init_args"]["verifier"] = reward
    evaluate(tmp_path, "--data.test", json.dumps(judged))
    assert not counting.rows
    assert {row["status"] for row in before} == {"no_answer"}
    assert {row["status"] for row in per_problem(run, "nine")} == {"correct"}


def test_what_decodes_or_shows_the_prompt_otherwise_is_another_evaluation(tmp_path, benchmarks, counting):
    """Alpha scales a trained adapter, and no tensor knows of it; the order of the weights matters as well."""
    run = fit(tmp_path, "--model.policy.lora.rank=2", "--model.policy.lora.alpha=4")
    last = ["--ckpt_path", str(run / "checkpoints" / "last.ckpt")]
    for alpha in (4, 400):
        counting.rows = []
        flags = ["--model.policy.lora.rank=2", f"--model.policy.lora.alpha={alpha}", *last]
        main(["test", "-c", str(TINY), *SMALL, "--model.rollout.engine=test_evaluate.Counting", "--num_samples=1",
              "--data.test", benchmarks, *flags])  # fmt: skip
        assert len(counting.rows) == 13
    assert (run / "eval" / "nine.2").is_dir()


def test_a_verifier_that_fails_costs_no_sample(tmp_path, benchmarks, counting, capsys):
    judged = json.loads(benchmarks)
    judged[0]["init_args"]["verifier"] = {
        "class_path": "FunctionVerifier",
        "init_args": {"function": "test_evaluate.broken"},
    }
    flags = ["--model.rollout.engine=test_evaluate.Counting", "--num_samples=1", "--runs_dir", tmp_path]
    sentence = error(capsys, "test", "-c", TINY, *SMALL, *flags, "--data.test", json.dumps(judged))
    assert "reward function broken raised KeyError" in sentence
    assert len(counting.rows) == 9
    evaluate(tmp_path, "--data.test", benchmarks)
    assert len(counting.rows) == 13


def test_benchmarks_and_held_out_problems_have_tags_of_their_own(tmp_path, benchmarks):
    run = fit(tmp_path, "--trainer.val_check_interval=1")
    curve = scalars(run)["eval/accuracy"]
    one = json.dumps(json.loads(benchmarks)[:1])
    checkpoint = ["--ckpt_path", str(run / "checkpoints/last.ckpt")]
    main(["test", "-c", str(TINY), *SMALL, "--data.test", one, *checkpoint])
    assert scalars(run)["eval/accuracy"] == curve
    assert set(scalars(run)["eval/nine/accuracy_se"]) == {2}


def test_the_step_is_that_of_the_weights(tmp_path):
    run = fit(tmp_path, "--checkpoint.every_n_steps=1", "--checkpoint.keep_all=true")
    trainer = Trainer(
        logger=RunLogger(save_dir=str(tmp_path), name="again"), callbacks=[ZScoreCalibrator(), UniformCredit()],
        max_steps=2, val_check_interval=1, num_sanity_val_steps=0, accelerator="cpu", enable_progress_bar=False,
        enable_checkpointing=False,
    )  # fmt: skip
    module, data = make_module(), make_data()
    trainer.test(module, datamodule=data, ckpt_path=run / "checkpoints" / "step=2.ckpt", verbose=False)
    trainer.fit(module, datamodule=data)
    trainer.test(module, datamodule=data, ckpt_path=run / "checkpoints" / "step=1.ckpt", verbose=False)
    assert set(scalars(trainer.log_dir)["eval/accuracy"]) == {1, 2}
    kept = [json.loads(file.read_text()) for file in Path(trainer.log_dir).rglob("settings.json")]
    steps = {settings["conditions"]["step"] for settings in kept}
    assert steps == {1, 2}


def test_arms_share_the_random_numbers(tmp_path, benchmarks):
    """Same seeds for the same problem and number, whatever the training data, the method or other problems."""
    one = evaluate(tmp_path / "one", "--data.test", benchmarks, "--num_samples=2")
    two = evaluate(tmp_path / "two", "--data.test", benchmarks, "--num_samples=2", "--limit=4", "--credit=uniform",
                   "--data.num_problems=3", "--model.policy.name_or_path=tiny")  # fmt: skip
    seeds = {(row["problem_id"], row["sample"]): row["seed"] for row in per_problem(one, "nine")}
    assert len(set(seeds.values())) == 18
    other = per_problem(two, "nine")
    assert len(other) == 8
    assert all(seeds[row["problem_id"], row["sample"]] == row["seed"] for row in other)
    third = evaluate(tmp_path / "three", "--data.test", benchmarks, "--data.data_seed=3")
    assert {row["seed"] for row in per_problem(third, "nine")}.isdisjoint(seeds.values())


def test_a_checkpoint_is_evaluated_in_its_run_at_its_step(tmp_path, benchmarks):
    run = fit(tmp_path)
    kept = (run / "config.yaml").read_text()
    checkpoint = ["--ckpt_path", str(run / "checkpoints/last.ckpt")]
    main(["test", "-c", str(TINY), *SMALL, "--data.test", benchmarks, "--num_samples=1", *checkpoint])
    assert len(per_problem(run, "nine")) == 9
    assert set(scalars(run)["eval/nine/accuracy"]) == {2}
    assert (run / "config.yaml").read_text() == kept
    assert "nine.jsonl" in (run / "config.test.yaml").read_text()
    settings = json.loads((run / "eval" / "nine" / "settings.json").read_text())
    assert (settings["conditions"]["step"], settings["num_problems"], settings["num_samples"]) == (2, 9, 1)
    assert not (tmp_path / "tiny_mcpo" / "initial").exists()


def test_validation_in_training_uses_the_same_code_and_keeps_no_samples(tmp_path):
    run = fit(tmp_path, "--trainer.val_check_interval=1", "--model.evaluation.num_samples=2")
    logs = scalars(run)
    assert set(logs["eval/accuracy"]) == set(logs["eval/pass@2"]) == {1, 2}
    assert not (run / "eval").exists()
    validated = evaluate(tmp_path, "--num_samples=2", command="validate")
    assert len(per_problem(validated, "sums")) == 8
    assert (validated / "config.validate.yaml").is_file()


def test_training_takes_no_digest_of_the_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(Policy, "digest", property(lambda policy: pytest.fail("for commands that keep samples only")))
    fit(tmp_path, "--trainer.val_check_interval=1")


def test_greedy_evaluation_takes_one_sample_and_says_so(tmp_path, benchmarks, counting):  # EV-05
    with pytest.warns(UserWarning, match=r"1 instead of `evaluation.num_samples` = 4"):
        run = evaluate(tmp_path, "--data.test", benchmarks, "--num_samples=4", "--model.evaluation.temperature=0")
    assert len(counting.rows) == 13
    assert "eval/micro/pass@4" not in logged(run)
    sampled = evaluate(tmp_path, "--data.test", benchmarks, "--num_samples=8", "--model.evaluation.temperature=0.6")
    texts = [row["text"] for row in per_problem(sampled, "nine.2")]
    assert all(len(set(texts[start : start + 8])) > 1 for start in range(0, 72, 8))


def test_texts_are_kept_unless_verdicts_are_enough(tmp_path, benchmarks):
    run = evaluate(tmp_path, "--data.test", benchmarks, "--model.evaluation.keep=verdicts")
    assert {row["text"] for row in per_problem(run, "nine")} == {None}


def test_samples_need_not_be_kept(tmp_path, benchmarks):
    run = evaluate(tmp_path, "--data.test", benchmarks, "--model.evaluation.keep=nothing")
    assert not (run / "eval").exists()
    assert "eval/nine/accuracy" in logged(run)


def test_what_has_just_been_trained_can_be_tested_in_the_same_process(tmp_path):
    trainer = Trainer(
        logger=RunLogger(save_dir=str(tmp_path), name="run"), callbacks=[ZScoreCalibrator(), UniformCredit()],
        max_steps=2, limit_val_batches=0, accelerator="cpu", enable_progress_bar=False, enable_checkpointing=False,
    )  # fmt: skip
    module, data = make_module(), make_data()
    trainer.test(module, datamodule=data, verbose=False)
    trainer.fit(module, datamodule=data)
    trainer.test(module, datamodule=data, verbose=False)
    assert set(scalars(trainer.log_dir)["eval/accuracy"]) == {0, 2}
    before, after = (per_problem(Path(trainer.log_dir), name) for name in ("sums", "sums.2"))
    assert [row["seed"] for row in before] == [row["seed"] for row in after]
    assert [row["text"] for row in before] != [row["text"] for row in after]


def test_an_evaluation_that_runs_already_keeps_others_out(tmp_path, benchmarks, capsys):
    run = evaluate(tmp_path, "--data.test", benchmarks)
    settings = json.loads((run / "eval" / "nine" / "settings.json").read_text())
    store = SampleStore.open(run / "eval", "nine", settings["conditions"])
    sentence = error(
        capsys, "test", "-c", TINY, *SMALL, "--model.rollout.engine=test_evaluate.Counting",
        "--runs_dir", tmp_path, "--data.test", benchmarks
    )  # fmt: skip
    assert "another evaluation writes into" in sentence
    store.close()
    assert json.loads((run / "eval" / "nine" / "settings.json").read_text())["num_samples"] == 1


@pytest.mark.parametrize(("command", "flag"), [("validate", "--limit=0"), ("test", "--trainer.limit_test_batches=0")])
def test_evaluating_nothing_is_said(tmp_path, capsys, command, flag):
    sentence = error(capsys, command, "-c", TINY, *SMALL, "--runs_dir", tmp_path, flag)
    assert "nothing was evaluated" in sentence


@pytest.mark.slow
def test_two_processes_evaluate_like_one(tmp_path, benchmarks):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}

    def run(name, *flags):
        command = [sys.executable, "-m", "lightning_rlvr", "test", "-c", str(TINY), *SMALL, "--data.test",
                   benchmarks, "--num_samples=3", "--data.val_prompts_per_step=4", "--runs_dir", str(tmp_path),
                   "--name", name, *flags]  # fmt: skip
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stderr[-2000:]
        return tmp_path / name / "initial"

    one, two = run("one"), run("two", "--trainer.devices=2", "--trainer.strategy=ddp")
    assert logged(two) == pytest.approx(logged(one), rel=1e-6)
    for name in ("nine", "four"):
        assert per_problem(two, name) == per_problem(one, name)
    assert not list(two.rglob("parts"))


def test_nothing_of_the_checkpoint_overrides_a_flag(tmp_path, benchmarks):
    run = fit(tmp_path, "--model.evaluation.temperature=0.3", "--model.evaluation.num_samples=4")
    main(["test", "-c", str(TINY), *SMALL, "--data.test", benchmarks, "--num_samples=2",
          "--model.evaluation.temperature=0.9", "--ckpt_path", str(run / "checkpoints/last.ckpt")])  # fmt: skip
    settings = json.loads((run / "eval" / "nine" / "settings.json").read_text())
    assert (settings["conditions"]["temperature"], settings["num_samples"]) == (0.9, 2)
    assert torch.load(run / "checkpoints/last.ckpt", weights_only=True).get("hyper_parameters") is None
