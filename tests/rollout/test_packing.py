import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from lightning_rlvr.policy.policy import Policy
from lightning_rlvr.policy.tiny import build_tiny
from lightning_rlvr.rollout.base import Sampling
from lightning_rlvr.rollout.hf import HFEngine
from lightning_rlvr.rollout.packing import packed
from lightning_rlvr.types import PromptBatch

pytestmark = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()),
    reason="nothing is packed on this processor",
)


def is_packed(layer):
    return "forward" in vars(layer)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1,), (3, 1), (32, 1), (2, 300)])
def test_a_packed_layer_multiplies_as_the_plain_one_does(shape, bias):
    torch.manual_seed(0)
    layer, x = nn.Linear(96, 160, bias=bias).bfloat16(), torch.randn(*shape, 96).bfloat16()
    with torch.no_grad():
        exact = nn.functional.linear(x.double(), layer.weight.double(), None if not bias else layer.bias.double())
        with packed(layer):
            assert is_packed(layer)
            result = layer(x)
        assert result.dtype == torch.bfloat16
        torch.testing.assert_close(result.double(), exact, rtol=2**-7, atol=1e-3)
        torch.testing.assert_close(layer(x), result)


def test_layers_are_plain_again_after_an_error_too():
    layer = nn.Linear(8, 8).bfloat16()
    before = layer.weight.clone()
    with pytest.raises(KeyError), packed(layer):
        raise KeyError
    assert not is_packed(layer)
    assert torch.equal(layer.weight, before)


def test_without_memory_for_the_copies_all_layers_stay_plain():
    layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).bfloat16()
    layers[1].weight = nn.Parameter(torch.zeros(1).bfloat16().expand(2**20, 2**21), requires_grad=False)
    with packed(layers):
        assert not any(map(is_packed, layers))
    with packed(layers[0]):
        assert is_packed(layers[0])


def test_a_forward_that_was_replaced_before_stays():
    layer = nn.Linear(8, 8).bfloat16()
    layer.forward = mine = layer.forward
    with packed(layer):
        assert layer.forward is mine
    assert layer.forward is mine


def test_float32_weights_and_adapters_are_left_alone():
    model = get_peft_model(build_tiny()[0].bfloat16(), LoraConfig(r=2, target_modules=["q_proj"]))
    layers = {name: layer for name, layer in model.named_modules() if type(layer) is nn.Linear}
    with packed(model):
        assert {name for name, layer in layers.items() if is_packed(layer)} == {n for n in layers if ".lora_" not in n}
    with packed(model.float()):
        assert not any(map(is_packed, layers.values()))


@pytest.mark.parametrize("merge_lora", [True, False])
def test_the_engine_decodes_bfloat16_from_packed_weights_and_sees_every_change_of_them(merge_lora):
    torch.manual_seed(0)
    model, tokenizer = build_tiny()
    policy = Policy(get_peft_model(model.bfloat16(), LoraConfig(r=2, target_modules=["q_proj"])), tokenizer)
    ids = torch.tensor([[5, 6, 7]])
    mask = torch.ones_like(ids, dtype=torch.bool)
    prompts = PromptBatch(
        prompt_ids=ids,
        prompt_mask=mask,
        evidence_mask=mask,
        task_id=torch.zeros(1, dtype=torch.int64),
        task_names=("t",),
        problem_ids=("p",),
        prompts=("p",),
        columns=({},),
    )
    head, seen = model.get_output_embeddings(), []
    head.register_forward_pre_hook(lambda layer, inputs: seen.append(is_packed(layer)))

    def greedy():
        index = torch.zeros(1, dtype=torch.int64)
        return HFEngine(merge_lora=merge_lora).generate(
            policy, prompts, index, index, Sampling(temperature=0.0, max_completion_length=4)
        )

    def agrees(completions):
        scores = policy.score(
            prompt_ids=ids,
            prompt_mask=mask,
            completion_ids=completions.completion_ids,
            completion_mask=completions.completion_mask,
            temperature=1.0,
        )
        torch.testing.assert_close(completions.logprobs, scores.logprobs.detach(), rtol=0, atol=0.1)

    first = greedy()
    assert seen
    assert all(seen)
    assert not is_packed(head)
    agrees(first)
    with torch.no_grad():
        head.weight.copy_(head.weight.flip(0))
    second = greedy()
    assert not torch.equal(first.logprobs, second.logprobs)
    agrees(second)
