"""What TensorBoard shows of a run, and what lies beside it."""

import html
import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugin_util import markdown_to_safe_html
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from command_line import fit
from lightning_rlvr.credit.margin import MarginCredit
from lightning_rlvr.monitoring.run_folder import RunFolder, RunLogger
from lightning_rlvr.monitoring.samples import SampleWriter, _rendered
from runs import Recorder, make_data, make_module, scalars
from runs import fit as fit_in_python

TAGS = {
    "reward/mean", "reward/group_std", "reward/unscored", "reward/max", "advantage/mean", "advantage/rms",
    "advantage/abs_max", "advantage/groups_without_signal", "credit/ess", "credit/mass_error", "credit/weight_max",
    "credit/margin", "credit/margin_score", "policy/entropy", "policy/grad_norm",
    "policy/learning_rate", "policy/ratio_max", "policy/sampler_gap", "completion/length", "completion/length_max",
    "completion/truncated", "verify/correct", "verify/wrong", "verify/timeout", "verify/error", "verify/no_answer",
    "loss/total", "loss/policy", "time/step", "time/rollout", "time/total_flops", "time/total_sampled_tokens",
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return fit(tmp_path_factory.mktemp("runs"), "--trainer.max_steps=3", "--samples.every_n_steps=1")


def test_every_area_has_its_tags_at_every_step(run):
    logged = scalars(run)
    assert logged.keys() >= TAGS
    assert all(list(logged[tag]) == [1, 2, 3] for tag in TAGS)
    areas = {tag.split("/")[0] for tag in logged}
    assert areas == {"reward", "advantage", "credit", "policy", "completion", "verify", "loss", "time", "run"}


def hparams(folder):
    """Plug-in data of HPARAMS by kind."""
    events = EventAccumulator(str(folder))
    events.Reload()
    found = events.PluginTagToContent("hparams")
    return {tag.rpartition("/")[2]: HParamsPluginData.FromString(content) for tag, content in found.items()}


def test_hyper_parameters_and_final_metrics_are_a_row_of_hparams(run):
    parts = hparams(run)
    settings = parts["session_start_info"].session_start_info.hparams
    assert settings["credit"].string_value == "MarginCredit"
    assert settings["credit.lo"].number_value == 0.2
    assert settings["model.optimizer.learning_rate"].number_value == 1e-3
    assert settings["data.train.verifier"].string_value == "FunctionVerifier"
    assert settings["max_steps"].number_value == 3
    assert not any(name.startswith("trainer") for name in settings)
    columns = [info.name.tag for info in parts["experiment"].experiment.metric_infos]
    assert columns == ["run/final_reward", "run/final_accuracy"]
    assert "session_end_info" in parts
    logged = scalars(run)
    assert logged["run/final_reward"] == {3: logged["reward/mean"][3]}
    assert "run/final_accuracy" not in logged
    assert "hp_metric" not in logged


def test_final_reward_is_the_mean_of_the_last_tenth_and_accuracy_that_of_the_last_validation(tmp_path):
    run = fit(tmp_path, "--trainer.max_steps=11", "--trainer.limit_val_batches=1", "--trainer.val_check_interval=6")
    logged = scalars(run)
    last = [logged["reward/mean"][step] for step in (10, 11)]
    assert logged["run/final_reward"][11] == pytest.approx(sum(last) / 2)
    assert logged["run/final_accuracy"][11] == list(logged["eval/accuracy"].values())[-1]


def test_run_folder_holds_config_environment_problems_samples_and_checkpoint(run):
    names = {path.name for path in run.iterdir() if not path.name.startswith("events")}
    assert names == {
        "config.yaml", "environment.json", "problems.json", "progress.json", "rollouts.jsonl", "samples",
        "checkpoints", "adapter",
    }  # fmt: skip
    assert len(json.loads((run / "environment.json").read_text())["data_hash"]) == 64


def test_samples_lie_as_raw_text_beside_the_logs(run):
    assert [file.name for file in sorted((run / "samples").iterdir())] == [f"step_{n:06d}.jsonl" for n in (1, 2, 3)]
    for line in (run / "samples" / "step_000001.jsonl").read_text().splitlines():
        sample = json.loads(line)
        assert sample["completion"] == "".join(sample["tokens"]) or not sample["truncated"]
        assert len(sample["tokens"]) == len(sample["token_advantages"]) <= 8


def test_special_characters_of_a_sample_are_text(tmp_path):  # TB-05
    prompt = "<think>\na_b | $x^2$ *c* `d`\n\n# not a title\n</think>"
    sample = {
        "prompt": prompt, "completion": "1 | 2\n", "status": "wrong", "answer": "a|b_c", "reward": 0.0,
        "advantage": -1.0, "truncated": True, "tokens": ["1", " |", "\n"], "token_advantages": [-1.0, -1.5, -0.5],
    }  # fmt: skip
    text = _rendered(sample)
    shown = markdown_to_safe_html(text)
    blocks = [html.unescape(block) for block in re.findall(r"<pre>(.*?)</pre>", shown, re.DOTALL)]
    assert blocks == [sample["prompt"], sample["completion"]], "TensorBoard shows both to the letter"
    assert shown.count("<tr>") == 4
    rows = [line for line in text.splitlines() if line.startswith("| <code>")]
    assert [row.count("|") for row in rows] == [4, 4, 4]
    assert "n</code>" in rows[2], "a line break is written out, inside its row"
    assert rows[1].endswith(f"| 1.50 | {'#' * 12} |")


def test_runs_that_start_at_once_get_a_folder_each(tmp_path):  # TB-03
    with ThreadPoolExecutor(4) as pool:
        folders = list(pool.map(lambda _: RunLogger(save_dir=str(tmp_path), name="run").log_dir, range(4)))
    assert sorted(folders) == [str(tmp_path / "run" / f"version_{n}") for n in range(4)]
    assert {str(path) for path in (tmp_path / "run").iterdir()} == set(folders)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    module = make_module(
        loss={"mask_truncated_completions": True},
        rollout={"max_completion_length": 12},
        optimizer={"learning_rate": 3e-2},
    )
    _, recorder, folder = fit_in_python(
        tmp_path_factory.mktemp("run"),
        module=module,
        data=make_data(),
        credit=MarginCredit(lo=0.0, hi=0.02, floor=0.05),
        max_steps=3,
    )
    return recorder, scalars(folder)


def test_lengths_are_those_sampled_even_where_truncated_rows_are_masked(recorded):  # TM-02
    recorder, logged = recorded
    for step, record in enumerate(recorder.records, start=1):
        rollout = record.collection.rollout
        lengths = [int(row.sum()) for row in rollout.completion_mask]
        whole = [n for n, cut in zip(lengths, rollout.truncated.tolist(), strict=True) if not cut]
        assert logged["completion/length"][step] == pytest.approx(sum(lengths) / len(lengths))
        assert logged["completion/length_max"][step] == max(lengths)
        assert logged["completion/truncated"][step] == pytest.approx(1 - len(whole) / len(lengths))
        if whole:
            assert logged["completion/length_terminated"][step] == pytest.approx(sum(whole) / len(whole))


def test_credit_tags_equal_hand_computation(recorded):
    recorder, logged = recorded
    compared = 0
    for step, record in enumerate(recorder.records, start=1):
        sizes, errors, weights, entropies = [], [0.0], [], []
        for i in range(len(record.rollout)):
            mask = record.rollout.completion_mask[i]
            if record.advantages[i] == 0 or not mask.any():
                continue
            credit = record.token_advantages[i][mask].double()
            w = credit / record.advantages[i].double()
            sizes.append(float(w.sum() ** 2 / (len(w) * (w**2).sum())))
            errors.append(float((credit.mean() - record.advantages[i]).abs()))
            weights.append(w)
            entropies.append(record.rollout.statistics["entropy"][i][mask].double())
        if not weights:
            continue
        compared += 1
        pair = torch.stack([torch.cat(weights), torch.cat(entropies)])
        assert logged["credit/ess"][step] == pytest.approx(sum(sizes) / len(sizes), rel=1e-4)
        assert logged["credit/mass_error"][step] == pytest.approx(max(errors), abs=1e-6)
        assert logged["credit/weight_max"][step] == pytest.approx(float(pair[0].max()), rel=1e-4)
        correlations = logged["credit/weight_entropy_correlation"]  # left out where one of them is constant
        assert correlations.get(step, float(torch.corrcoef(pair)[0, 1])) == pytest.approx(
            float(torch.corrcoef(pair)[0, 1]), abs=2e-3
        )
    assert compared > 0
    assert correlations


def test_callbacks_of_the_run_folder_work_from_python(tmp_path):
    _, recorder, folder = fit_in_python(tmp_path, callbacks=[RunFolder({"arm": "a"}), SampleWriter()], max_steps=1)
    assert isinstance(recorder, Recorder)
    assert hparams(folder)["session_start_info"].session_start_info.hparams["arm"].string_value == "a"


def test_loss_terms_of_a_short_batch_are_means_over_the_steps_it_makes(tmp_path):
    """12 problems in batches of 5: the third rollout has 2 prompts, hence 2 minibatches where the setting says 4."""
    module = make_module(loss={"num_minibatches": 4, "entropy_coef": 0.01})
    _, recorder, _ = fit_in_python(tmp_path, module=module, data=make_data(prompts_per_step=5), max_steps=12)
    for logged in recorder.metrics:
        assert logged["loss/entropy"] == pytest.approx(logged["policy/entropy"], rel=0.1)
