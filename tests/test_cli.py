"""What composes on the command line, and how."""

import inspect
import json

import pytest
import torch
import yaml
from lightning.pytorch import Trainer
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from command_line import CONFIGS, SMALL, TINY, error, fit, parse, plugins, sums
from lightning_rlvr.__main__ import main
from lightning_rlvr.calibration.base import CALIBRATORS
from lightning_rlvr.credit.ablation.prompt_mask import PromptMask
from lightning_rlvr.credit.ablation.ref_model import RefModel
from lightning_rlvr.credit.base import CREDIT_ASSIGNERS
from lightning_rlvr.credit.margin import MarginCredit
from lightning_rlvr.plugins import find_one
from lightning_rlvr.policy.loading import load_tokenizer
from lightning_rlvr.policy.settings import PolicySettings
from lightning_rlvr.rollout.hf import HFEngine
from lightning_rlvr.settings import EvaluationSettings, LossSettings, OptimizerSettings, RolloutSettings
from rollouts import make_rollout
from runs import OneToken, make_data, make_module, same_weights, scalars
from runs import fit as fit_in_python

ENTROPY = "lightning_rlvr.credit.entropy.EntropyCredit"


def write(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def credit(cli):
    return find_one(cli.trainer, CREDIT_ASSIGNERS["uniform"].__mro__[1])


# --- files ---


def test_group_file_is_relative_to_the_file_that_names_it(tmp_path, monkeypatch):
    write(tmp_path, "groups/margin.yaml", f"class_path: {ENTROPY}\ninit_args: {{lo: 0.1}}\n")
    experiment = write(tmp_path, "experiments/one.yaml", "data: {train: SumsSource}\ncredit: ../groups/margin.yaml\n")
    monkeypatch.chdir(CONFIGS)
    assert credit(parse(config=experiment)).lo == 0.1
    assert type(credit(parse("--credit", "credit/uniform.yaml", config=experiment))).__name__ == "UniformCredit"


def test_partial_overlay_keeps_class_and_other_settings(tmp_path):
    overlay = write(tmp_path, "o.yaml", "credit: {init_args: {floor: 0.4}}\ntrainer: {max_steps: 7}\n")
    cli = parse("-c", overlay)
    assert (type(credit(cli)), credit(cli).floor, credit(cli).hi) == (MarginCredit, 0.4, 0.8)
    assert (cli.trainer.max_steps, cli.trainer.check_val_every_n_epoch) == (7, None)


@pytest.mark.parametrize("how", ["entropy", "EntropyCredit", ENTROPY, str(CONFIGS / "credit" / "entropy.yaml")])
def test_another_credit_starts_from_its_own_defaults(how):
    """Margin's thresholds would be accepted by entropy credit, and mean something else there."""
    cli = parse("--credit.lo=0.1", "--credit", how)
    assert (type(credit(cli)).__name__, credit(cli).lo, credit(cli).hi) == ("EntropyCredit", 0.325, 0.673)


def test_another_credit_in_a_later_file_starts_from_its_own_defaults(tmp_path):
    later = write(tmp_path, "later.yaml", f"credit: {{class_path: {ENTROPY}, init_args: {{hi: 0.9}}}}\n")
    assert (credit(parse("-c", later)).lo, credit(parse("-c", later)).hi) == (0.325, 0.9)
    nested = ["--credit=permuted", "--credit.assigner=MarginCredit", "--credit.assigner.lo=0.3"]
    assert credit(parse(*nested, "--credit.assigner=EntropyCredit")).assigner.lo == 0.325


def test_trainer_callbacks_are_replaced_or_appended_and_ours_stay(tmp_path):
    timer = write(tmp_path, "timer.yaml", "trainer: {callbacks: [{class_path: ModelSummary}]}\n")
    other = write(tmp_path, "other.yaml", "trainer: {callbacks: [{class_path: LearningRateMonitor}]}\n")
    appended = write(tmp_path, "appended.yaml", "trainer: {callbacks+: [{class_path: LearningRateMonitor}]}\n")
    ours = {"ZScoreCalibrator", "MarginCredit", "RunCheckpoint", "SampleWriter", "RunFolder", "SaveRunConfig"}
    replaced, both = plugins(parse("-c", timer, "-c", other)), plugins(parse("-c", timer, "-c", appended))
    assert {"LearningRateMonitor", *ours} <= replaced.keys()
    assert "ModelSummary" not in replaced
    assert {"ModelSummary", "LearningRateMonitor", *ours} <= both.keys()
    flags = plugins(parse("--trainer.callbacks+=ModelSummary", "--trainer.callbacks.max_depth=3"))
    assert flags["ModelSummary"]._max_depth == 3


def test_file_and_dotted_key_in_one_file_is_an_error(tmp_path):
    group = CONFIGS / "credit" / "evidence_contrast.yaml"
    mixed = write(tmp_path, "mixed.yaml", f"credit: {group}\ncredit.init_args.tau: 0.5\n")
    with pytest.raises(ValueError, match=r"`credit` has no setting `tau`; did you mean tau \(of EvidenceContrast"):
        parse("-c", mixed)


def test_relative_interpolation_honours_later_flags(tmp_path):  # CL-02
    file = write(
        tmp_path,
        "i.yaml",
        "model: {rollout: {max_completion_length: 16},"
        " evaluation: {max_completion_length: '${..rollout.max_completion_length}'}}\n",
    )
    assert parse("-c", file).model.evaluation_settings.max_completion_length == 16
    flag = "--model.rollout.max_completion_length=5"
    assert parse("-c", file, flag).model.evaluation_settings.max_completion_length == 5


# CL-04 does not arise: nothing is linked. What two parts share is read from the trainer (the data module's batch
# size, its seed) or by relative interpolation, as above.


def test_scientific_notation_without_a_dot_is_a_number(tmp_path):  # CL-06
    file = write(tmp_path, "n.yaml", "model: {optimizer: {learning_rate: 1e-5}, loss: {epsilon_high: 1e-5}}\n")
    flags = ["--model.optimizer.learning_rate=1e-5", "--model.loss.epsilon_high=1e-5"]
    for cli in (parse("-c", file), parse(*flags)):
        values = cli.model.optimizer_settings.learning_rate, cli.model.loss_settings.epsilon_high
        assert values == (1e-5, 1e-5)
        assert all(isinstance(value, float) for value in values)


def test_the_last_value_wins(tmp_path, capsys):  # CL-08
    file = write(tmp_path, "c.yaml", "trainer: {max_steps: 9}\n")
    assert parse("--trainer.max_steps=5", "-c", file).trainer.max_steps == 9
    assert parse("-c", file, "--trainer.max_steps=5").trainer.max_steps == 5
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "last value given for a setting wins" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("file", sorted((CONFIGS / "experiment").glob("*.yaml")), ids=lambda file: file.stem)
def test_experiment_explains_itself(file, capsys):
    main(["explain", "-c", str(file)])
    shown = capsys.readouterr().out
    method = file.stem.split("_")[1]
    assert {"grpo": "UniformCredit", "mcpo": "MarginCredit", "tace": "EvidenceContrastCredit"}[method] in shown
    assert ("OTNormalCalibrator" if method == "tace" else "ZScoreCalibrator") in shown
    assert yaml.safe_load(file.read_text())["name"] == file.stem


GROUPS = {
    "base": "--trainer",
    "model": "--model",
    "data": "--data",
    "calibrator": "--calibrator",
    "credit": "--credit",
}


@pytest.mark.parametrize(
    "file", [f for group in GROUPS for f in sorted((CONFIGS / group).glob("*.yaml"))], ids=lambda f: f.stem
)
def test_every_group_file_works_inside_an_experiment(file):
    cli = parse(f"{GROUPS[file.parent.name]}={file}")
    given = yaml.safe_load(file.read_text())
    if "class_path" in given:
        used = plugins(cli)[given["class_path"].rpartition(".")[2]]
        for name, value in given.get("init_args", {}).items():
            if name in ("assigners", "calibrators"):
                registry = CREDIT_ASSIGNERS if name == "assigners" else CALIBRATORS
                assert [type(member) for member in used.members] == [registry[short] for short in value]
                continue
            found = getattr(used, name)
            value = tuple(value) if isinstance(value, list) else value
            assert name == "ablation" or found == value or type(found) is CREDIT_ASSIGNERS[value]


@pytest.mark.parametrize("file", sorted((CONFIGS / "overlay").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_overlay_changes_an_experiment(file):
    def settings(cli):
        return cli.model.loss_settings, [type(callback) for callback in cli.trainer.callbacks]

    assert settings(parse("-c", file)) != settings(parse())


# --- names ---


@pytest.mark.parametrize("flags", [["--credit.help", "margin"], ["--credit.help=margin"]])
def test_short_names_have_help(flags, capsys):
    with pytest.raises(SystemExit) as end:
        main(["fit", *flags])
    assert end.value.code == 0
    assert "--credit.floor FLOOR" in capsys.readouterr().out


def test_short_flags_are_suggested(capsys):
    assert "did you mean num_samples" in error(capsys, "test", "-c", TINY, "--num_sample", "4")


@pytest.mark.parametrize("flags", [["--credit", "margin"], ["--credit=margin"], ["--credit", "MarginCredit"]])
def test_short_name_and_class_name_take_settings(flags):
    assert credit(parse(*flags, "--credit.floor", "0.1")).floor == 0.1


def test_names_of_calibrators_and_ablations():
    assert "OTNormalCalibrator" in plugins(parse("--calibrator", "ot_normal"))
    evidence = credit(parse("--credit=evidence_contrast", "--credit.ablation", "ref_model"))
    assert evidence.ablation == RefModel()
    path = "lightning_rlvr.credit.ablation.prompt_mask.PromptMask"
    flags = ["--credit=evidence_contrast", f"--credit.ablation={path}", "--credit.ablation.placeholder=..."]
    assert credit(parse(*flags)).ablation == PromptMask(placeholder="...")


@pytest.mark.parametrize(("flag", "name"), [("--credit", "margni"), ("--calibrator", "z_score")])
def test_unknown_name_lists_the_choices(flag, name):
    choices = CREDIT_ASSIGNERS.names() if flag == "--credit" else CALIBRATORS.names()
    with pytest.raises(ValueError, match=f"{name}.*choices: {', '.join(choices)}"):
        parse(flag, name)


def test_every_registered_plugin_is_known_by_short_name():
    members = {"mixture": "--credit.assigners=[margin,uniform]", "sequential": "--calibrator.calibrators=[rloo]"}
    members |= dict.fromkeys(("permuted", "inverted"), "--credit.assigner=margin")
    for flag, registry in (("--credit", CREDIT_ASSIGNERS), ("--calibrator", CALIBRATORS)):
        for name in registry:
            cli = parse(flag, name, *([members[name]] if name in members else []))
            assert registry[name] in map(type, cli.trainer.callbacks)


def test_help_shows_what_each_setting_means(capsys):
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for text in (
        "Completions for each prompt (the group size G), at least 2.",
        "Budget of padded tokens",
        "Optimizer steps between two saves.",
        "Folder of all runs.",
        "Prompts of a rollout batch, over all devices.",
    ):
        assert text in shown
    with pytest.raises(SystemExit):
        main(["fit", "--credit.help=MarginCredit"])
    assert "Margin up to which the score is 1" in " ".join(capsys.readouterr().out.split())


# --- runs ---


def test_saved_config_gives_the_same_config_and_the_same_rewards(tmp_path):
    first = fit(tmp_path, "--credit=entropy", "--credit.floor=0.5")
    main(["fit", "-c", str(first / "config.yaml")])
    second = first.parent / "version_1"
    assert (second / "config.yaml").read_text() == (first / "config.yaml").read_text()
    for tag in ("reward/mean", "loss/total", "policy/grad_norm"):
        assert scalars(second)[tag] == scalars(first)[tag]


def steps_by_tag(run):
    """tag -> steps over the event files of a run, in the order in which they were written."""
    steps = {}
    for file in sorted(run.glob("events.*"), key=lambda file: file.stat().st_mtime_ns):
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    steps.setdefault(value.tag, []).append(event.step)
    return steps


def test_resumed_run_goes_on_in_its_folder_under_the_flags_of_now(tmp_path):  # TB-01
    run = fit(tmp_path)
    checkpoint = run / "checkpoints" / "last.ckpt"
    now = ["--model.rollout.max_completion_length=5", "--model.loss.beta=0.1", "--credit.floor=0.9"]
    resume = ["-c", str(run / "config.yaml"), "--ckpt_path", str(checkpoint), "--trainer.max_steps=4"]
    main(["fit", *resume, *now])
    assert [folder.name for folder in run.parent.iterdir()] == [run.name]
    assert {file.name for file in run.glob("*.yaml")} == {"config.yaml", "config.resume-1.yaml"}
    for tag, steps in steps_by_tag(run).items():
        assert steps == sorted(set(steps)), tag
    logged = scalars(run)
    assert list(logged["loss/total"]) == [1, 2, 3, 4]
    assert list(logged["loss/kl"]) == [3, 4]
    assert (logged["completion/length_max"][2], logged["completion/length_max"][3]) == (8, 5)
    assert yaml.safe_load((run / "config.resume-1.yaml").read_text())["credit"]["init_args"]["floor"] == 0.9


def test_run_without_a_checkpoint_claims_a_new_folder(tmp_path):
    assert [fit(tmp_path).name, fit(tmp_path).name] == ["version_0", "version_1"]


# --- CL-10: no setting is accepted and then ignored ---

REWARDS = [0.0, 0.0, 0.0, 0.0, 0.1, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0]
STATISTICS = ("margin", "entropy", PromptMask().statistic, PromptMask(placeholder="x").statistic, RefModel().statistic)
OPTIONS = {
    "zscore": [{"ddof": 0}, {"eps": 0.5}],
    "centered": [],
    "rloo": [],
    "ot_normal": [
        {"position": "bary"}, {"scope": "task_running"}, {"equalize": "rms"}, {"scale": "c_n"}, {"tie_tol": 0.5},
    ],
    "sequential": [{"calibrators": ["centered"]}],
    "uniform": [],
    "margin": [
        {"lo": 0.5}, {"hi": 0.5}, {"floor": 0.6}, {"spread": "additive", "lam": 0.1}, {"score_map": "step"},
        {"spread": "pure"},
    ],
    "entropy": [
        {"lo": 0.1}, {"hi": 2.0}, {"floor": 0.6}, {"spread": "additive", "lam": 0.1}, {"score_map": "step"},
        {"spread": "pure"},
    ],
    "evidence_contrast": [
        {"ablation": "ref_model"}, {"statistic": "k3"}, {"weight_map": "linear"}, {"tau": 0.3}, {"clip_low": 0.9},
        {"clip_high": 3.0}, {"renorm": "project"}, {"tie_tol": 1.0}, {"negative": "flip"},
    ],
    "mixture": [{"assigners": ["entropy", "uniform"]}, {"weights": [0.1, 0.9]}],
    "permuted": [{"assigner": "entropy"}],
    "inverted": [{"assigner": "entropy"}],
}  # fmt: skip
BASES = {
    "sequential": {"calibrators": ["zscore"]},
    "mixture": {"assigners": ["margin", "uniform"]},
    "permuted": {"assigner": "margin"},
    "inverted": {"assigner": "margin"},
}
WITH = {"lam": {"spread": "additive"}}
"""What an option needs beside it to have an effect; alone it is refused."""


def rollout(seed=0):
    return make_rollout(
        seed, num_groups=3, num_generations=4, ragged=False, num_tasks=2, rewards=REWARDS, requires=STATISTICS,
        completion_tokens=12,
    )  # fmt: skip


def outcome(name, **settings):
    settings = BASES.get(name, {}) | settings
    if name in CALIBRATORS:
        calibrator = CALIBRATORS[name](**settings)
        for seed in range(25):  # equalisation has a warm-up
            calibrator.observe(rollout(seed))
        return calibrator.calibrate(rollout())
    return CREDIT_ASSIGNERS[name](**settings).assign(rollout(), torch.linspace(-2, 2, len(REWARDS)))


OURS = [
    n for kind in (CALIBRATORS, CREDIT_ASSIGNERS) for n in kind if kind[n].__module__.startswith("lightning_rlvr.")
]


@pytest.mark.parametrize("name", OURS)
def test_every_option_of_a_plugin_has_an_effect(name):
    plugin = CALIBRATORS[name] if name in CALIBRATORS else CREDIT_ASSIGNERS[name]
    documented = inspect.signature(plugin).parameters.keys()
    assert name in OPTIONS, f"list a value for each option of the new plug-in {name} in OPTIONS, above"
    assert documented == {option for options in OPTIONS[name] for option in options}, "every option, and no other"
    for options in OPTIONS[name]:
        option = list(options)[-1]
        beside = WITH.get(option, {})
        if beside:
            with pytest.raises(ValueError, match=f"{option}.*no effect"):
                plugin(**BASES.get(name, {}), **{option: options[option]})
        assert not torch.allclose(outcome(name, **options), outcome(name, **beside), atol=1e-5), options


LOSS = [
    {"loss_type": "dapo"}, {"epsilon": 0.01}, {"epsilon_high": 0.01}, {"delta": 1.21}, {"beta": 0.5},
    {"entropy_coef": 0.1}, {"num_iterations": 4}, {"num_minibatches": 2}, {"mask_truncated_completions": True},
    {"importance_sampling": "token_truncate"}, {"importance_sampling": "sequence_truncate"},
    {"importance_sampling": "token_truncate", "importance_sampling_cap": 1.0},
]  # fmt: skip
ROLLOUT = [
    {"num_generations": 2}, {"max_completion_length": 5}, {"temperature": 0.7}, {"sample_seed": 3},
    {"engine": OneToken()},
]  # fmt: skip
OPTIMIZER = [
    {"learning_rate": 1e-3}, {"weight_decay": 0.5}, {"adam_beta1": 0.5}, {"adam_beta2": 0.9},
    {"lr_scheduler": "linear"}, {"lr_scheduler": "cosine"}, {"warmup_steps": 2}, {"max_grad_norm": 1e-3},
]  # fmt: skip
EVALUATION = [{"num_samples": 3}, {"temperature": 0.0}, {"temperature": 0.5}, {"max_completion_length": 3}]
REFUSED = [{"top_p": 0.9}, {"top_k": 5}, {"repetition_penalty": 1.1}]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    def train(loss=None, rollout=None, optimizer=None):
        module = make_module(
            loss={"num_iterations": 2} | (loss or {}),
            rollout=rollout,
            optimizer={"learning_rate": 3e-2} | (optimizer or {}),
        )
        _, recorder, _ = fit_in_python(
            tmp_path_factory.mktemp("run"), module=module, data=make_data(), max_steps=4, credit=MarginCredit()
        )
        return recorder.weights[-1]

    base = train()
    return lambda **settings: (base, train(**settings))


def differ(a, b):
    return any(not torch.equal(a[name], b[name]) for name in a)


def test_the_same_options_train_the_same_weights(trained):
    """Hence a difference, below, is the effect of an option."""
    assert not differ(*trained())


@pytest.mark.parametrize(
    ("group", "options"),
    [
        pytest.param(group, options, id=f"{group}-{next(iter(options))}")
        for group, table in (("loss", LOSS), ("rollout", ROLLOUT), ("optimizer", OPTIMIZER))
        for options in table
    ],
)
def test_every_option_of_training_has_an_effect(trained, group, options):
    assert differ(*trained(**{group: options}))


def evaluated(sample_seed=None, **options):
    """What a validation of 4 problems samples: token ids by row."""

    class Listening(HFEngine):
        def generate(self, *args):
            completions = super().generate(*args)
            rows.extend(
                ids[mask].tolist()
                for ids, mask in zip(completions.completion_ids, completions.completion_mask, strict=True)
            )
            return completions

    rows = []
    module = make_module(rollout={"engine": Listening(), "sample_seed": sample_seed}, evaluation=options)
    Trainer(logger=False, accelerator="cpu", enable_progress_bar=False).validate(module, make_data(), verbose=False)
    return rows


@pytest.mark.parametrize("options", EVALUATION, ids=lambda options: "{}-{}".format(*next(iter(options.items()))))
def test_every_option_of_the_evaluation_has_an_effect(options):
    assert evaluated(**options) != evaluated()


def test_evaluation_samples_as_its_options_say():
    assert evaluated() == evaluated() != evaluated(sample_seed=3)
    assert evaluated(temperature=0.0) == evaluated(temperature=0.0, sample_seed=3)
    several = evaluated(num_samples=3)
    assert several[::3] == evaluated(), "the first sample of a problem does not depend on how many there are"
    assert [len({*map(tuple, several[i : i + 3])}) for i in range(0, 12, 3)] == [3] * 4
    assert max(map(len, evaluated())) == 8, "by default the budget of training"
    assert max(map(len, evaluated(max_completion_length=3))) == 3


def test_an_engine_of_ones_own_samples_what_is_trained_and_evaluated(tmp_path):
    engine = ["--model.rollout.engine=runs.OneToken", "--model.rollout.engine.token=9"]
    run = fit(tmp_path, *engine, "--trainer.limit_val_batches=1", "--trainer.val_check_interval=1")
    logged = scalars(run)
    assert logged["completion/length"] == logged["eval/length"] == {1: 1.0, 2: 1.0}
    samples = [json.loads(line) for line in (run / "samples" / "step_000001.jsonl").read_text().splitlines()]
    token = load_tokenizer(PolicySettings(name_or_path="tiny_untrained")).decode([9])
    assert {sample["completion"] for sample in samples} == {token}


def test_options_without_effect_are_refused_or_promise_to_have_none(trained):
    for options in REFUSED:
        with pytest.raises(ValueError, match=f"rollout.{next(iter(options))}.*must be"):
            RolloutSettings(**options)
    same_weights(*trained(loss={"max_tokens_per_micro_batch": 20}), atol=2e-2, rtol=0)


@pytest.mark.parametrize(
    ("settings", "tables", "elsewhere"),
    [
        (LossSettings, LOSS, {"max_tokens_per_micro_batch"}),  # test_training.py counts forwards
        (RolloutSettings, ROLLOUT + REFUSED, {"probe_tolerance"}),  # test_probe.py
        (OptimizerSettings, OPTIMIZER, set()),
        (EvaluationSettings, EVALUATION, {"keep"}),  # tests/test_evaluate.py
    ],
)
def test_every_setting_is_in_a_table(settings, tables, elsewhere):
    named = {name for options in tables for name in options}
    assert named | elsewhere == inspect.signature(settings).parameters.keys()


def test_defaults_of_the_command_line_are_those_of_python():
    cli = parse(config=CONFIGS / "experiment" / "tiny_grpo.yaml")
    assert cli.model.loss_settings == LossSettings()
    assert cli.model.policy_settings == PolicySettings(name_or_path="tiny", lora=None)
    assert SMALL[5].endswith(sums())
