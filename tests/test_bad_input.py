"""What a user can get wrong ends in one sentence: which setting, what was expected, what was given."""

import errno
import json
import re

import pytest
from command_line import SMALL, TINY, error, fit, fit_error, main, sums
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import Trainer
from runs import make_module, scalars

from lightning_rlvr.data.datamodule import PromptDataModule
from lightning_rlvr.data.sources import DatasetSource, SumsSource
from lightning_rlvr.data.templates import PromptTemplate


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
        (["--model.rollout.temperature=0"], r"`rollout.temperature` must be positive while training, got 0.0"),
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
            "unknown verifier 'exat'; choices: exact",
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
    assert set(logged["reward/unscored"].values()) == set(logged["verify/error"].values()) == {1.0}
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
