"""A step does what the formulas say, however it is cut into pieces."""

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback

from lightning_rlvr.calibration.centered import CenteredCalibrator
from lightning_rlvr.calibration.zscore import ZScoreCalibrator
from lightning_rlvr.credit.base import CreditAssigner
from lightning_rlvr.credit.entropy import EntropyCredit
from lightning_rlvr.credit.evidence_contrast import EvidenceContrastCredit
from lightning_rlvr.credit.margin import MarginCredit
from lightning_rlvr.credit.mixture import MixtureCredit
from lightning_rlvr.credit.uniform import UniformCredit
from lightning_rlvr.functional.losses import LOSS_TYPES
from lightning_rlvr.functional.statistics import TOKEN_STATISTICS
from lightning_rlvr.monitoring.run_folder import RunLogger
from lightning_rlvr.policy.loading import load_policy
from lightning_rlvr.policy.settings import LoraSettings
from lightning_rlvr.rollout.hf import HFEngine
from runs import digit_share, fit, make_data, make_module, same_weights, scalars


def textbook_loss(model, record, num_generations):
    """GRPO in ten lines: z-score inside each group, mean over sequences of the mean over tokens, ratio 1."""
    r = record.rollout
    rewards = r.rewards.view(-1, num_generations)
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()
    losses = []
    for i in range(len(r)):
        prompt, completion = r.prompt_ids[i][r.prompt_mask[i]], r.completion_ids[i][r.completion_mask[i]]
        logits = model(torch.cat([prompt, completion])[None]).logits[0, len(prompt) - 1 : -1]
        logprobs = logits.log_softmax(-1)[torch.arange(len(completion)), completion]
        losses.append(-((logprobs - logprobs.detach()).exp() * advantages[i]).mean())
    return torch.stack(losses).mean()


@pytest.mark.parametrize(
    ("settings", "adam", "rates", "limit"),
    [
        ({}, {"weight_decay": 0.0}, [1e-3] * 3, 1.0),
        (
            {
                "learning_rate": 2e-3, "weight_decay": 0.5, "adam_beta1": 0.5, "adam_beta2": 0.9,
                "lr_scheduler": "linear", "warmup_steps": 1, "max_grad_norm": 0.02,
            },
            {"weight_decay": 0.5, "betas": (0.5, 0.9)},
            [0.0, 2e-3, 1e-3],  # warm-up for a step, then down to 0 at step 3
            0.02,
        ),
    ],
    ids=["defaults", "all_settings"],
)  # fmt: skip
def test_zscore_x_uniform_is_textbook_grpo_step_by_step(tmp_path, settings, adam, rates, limit):
    module, recorder, _ = fit(tmp_path, module=make_module(optimizer=settings), max_steps=3)
    model = load_policy(module.policy_settings).model
    optimizer = torch.optim.AdamW(model.parameters(), **adam)
    steps = zip(recorder.records, recorder.weights, recorder.metrics, rates, strict=True)
    for record, weights, metrics, rate in steps:
        loss = textbook_loss(model, record, num_generations=4)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        assert metrics["policy/learning_rate"] == pytest.approx(rate)
        assert metrics["loss/total"] == pytest.approx(loss.item(), abs=1e-6)
        assert metrics["policy/grad_norm"] == pytest.approx(norm.item(), rel=1e-3)
        same_weights(weights, dict(model.named_parameters()), atol=2e-4, rtol=0)


def test_on_policy_loss_is_zero_but_the_gradient_is_not(tmp_path):
    _, recorder, _ = fit(tmp_path, max_steps=1)
    assert recorder.metrics[0]["loss/total"] == pytest.approx(0, abs=1e-6)
    assert recorder.metrics[0]["policy/grad_norm"] > 1e-3


@pytest.mark.parametrize("loss_type", LOSS_TYPES.names())
def test_gradient_does_not_depend_on_micro_batches(tmp_path, loss_type):
    norms = []
    for budget in (1, 60, 10_000):
        module = make_module(loss={"loss_type": loss_type, "max_tokens_per_micro_batch": budget})
        _, recorder, _ = fit(tmp_path, module=module, credit=MarginCredit(), max_steps=1)
        norms.append(recorder.metrics[0]["policy/grad_norm"])
        weights = recorder.weights[0]
    assert norms[0] == pytest.approx(norms[2], rel=1e-4)
    assert norms[1] == pytest.approx(norms[2], rel=1e-4)
    assert weights


@pytest.mark.parametrize("loss_type", LOSS_TYPES.names())
def test_token_credit_changes_the_gradient_of_every_loss(tmp_path, loss_type):
    module = {"loss": {"loss_type": loss_type}}
    runs = [
        fit(tmp_path, module=make_module(**module), credit=credit, max_steps=1)[1]
        for credit in (UniformCredit(), MarginCredit(lo=0.0, hi=0.02, floor=0.05), MarginCredit(floor=1.0))
    ]
    uniform, margin, floored = (run.metrics[0]["policy/grad_norm"] for run in runs)
    assert abs(margin - uniform) > 1e-4 * uniform
    assert floored == uniform


def test_bnpo_is_dapo_but_for_the_minibatches(tmp_path):
    """Minibatches of other numbers of tokens weigh alike with bnpo, by their tokens with dapo."""
    for num_minibatches, same in ((1, True), (2, False)):
        runs = [
            fit(
                tmp_path,
                module=make_module(
                    loss={"loss_type": loss_type, "num_minibatches": num_minibatches},
                    rollout={"max_completion_length": 40},
                ),
                max_steps=2,
            )[1]
            for loss_type in ("bnpo", "dapo")
        ]
        tokens = runs[0].records[0].rollout.completion_mask.view(2, -1).sum(1)
        assert tokens[0] != tokens[1]
        weights = [run.weights[-1] for run in runs]
        assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0]) == same


def test_a_budget_of_one_token_forwards_every_row_alone(tmp_path):
    for budget, counted in ((10_000, lambda rows: rows > 0), (1, lambda rows: rows)):
        module, recorder, _ = fit(
            tmp_path, module=make_module(loss={"max_tokens_per_micro_batch": budget}), max_steps=1
        )
        assert module.policy.num_forwards == counted(int(recorder.records[0].forwarded.sum()))
        assert recorder.records[0].forwarded.sum() > 1


def forwards(tmp_path, credit, **loss):
    module, recorder, _ = fit(
        tmp_path, module=make_module(loss=loss), credit=credit, max_steps=2, calibrator=CenteredCalibrator()
    )
    return module.policy.num_forwards, recorder


@pytest.mark.parametrize(
    ("credit", "extra"),
    [
        (UniformCredit(), 0),
        (MarginCredit(), 0),
        (EntropyCredit(), 0),
        (EvidenceContrastCredit(), 1),
        (EvidenceContrastCredit(ablation="ref_model"), 1),
        (MixtureCredit([EvidenceContrastCredit(), EvidenceContrastCredit(tau=0.5), MarginCredit()]), 1),
    ],
)
def test_margin_costs_no_forward_and_evidence_exactly_one(tmp_path, credit, extra):
    count, _ = forwards(tmp_path, credit, max_tokens_per_micro_batch=10_000)
    assert count == 2 * (1 + extra)


@pytest.mark.parametrize("loss", [{}, {"num_iterations": 2}], ids=["training_forward", "scoring_pass"])
def test_reference_and_ablated_forwards_may_share_prompts(tmp_path, loss):
    class Apart(Callback):
        def on_fit_start(self, trainer, pl_module):
            pl_module.policy.shares_prompts = False

    runs = []
    for callbacks in ([], [Apart()]):
        module = make_module(loss={"beta": 0.1, **loss}, rollout={"num_generations": 8})
        _, recorder, _ = fit(tmp_path, module=module, credit=EvidenceContrastCredit(), callbacks=callbacks)
        runs.append((module.policy.num_tokens, recorder))
    (shared_tokens, shared), (apart_tokens, apart) = runs
    assert shared_tokens < apart_tokens
    for ours, theirs in zip(shared.records, apart.records, strict=True):
        torch.testing.assert_close(ours.token_advantages, theirs.token_advantages, atol=1e-4, rtol=1e-4)
    assert shared.metrics[-1]["loss/kl"] == pytest.approx(apart.metrics[-1]["loss/kl"], rel=1e-3, abs=1e-7)
    same_weights(shared.weights[-1], apart.weights[-1], atol=2e-4, rtol=0)  # two steps of Adam move by up to 2e-3


def test_several_updates_score_once_and_then_forward_for_each_update(tmp_path):
    module = make_module(loss={"num_iterations": 2, "num_minibatches": 2, "max_tokens_per_micro_batch": 10_000})
    module, _recorder, _ = fit(tmp_path, module=module, credit=EvidenceContrastCredit(), max_steps=4)
    assert module.policy.num_forwards == 2 + 4
    assert module.trainer.global_step == 4
    assert module.progress.rollouts == 1


def test_reference_forward_is_shared_with_the_reference_ablation(tmp_path):
    count, recorder = forwards(
        tmp_path, EvidenceContrastCredit(ablation="ref_model"), beta=0.1, max_tokens_per_micro_batch=10_000
    )
    assert count == 2 * 2
    assert recorder.metrics[0]["loss/kl"] == 0.0  # the reference is the policy as training starts


def test_second_iteration_sees_ratios_other_than_one_and_clips(tmp_path):  # R1-06
    module = make_module(
        loss={"num_iterations": 2, "epsilon": 0.02}, optimizer={"learning_rate": 0.05, "max_grad_norm": 0.0}
    )
    _, recorder, _ = fit(tmp_path, module=module, max_steps=2)
    metrics = recorder.metrics[0]
    assert metrics["policy/ratio_max"] > 1.02
    assert metrics["policy/clipped_low"] + metrics["policy/clipped_high"] > 0
    [record] = recorder.records  # after the last update: the log-probs that ratios are taken to are still the first
    torch.testing.assert_close(record.rollout.old_logprobs, record.collection.rollout.old_logprobs, atol=1e-4, rtol=0)


def test_single_pass_equals_scoring_first(tmp_path):
    """An assigner that claims to look beyond its row takes the long way round to the same weights."""

    class Global(MarginCredit):
        row_local = False

    runs = [
        fit(tmp_path, credit=credit, max_steps=2) for credit in (MarginCredit(lo=0.0, hi=0.1), Global(lo=0.0, hi=0.1))
    ]
    same_weights(runs[0][1].weights[-1], runs[1][1].weights[-1], atol=2e-5, rtol=0)
    torch.testing.assert_close(runs[0][1].records[-1].token_advantages, runs[1][1].records[-1].token_advantages)


def test_rows_without_signal_are_not_forwarded_and_stay_in_the_denominator(tmp_path):
    def constant_for_even_problems(completions, problem, **columns):
        values = digit_share(completions)
        return [0.5 if sum(map(ord, p)) % 2 else value for p, value in zip(problem, values, strict=True)]

    data = make_data(reward=constant_for_even_problems, prompts_per_step=6)
    module, recorder, _ = fit(tmp_path, data=data, max_steps=1)
    record = recorder.records[0]
    assert 0 < int(record.forwarded.sum()) < len(record.rollout)
    assert torch.equal(record.forwarded, record.advantages != 0)
    loss = textbook_loss(load_policy(module.policy_settings).model, record, num_generations=4)
    loss.backward()
    assert recorder.metrics[0]["loss/total"] == pytest.approx(loss.item(), abs=1e-6)


def test_all_constant_groups_step_with_zero_gradient(tmp_path):
    data = make_data(reward=lambda completions, **columns: [1.0] * len(completions))
    module, recorder, _ = fit(tmp_path, data=data, max_steps=2)
    assert module.policy.num_forwards == 0
    assert recorder.metrics[-1]["policy/grad_norm"] == 0
    assert recorder.metrics[-1]["loss/total"] == 0
    assert recorder.metrics[-1]["advantage/groups_without_signal"] == 1
    assert module.trainer.global_step == 2


def test_unscored_rows_have_no_advantage_and_are_counted(tmp_path):
    def abstains(completions, **columns):
        values = digit_share(completions)
        return [None if i % 4 == 1 else value for i, value in enumerate(values)]

    _, recorder, _ = fit(tmp_path, data=make_data(reward=abstains), max_steps=1)
    record = recorder.records[0]
    assert torch.equal(record.rollout.rewards.isnan(), torch.arange(8) % 4 == 1)
    assert (record.advantages[record.rollout.rewards.isnan()] == 0).all()
    assert recorder.metrics[0]["reward/unscored"] == 0.25
    assert recorder.metrics[0]["verify/abstained"] == 0.25


def test_masked_truncated_rows_leave_loss_but_not_length_statistics(tmp_path):
    loss = {"mask_truncated_completions": True}
    _, kept, _ = fit(tmp_path, module=make_module(), max_steps=1)
    _, masked, _ = fit(tmp_path, module=make_module(loss=loss), max_steps=1)
    assert kept.metrics[0]["completion/length"] == masked.metrics[0]["completion/length"]
    record = masked.records[0]
    assert not record.rollout.completion_mask[record.rollout.truncated].any()
    assert (record.token_advantages[record.rollout.truncated] == 0).all()


def test_batch_of_masked_rows_alone_warns_and_gives_loss_zero(tmp_path):
    module = make_module(loss={"mask_truncated_completions": True}, rollout={"max_completion_length": 1})
    with pytest.warns(UserWarning, match="every completion of this rollout was truncated"):
        _, recorder, _ = fit(tmp_path, module=module, max_steps=1)
    assert recorder.records[0].rollout.truncated.all()
    assert recorder.metrics[0]["loss/total"] == 0


def test_non_finite_gradient_stops_the_run_and_leaves_the_weights(tmp_path):
    class Broken(UniformCredit):
        def assign(self, rollout, advantages):
            return super().assign(rollout, advantages) * 1e30  # the square of its gradient is infinite

    module = make_module()
    before = load_policy(module.policy_settings).trainable_state_dict()
    with pytest.raises(FloatingPointError, match="gradient norm is inf at optimizer step 0"):
        fit(tmp_path, module=module, credit=Broken())
    same_weights(before, module.policy.trainable_state_dict())


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda credit: credit[:, :1].repeat(1, 99), "must return float32 of shape"),
        (lambda credit: credit.double(), "must return float32"),
        (lambda credit: credit * float("nan"), "not finite in rows"),
        (lambda credit: credit + 1, "outside `completion_mask`"),
    ],
)
def test_a_broken_assigner_is_named(tmp_path, returned, message):
    class Broken(CreditAssigner):
        def assign(self, rollout, advantages):
            return returned(UniformCredit().assign(rollout, advantages))

    with pytest.raises(ValueError, match=f"Broken.assign.*{message}"):
        fit(tmp_path, credit=Broken())


def test_undeclared_statistic_is_named(tmp_path):
    class Undeclared(UniformCredit):
        def assign(self, rollout, advantages):
            return rollout.statistics["margin"]

    with pytest.raises(KeyError, match="'margin' was not declared"):
        fit(tmp_path, credit=Undeclared())


def test_unknown_statistic_fails_before_anything_is_sampled(tmp_path):
    class Unknown(UniformCredit):
        requires = frozenset({"margni"})

    module = make_module()
    with pytest.raises(ValueError, match=r"Unknown.requires.*margni.*choices: entropy, margin"):
        fit(tmp_path, module=module, credit=Unknown())
    assert module.progress.rollouts == 0


@pytest.mark.parametrize("extra", [MarginCredit(), UniformCredit()])
def test_two_assigners_are_refused_by_name(tmp_path, extra):
    with pytest.raises(ValueError, match=r"exactly one CreditAssigner, got .*UniformCredit"):
        fit(tmp_path, callbacks=[extra])


def test_kl_pulls_back_and_is_zero_at_the_start(tmp_path):  # R1-02
    module = make_module(loss={"beta": 0.5}, optimizer={"learning_rate": 0.01})
    _, recorder, _ = fit(tmp_path, module=module, max_steps=3)
    assert recorder.metrics[0]["loss/kl"] == 0
    assert recorder.metrics[2]["loss/kl"] > 0
    assert all(record.forwarded.all() for record in recorder.records)


def test_entropy_bonus_changes_the_gradient(tmp_path):
    norms = [
        fit(tmp_path, module=make_module(loss={"entropy_coef": c}), max_steps=1)[1].metrics[0]["policy/grad_norm"]
        for c in (0.0, 0.5)
    ]
    assert norms[0] != norms[1]


def test_max_steps_must_be_whole_rollouts(tmp_path):
    with pytest.raises(ValueError, match=r"max_steps.*multiple of .* = 2, got 3"):
        fit(tmp_path, module=make_module(loss={"num_iterations": 2}), max_steps=3)


def test_minibatches_are_whole_prompts(tmp_path):
    with pytest.raises(ValueError, match=r"num_minibatches.*at most.*2"):
        fit(tmp_path, module=make_module(loss={"num_minibatches": 3}), max_steps=3)


def test_seeds_differ_between_samples_and_steps_and_repeat_with_the_run(tmp_path):
    runs = [fit(tmp_path, max_steps=2)[1].records for _ in range(2)]
    seeds = [torch.cat([record.rollout.seeds for record in records]) for records in runs]
    assert len(seeds[0].unique()) == len(seeds[0]) == 16
    assert torch.equal(*seeds)
    assert torch.equal(runs[0][1].rollout.completion_ids, runs[1][1].rollout.completion_ids)


def test_arms_share_prompts_and_the_first_samples(tmp_path):
    first = [fit(tmp_path, credit=credit, max_steps=1)[1].records[0] for credit in (UniformCredit(), MarginCredit())]
    assert first[0].collection.prompts.problem_ids == first[1].collection.prompts.problem_ids
    assert torch.equal(first[0].rollout.completion_ids, first[1].rollout.completion_ids)


def test_sequences_longer_than_the_model_are_refused(tmp_path):
    module = make_module(rollout={"max_completion_length": 600})
    with pytest.raises(ValueError, match=r"must fit into the 512 positions of tiny_untrained, got \d+ \+ 600"):
        fit(tmp_path, module=module)


@pytest.mark.parametrize("longer", ["rollout", "evaluation"])
def test_sequences_longer_than_the_engine_takes_are_refused_before_the_first_token(tmp_path, monkeypatch, longer):
    monkeypatch.setattr(HFEngine, "max_length", 40)
    monkeypatch.setattr(HFEngine, "generate", lambda *args: pytest.fail("sampled"))
    module = make_module(**{longer: {"max_completion_length": 39}})
    with pytest.raises(ValueError, match=r"must fit into the 40 tokens that HFEngine is set up for, got \d+ \+ 39"):
        fit(tmp_path, module=module)


def test_a_rollout_without_any_score_warns_with_the_reason(tmp_path):
    data = make_data(reward=lambda completions, **columns: [None] * len(completions))
    with pytest.warns(
        UserWarning, match=r"no completion of this rollout could be scored \(abstained: .* gave no score\)"
    ):
        _, recorder, _ = fit(tmp_path, data=data, max_steps=1)
    assert recorder.metrics[0]["loss/total"] == 0


def test_a_calibrator_with_needs_costs_one_scoring_pass_and_no_second_contrast(tmp_path):
    class Needy(CenteredCalibrator):
        requires = frozenset({"entropy"})

        def calibrate(self, rollout):
            assert rollout.statistics["entropy"][rollout.completion_mask].min() > 0
            return super().calibrate(rollout)

    module = make_module(loss={"max_tokens_per_micro_batch": 10_000})
    module, needy, _ = fit(tmp_path, module=module, calibrator=Needy(), credit=EvidenceContrastCredit(), max_steps=1)
    _, plain, _ = fit(tmp_path, calibrator=CenteredCalibrator(), credit=EvidenceContrastCredit(), max_steps=1)
    assert module.policy.num_forwards == 2 + 1  # score with the contrast, then train
    same_weights(needy.weights[0], plain.weights[0], atol=2e-5, rtol=0)


def test_a_statistic_may_have_any_name(tmp_path, monkeypatch):
    monkeypatch.setitem(TOKEN_STATISTICS._plugins, "credit", lambda logprobs: logprobs.exp().amax(-1))

    class Needy(UniformCredit):
        requires = frozenset({"credit"})

    _, recorder, _ = fit(tmp_path, credit=Needy(), max_steps=1)
    values = recorder.records[0].rollout.statistics["credit"]
    assert 0 <= values.min() <= values.max() <= 1


def test_sanity_check_leaves_no_trace_in_the_logs(tmp_path):
    trainer = Trainer(
        logger=RunLogger(save_dir=str(tmp_path), name="run"), callbacks=[ZScoreCalibrator(), UniformCredit()],
        max_steps=1, accelerator="cpu", enable_progress_bar=False, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(make_module(), datamodule=make_data())
    assert "eval/accuracy" not in scalars(trainer.log_dir)
    trainer.validate(trainer.model, datamodule=trainer.datamodule)
    assert set(scalars(trainer.log_dir)["eval/accuracy"]) == {1}


@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
def test_a_short_batch_makes_no_empty_optimizer_steps(tmp_path, loss_type):
    """12 problems in batches of 5: the third rollout has 2 prompts, hence 2 steps where the others have 4."""
    data = make_data(prompts_per_step=5)
    module = make_module(loss={"loss_type": loss_type, "num_minibatches": 4})
    module, recorder, _ = fit(tmp_path, module=module, data=data, max_steps=8)
    assert module.progress.rollouts == 2
    module, recorder, _ = fit(tmp_path, module=make_module(loss={"num_minibatches": 4}), data=data, max_steps=12)
    assert module.trainer.global_step >= 12
    assert [len(record.collection.prompts) for record in recorder.records][:3] == [5, 5, 2]


def test_validation_may_come_before_training(tmp_path):
    trainer = Trainer(
        logger=False, callbacks=[ZScoreCalibrator(), UniformCredit()], max_epochs=1, limit_train_batches=1,
        accelerator="cpu", enable_progress_bar=False, enable_checkpointing=False,
    )  # fmt: skip
    module, data = make_module(), make_data()
    [before] = trainer.validate(module, datamodule=data, verbose=False)
    trainer.fit(module, datamodule=data)
    assert before.keys() <= {name: float(value) for name, value in trainer.callback_metrics.items()}.keys()


@pytest.mark.parametrize(("num_iterations", "max_steps"), [(1, 8), (2, 16)])
def test_training_ends_at_max_steps_whatever_the_batches(tmp_path, num_iterations, max_steps):
    """12 problems in batches of 5 with 4 minibatches: 4, 4 and 2 steps a pass."""
    loss = {"num_minibatches": 4, "num_iterations": num_iterations, "entropy_coef": 0.01}
    data = make_data(prompts_per_step=5, num_problems=7)
    module, recorder, _ = fit(tmp_path, module=make_module(loss=loss), data=data, max_steps=max_steps)
    assert module.trainer.global_step == max_steps
    assert recorder.metrics[-1]["loss/entropy"] == pytest.approx(recorder.metrics[-1]["policy/entropy"], rel=0.2)


def test_a_false_claim_to_conserve_is_reported(tmp_path):
    class Threefold(UniformCredit):
        def assign(self, rollout, advantages):
            return 3 * super().assign(rollout, advantages)

    with pytest.warns(UserWarning, match="Threefold claims to conserve, but the mean credit of a completion is off"):
        fit(tmp_path, credit=Threefold(), max_steps=1)


class Passes(Callback):
    """Counts passes through the layers while gradients are on, and the modes that steps begin in."""

    def __init__(self):
        self.count, self.modes = 0, set()

    def on_train_start(self, trainer, pl_module):
        for layer in pl_module.policy.modules():
            if type(layer).__name__ == "Qwen3MLP":
                layer.register_forward_pre_hook(lambda *_: self.add(torch.is_grad_enabled()))

    def add(self, counts):
        self.count += counts

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.modes |= {layer.training for layer in pl_module.policy.modules()}


def test_checkpointing_survives_rollouts_and_trains_every_adapter(tmp_path):  # GK-02, GK-04
    runs, passes = [], []
    for checkpointing in (False, True):
        policy = {"lora": LoraSettings(rank=4), "gradient_checkpointing": checkpointing}
        passes.append(Passes())
        torch.manual_seed(0)  # of the adapter
        runs.append(fit(tmp_path, module=make_module(policy=policy), max_steps=3, callbacks=[passes[-1]])[1])
    assert passes[1].count == 2 * passes[0].count > 0, "every layer runs again in the backward of every step"
    outer = {name: weight for name, weight in runs[1].weights[-1].items() if "lora_B" in name}
    assert len(outer) > 7
    assert all(weight.norm() > 0 for weight in outer.values())
    same_weights(runs[0].weights[-1], runs[1].weights[-1], atol=1e-5, rtol=0)


def test_steps_before_and_after_a_validation_begin_in_evaluation_mode(tmp_path):  # R1-04
    passes = Passes()
    trainer = Trainer(
        logger=False, callbacks=[ZScoreCalibrator(), UniformCredit(), passes], max_steps=2, val_check_interval=1,
        accelerator="cpu", enable_progress_bar=False, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(make_module(), datamodule=make_data())
    assert "eval/accuracy" in trainer.callback_metrics
    assert passes.modes == {False}, "dropout is off for life"
