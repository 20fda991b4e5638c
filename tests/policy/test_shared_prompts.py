import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM

from lightning_rlvr.policy.shared_prompts import can_share


def gradients(policy, batch, **settings):
    policy.zero_grad()
    scores = policy.score(**batch, temperature=1.0, **settings)
    scores.logprobs.square().sum().backward()
    return {name: weight.grad.clone() for name, weight in policy.named_trainable()}


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma2"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_are_those_of_prompts_computed_for_every_row(kind, checkpointing, make_policy, groups):
    policy = make_policy(kind, gradient_checkpointing=checkpointing)
    assert policy.shares_prompts
    shared = gradients(policy, groups)
    policy.shares_prompts = False
    for name, expected in gradients(policy, groups).items():
        assert (shared[name] - expected).norm() < 1e-4 * expected.norm(), name


def test_a_prompt_is_computed_once_whatever_the_order_of_its_rows(make_policy, groups):
    policy = make_policy()
    policy.score(**groups, temperature=1.0)
    assert policy.num_tokens == 2 + 4 + (4 + 2 + 1 + 3 + 4)
    policy.shares_prompts = False
    policy.score(**groups, temperature=1.0)
    assert policy.num_tokens == 20 + (2 + 4 + 2 + 4 + 4) + 14


def test_rows_of_different_prompts_need_one_pass(make_policy, batch):
    policy, passes = make_policy(), []
    policy.model.get_base_model().base_model.register_forward_pre_hook(lambda *_: passes.append(1))
    policy.score(**batch, temperature=1.0)
    assert passes == [1]


def test_completions_of_one_token_need_the_prompts_only(make_policy, groups):
    policy = make_policy()
    first = {name: value[:, :1] if "completion" in name else value for name, value in groups.items()}
    whole = policy.score(**groups, temperature=1.0).logprobs
    torch.testing.assert_close(policy.score(**first, temperature=1.0).logprobs, whole[:, :1])


def test_models_whose_layers_are_not_attention_do_not_share():
    config = MambaConfig(vocab_size=16, hidden_size=8, state_size=4, num_hidden_layers=1)
    assert not can_share(MambaForCausalLM(config))
