"""An engine whose log-probs are not the trainer's stops the run before anything is learned."""

import copy

import pytest

from lightning_rlvr.credit.margin import MarginCredit
from lightning_rlvr.policy.loading import load_policy
from lightning_rlvr.rollout.hf import HFEngine
from runs import fit, make_data, make_module, same_weights


class OwnWeights(HFEngine):
    """Samples from a copy of the policy, brought up to date by the first ``syncs`` calls of ``sync``."""

    shares_weights = False

    def __init__(self, syncs=1_000):
        super().__init__()
        self.syncs, self.copy = syncs, None

    def sync(self, policy):
        if self.syncs > 0:
            self.syncs, self.copy = self.syncs - 1, copy.deepcopy(policy)

    def generate(self, policy, *args):
        return super().generate(self.copy, *args)


class RawLogprobs(OwnWeights):
    """Reports log-probs before the temperature: those of tokens drawn at a temperature, under temperature 1."""

    def generate(self, policy, prompts, prompt_index, *args):
        drawn = super().generate(policy, prompts, prompt_index, *args)
        scores = self.copy.score(
            prompt_ids=prompts.prompt_ids[prompt_index],
            prompt_mask=prompts.prompt_mask[prompt_index],
            completion_ids=drawn.completion_ids,
            completion_mask=drawn.completion_mask,
            temperature=1.0,
        )
        return type(drawn)(**(vars(drawn) | {"logprobs": scores.logprobs.detach()}))


def run(folder, engine, data=None, steps=2, rate=0.3, **changes):
    rollout = {"engine": engine} | changes.pop("rollout", {})
    module = make_module(rollout=rollout, optimizer={"learning_rate": rate}, **changes)
    return fit(folder, module=module, data=data, credit=MarginCredit(), max_steps=steps)


@pytest.mark.parametrize("loss", [{}, {"num_iterations": 2}], ids=["training_forward", "scoring_pass"])
def test_an_engine_in_step_passes_and_the_probe_costs_no_forward(tmp_path, loss):
    module, recorder, _ = run(tmp_path, OwnWeights(), loss=loss, steps=4, rate=1e-3)
    plain, _, _ = run(tmp_path, HFEngine(), loss=loss, steps=4, rate=1e-3)
    assert module.policy.num_forwards == plain.policy.num_forwards
    same_weights(module.policy.trainable_state_dict(), plain.policy.trainable_state_dict())
    assert all(0 < metrics["policy/probe_gap"] < 1e-4 for metrics in recorder.metrics)
    assert "policy/probe_gap" not in plain.trainer.callback_metrics


@pytest.mark.parametrize("loss", [{}, {"num_iterations": 2}], ids=["training_forward", "scoring_pass"])
def test_a_stale_engine_is_named_before_anything_is_learned_from_it(tmp_path, loss):
    weights = []
    module = make_module(rollout={"engine": OwnWeights(syncs=1)}, optimizer={"learning_rate": 0.3}, loss=loss)
    module.on_train_batch_end = lambda *_: weights.append(
        {name: value.clone() for name, value in module.policy.trainable_state_dict().items()}
    )
    with pytest.raises(
        ValueError, match=r"log-probs of OwnWeights .*`rollout.probe_tolerance` = 0.1 .*not taken over"
    ):
        fit(tmp_path, module=module, max_steps=4)
    [after_first] = weights
    same_weights(module.policy.trainable_state_dict(), after_first)


def test_logprobs_before_the_temperature_are_found_at_the_first_step(tmp_path):  # LP-03
    module = make_module(rollout={"engine": RawLogprobs(), "temperature": 0.5})
    untrained = load_policy(module.policy_settings).trainable_state_dict()
    with pytest.raises(ValueError, match=r"RawLogprobs must be .* or reports log-probs before the temperature"):
        fit(tmp_path, module=module)
    same_weights(module.policy.trainable_state_dict(), untrained)
    run(tmp_path, RawLogprobs(), steps=1)  # at temperature 1 they are the same


def test_without_any_signal_a_few_rows_are_scored_for_the_probe(tmp_path):
    data = make_data(reward=lambda completions, **columns: [1.0] * len(completions))
    module, recorder, _ = run(tmp_path, OwnWeights(), data=data)
    assert module.policy.num_forwards == 2
    assert 0 < recorder.metrics[-1]["policy/probe_gap"] < 1e-4
    assert "policy/sampler_gap" not in recorder.metrics[-1], "only rows that are trained on count there"
    with pytest.raises(ValueError, match="log-probs of RawLogprobs"):
        run(tmp_path, RawLogprobs(), data=data, rollout={"temperature": 0.5})


def test_the_tolerance_is_the_users(tmp_path):
    _, recorder, _ = run(tmp_path, OwnWeights(syncs=1), rollout={"probe_tolerance": 1e3})
    gap = recorder.metrics[-1]["policy/probe_gap"]
    assert gap > 0.1
    assert gap == pytest.approx(recorder.metrics[-1]["policy/sampler_gap"], rel=1e-5)
    with pytest.raises(ValueError, match=rf"got a mean difference of {gap:.3g}"):
        run(tmp_path, OwnWeights(syncs=1), rollout={"probe_tolerance": gap * 0.99})


def test_a_tolerance_where_nothing_is_probed_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"`rollout.probe_tolerance` must be unset with HFEngine.*got 0.2"):
        fit(tmp_path, module=make_module(rollout={"probe_tolerance": 0.2}))
    with pytest.raises(ValueError, match=r"`rollout.probe_tolerance` must be positive, got 0"):
        make_module(rollout={"probe_tolerance": 0.0})


def test_nothing_is_logged_where_nothing_can_be_compared(tmp_path):
    loss = {"mask_truncated_completions": True}
    module = make_module(rollout={"engine": OwnWeights(), "max_completion_length": 1}, loss=loss)
    with pytest.warns(UserWarning, match="every completion of this rollout was truncated"):
        _, recorder, _ = fit(tmp_path, module=module, max_steps=1)
    assert "policy/probe_gap" not in recorder.metrics[0]
