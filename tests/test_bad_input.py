"""What a user can get wrong ends in one sentence: which setting, what was expected, what was given."""

import errno
import json
import re
from dataclasses import replace

import numpy
import pytest
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import Trainer

from command_line import SMALL, TINY, error, fit, fit_error, main, sums
from lightning_rlvr.credit.uniform import UniformCredit
from lightning_rlvr.data.datamodule import PromptDataModule
from lightning_rlvr.data.sources import DatasetSource, SumsSource
from lightning_rlvr.data.templates import PromptTemplate
from lightning_rlvr.verify.base import VERIFIERS, Attempt, Verdict, Verifier
from lightning_rlvr.verify.function import FunctionVerifier
from runs import OneToken, make_module, scalars
from runs import fit as fit_in_python


def raises(**columns):
    raise KeyError("gold")


def nans(completions, **columns):
    return [float("nan")] * len(completions)


def nothing(**columns):
    return None


def one(**columns):
    return [1.0]


def texts(completions, **columns):
    return list(completions)


def source(path, **settings):
    init_args = {"path": str(path), "verifier": "exact", **settings}
    return f"--data.train={json.dumps({'class_path': 'DatasetSource', 'init_args': init_args})}"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--credit=margni"], r"unknown credit assigner 'margni'; choices: entropy, .*uniform"),
        (["--credit=MarginCredt"], r"`credit` 'MarginCredt' is no file and no known class; choices: entropy, .*"),
        (
            ["--calibrator=a.b.C"],
            r"`calibrator` 'a.b.C' is no file and no known class \(No module named 'a'\); choices: centered, .*",
        ),
        (["--calibrator=MarginCredit"], r"`calibrator` 'MarginCredit' is no file and no known class; .*"),
        (["--credit.flor=0.1"], r"`credit` has no setting `flor`; did you mean floor .*"),
        (["--credit=mixture"], r"`credit`: .*required: assigners"),
        (["--model.loss.betaa=1"], r"unknown setting `model.loss.betaa`; did you mean model.loss.beta.*"),
        (["--model.loss.beta=much"], r"`model.loss.beta` must be float, got much"),
        (["--model.policy.dtype=fp16"], r"`model.policy.dtype` must be one of 'auto', .*, got fp16"),
        (["--trainer.max_steps=ten"], r"`trainer.max_steps` must be int, got ten"),
        (["-c", "nope.yaml"], r"`config`: File does not exist: .*nope.yaml.*"),
        (["--data.train=Sums"], r"`data.train` 'Sums' is no file and no known class; choices: .*SumsSource.*"),
        (["--model.rollout.num_generations=1"], r"`rollout.num_generations` must be at least 2, got 1"),
        (["--model.rollout.top_p=0.9"], r"`rollout.top_p` must be 1 while training .*, got 0.9"),
        (["--model.rollout.top_k=5"], r"`rollout.top_k` must be 0 while training .*, got 5"),
        (["--model.rollout.repetition_penalty=1.1"], r"`rollout.repetition_penalty` must be 1 .*, got 1.1"),
        (["--model.rollout.temperature=0"], r"`rollout.temperature` must be positive .* while training, got 0.0"),
        (["--model.loss.loss_type=ppo"], r"`loss.loss_type` must be one of bnpo, .*, got 'ppo'"),
        (["--credit.lo=0.9"], r"`lo, hi` must be thresholds with 0 <= lo < hi <= 1, got \(0.9, 0.8\)"),
        (["--model.rollout.engine=vlm"], r"unknown rollout engine 'vlm'; choices: .*hf.*"),
        (["--model.policy.name_or_path=no/model"], r"`policy.name_or_path` must be a hub id, .*, got 'no/model': .*"),
        (["--trainer.strategy=fsdp"], r".*strategy `?fsdp`? .*"),
        (
            ["--trainer.precision=bf16-true"],
            r"`trainer.precision` must be 32-true, got 'bf16-true': `policy.dtype` .*",
        ),
        (["--trainer.precision=bf16-mixed"], r"`trainer.precision` must be 32-true, got 'bf16-mixed': .*"),
        (["--trainer.gradient_clip_val=1"], r"`trainer.gradient_clip_val` .* got 1: `optimizer.max_grad_norm` .*"),
        (["--trainer.accumulate_grad_batches=2"], r"`trainer.accumulate_grad_batches` must be 1, got 2: .*"),
        (
            ["--trainer.max_steps=-1", "--model.optimizer.lr_scheduler=cosine"],
            r"`optimizer.lr_scheduler` .*max_steps.*",
        ),
        (["--trainer.max_steps=3", "--model.loss.num_iterations=2"], r"`trainer.max_steps` .* multiple .*= 2, got 3"),
        (["--ckpt_path=nope.ckpt"], r"`ckpt_path` must be a checkpoint file, got .*nope.ckpt.*"),
        (
            ["--data.max_prompt_length=2"],
            r"`max_prompt_length` 2 leaves no training prompt: the shortest has \d+ tokens",
        ),
        (["--data.num_problems=100"], r"`num_problems` must be at most the 12 usable problems, got 100"),
        (
            [f"--data.train={sums(function='test_bad_input.raises')}"],
            r"reward function raises raised KeyError: 'gold'",
        ),
        ([f"--data.train={sums(function='test_bad_input.nothing')}"], r".*nothing must return a list of 8.*NoneType"),
        ([f"--data.train={sums(function='test_bad_input.one')}"], r".*one must return 8 rewards, .*got 1"),
        (
            [f"--data.train={sums(function='test_bad_input.texts')}"],
            r".*texts must return finite numbers or None, got .*",
        ),
        ([f"--data.train={sums(function='test_bad_input.absent')}"], r"`function` must be an import path .*absent.*"),
    ],
    ids=lambda value: value[0][:50] if isinstance(value, list) else "",
)
@pytest.mark.filterwarnings("ignore")
def test_a_mistake_is_one_sentence(capsys, tmp_path, flags, sentence):
    assert re.fullmatch(f"rlvr: {sentence}", got := fit_error(capsys, tmp_path, *flags)), got


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("model: {los: {beta: 0.1}}", "unknown setting `model.los.beta`; did you mean model.loss.beta"),
        ("credit: {init_args: {flor: 0.1}}", "`credit` has no setting `flor`; did you mean floor"),
        (
            "credit: margin",
            "`credit` 'margin' is no file and no known class; choices: .*margin.*; in files by class path",
        ),
        ("credit: ../none.yaml", "`credit` '../none.yaml' is no file"),
        (
            "data: {train: {class_path: SumsSource, init_args: {sise: 3}}}",
            "`data.train` has no setting `sise`; did you m",
        ),
        (
            "data: {train: {class_path: SumsSource, init_args: {verifier: exat}}}",
            "unknown verifier 'exat'; choices: choice, exact",
        ),
        ("model: [1,", "Problems parsing config"),
    ],
)
def test_a_mistake_in_a_file_is_one_sentence(capsys, tmp_path, text, sentence):
    file = tmp_path / "mistake.yaml"
    file.write_text(text)
    assert re.match(f"rlvr: {sentence}", got := error(capsys, "fit", "-c", TINY, "-c", file)), got


@pytest.mark.parametrize(
    ("rows", "settings", "sentence"),
    [
        (None, {}, "`path` must be an existing file"),
        ([], {}, "`path` must hold at least one problem, got none"),
        ([{"problem": "1+1"}], {}, "row 1 of .* has no column 'answer'"),
        ([{"problem": "1+1", "answer": None}], {}, "row 1 of .* has no answer"),
        ([{"q": "1+1", "answer": "2"}], {"columns": {"problem": "question"}}, "row 1 .* has no column 'question'"),
        ([{"problem": "1+1", "answer": "2"}], {}, "no held-out problem is left"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_unusable_data_is_named_by_file_row_and_column(capsys, tmp_path, rows, settings, sentence):
    file = tmp_path / "data.jsonl"
    if rows is not None:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert re.match(f"rlvr: {sentence}", got := fit_error(capsys, tmp_path, source(file, **settings))), got


def test_unknown_command_lists_the_commands(capsys):
    assert "'fitt' (choose from 'fit', 'validate', 'test'" in error(capsys, "fitt")


@pytest.mark.filterwarnings("ignore")
def test_rewards_of_nan_alone_are_counted_as_unscored(tmp_path):
    flags = ["--runs_dir", str(tmp_path), f"--data.train={sums(function='test_bad_input.nans')}"]
    main(["fit", "-c", str(TINY), *SMALL, *flags])
    logged = scalars(tmp_path / "tiny_mcpo" / "version_0")
    assert set(logged["reward/unscored"].values()) == set(logged["verify/abstained"].values()) == {1.0}
    assert "reward/mean" not in logged
    assert set(logged["loss/total"].values()) == {0.0}


def test_greedy_evaluation_samples_once_and_says_so(tmp_path, capsys):
    flags = ["--model.evaluation.temperature=0", "--model.evaluation.num_samples=4", "--runs_dir", str(tmp_path)]
    with pytest.warns(UserWarning, match="greedy samples are all the same"):
        main(["validate", "-c", str(TINY), *SMALL, *flags, "--trainer.limit_val_batches=1"])


def test_a_full_disk_is_one_sentence_and_costs_no_earlier_checkpoint(capsys, tmp_path, monkeypatch):
    def full(self, checkpoint, path, storage_options=None):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(TorchCheckpointIO, "save_checkpoint", full)
    monkeypatch.chdir(tmp_path)
    sentence = error(capsys, "fit", "-c", TINY, *SMALL)
    assert "could not save the checkpoint (No space left on device); earlier ones are intact" in sentence
    assert not [file for file in tmp_path.rglob("checkpoints/*") if file.is_file()]


def test_debug_shows_where_an_error_was_raised(monkeypatch):
    monkeypatch.setenv("RLVR_DEBUG", "1")
    with pytest.raises(ValueError, match="unknown credit assigner"):
        main(["fit", "--credit=margni"])


def test_a_plugin_module_without_that_class_names_those_it_has(capsys, monkeypatch, tmp_path):
    (tmp_path / "mine.py").write_text("class Surprise:\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert "module mine has no Suprise, but Surprise" in error(capsys, "explain", "--credit=mine.Suprise")


def test_going_on_from_a_finished_run_asks_for_more_steps(capsys, tmp_path):
    run = fit(tmp_path)
    last = run / "checkpoints" / "last.ckpt"
    message = error(capsys, "fit", "-c", TINY, *SMALL, f"--runs_dir={tmp_path}", f"--ckpt_path={last}")
    assert "`trainer.max_steps` must be above 2, the checkpoint's step, to go on from it, got 2" in message


def test_a_held_out_problem_longer_than_the_model_is_refused(tmp_path):
    long = tmp_path / "long.jsonl"
    long.write_text(json.dumps({"problem": "+".join(["1"] * 260) + "=", "answer": "260"}) + "\n")
    data = PromptDataModule(
        SumsSource(size=12, val_size=0),
        val=DatasetSource(str(long), verifier="exact"),
        template=PromptTemplate(chat="plain"),
        max_prompt_length=1000,
    )
    trainer = Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")
    with pytest.raises(ValueError, match=r"must fit into the 512 positions of tiny_untrained, got 5\d\d \+ 8 tokens"):
        trainer.validate(make_module(), datamodule=data)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04"])
def test_a_file_that_is_no_checkpoint_is_named(tmp_path, capsys, content):
    file = tmp_path / "some.ckpt"
    file.write_bytes(content)
    for command in ("fit", "validate"):
        sentence = error(capsys, command, "-c", TINY, *SMALL, "--runs_dir", tmp_path, "--ckpt_path", file)
        assert sentence.startswith(f"rlvr: `ckpt_path` must be a checkpoint that a run saved, got '{file}'")


@pytest.mark.parametrize("name", ["../away", "/tmp/away", ""])
def test_the_name_of_a_run_stays_below_its_folder(capsys, name):
    assert "`name` must be the name of a folder" in error(capsys, "fit", "-c", TINY, *SMALL, f"--name={name}")


def test_a_refused_resume_leaves_the_run_as_it_was(tmp_path, capsys):
    folder = fit(tmp_path, "--checkpoint.keep_all=true", "--checkpoint.every_n_steps=1", "--trainer.max_steps=3")
    before = {path for path in folder.rglob("*") if "tfevents" not in path.name}
    flags = ["--ckpt_path", folder / "checkpoints" / "step=1.ckpt", "--data.prompts_per_step=4"]
    sentence = error(capsys, "fit", "-c", TINY, *SMALL, "--runs_dir", tmp_path, "--trainer.max_steps=3", *flags)
    assert "`prompts_per_step` must be 2" in sentence
    assert {path for path in folder.rglob("*") if "tfevents" not in path.name} == before
    assert list(scalars(folder)["reward/mean"]) == [1, 2, 3]


def test_sizes_of_evaluation_are_checked_before_training(tmp_path, capsys):
    sentence = fit_error(capsys, tmp_path, "--model.evaluation.max_completion_length=600")
    assert "must fit into the 512 positions" in sentence


@pytest.mark.parametrize("gold", [float("nan"), ["1", " "], [], {"a": 1}, "  "])
@pytest.mark.parametrize("verifier", ["exact", "math"])
def test_a_gold_that_nothing_can_match_is_a_data_error(gold, verifier):
    assert VERIFIERS[verifier]().check_columns({"answer": gold}).startswith("`answer` ")


def test_a_state_that_could_never_be_loaded_is_refused_before_training(tmp_path):
    class Remembering(UniformCredit):
        def state_dict(self):
            return {"mean": numpy.zeros(2)}

    with pytest.raises(TypeError, match=r"the state of .*Remembering must hold tensors and plain Python only"):
        fit_in_python(tmp_path, credit=Remembering())


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_an_engine_without_finite_log_probs_is_refused(tmp_path, value):
    class Broken(OneToken):
        def generate(self, *arguments):
            completions = super().generate(*arguments)
            return replace(completions, logprobs=torch.full_like(completions.logprobs, value))

    with pytest.raises(FloatingPointError, match=r"the log-probs of Broken must be finite, got (nan|-inf)"):
        fit_in_python(tmp_path, module=make_module(rollout={"engine": Broken()}))


def test_verdicts_are_checked_where_they_come_from(tmp_path):
    class Few(Verifier):
        def verify(self, attempts):
            return [Verdict(status="correct", reward=1.0)]

    data = PromptDataModule(SumsSource(size=12, val_size=0, verifier=Few()), val_problems=0, max_prompt_length=32)
    with pytest.raises(TypeError, match="Few must return one Verdict for each of"):
        fit_in_python(tmp_path, data=data)
    with pytest.raises(ValueError, match=r"`status` must be one of correct, .*, got 'right'"):
        Verdict(status="right", reward=1.0)
    with pytest.raises(ValueError, match="must return a list of 1 numbers, got dict"):
        FunctionVerifier(lambda **columns: {"reward": 1.0}).verify(
            [Attempt(prompt="", completion="", completion_ids=(), truncated=False, columns={})]
        )
