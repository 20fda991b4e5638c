import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import Linear

from lightning_rlvr.policy.half_lora import HalfLinear, use_base_dtype
from lightning_rlvr.policy.tiny import build_tiny


def adapted(dtype, **config):
    torch.manual_seed(0)
    settings = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"], "init_lora_weights": False}
    return get_peft_model(build_tiny()[0].to(dtype), LoraConfig(**settings | config)).eval()


def layers(model):
    return [module for module in model.modules() if isinstance(module, Linear)]


def named(model):
    return [(name, module) for name, module in model.named_modules() if isinstance(module, Linear)]


def gradients(model):
    ids = torch.arange(3, 63).reshape(2, 30)
    model(input_ids=ids, labels=ids).loss.backward()
    return [weight.grad for weight in model.parameters() if weight.requires_grad]


def test_half_precision_products_are_as_far_from_float32_as_those_of_peft():
    model = adapted(torch.bfloat16)
    ours, exact = copy.deepcopy(model), copy.deepcopy(model).float()
    use_base_dtype(ours)
    true = gradients(exact)

    def error(model):
        found = gradients(model)
        assert {grad.dtype for grad in found} == {torch.float32}
        return sum((a - b).square().sum() for a, b in zip(found, true, strict=True)).sqrt()

    size = sum(grad.square().sum() for grad in true).sqrt()
    assert 0 < error(ours) < min(1.3 * error(model), 0.05 * size)


@pytest.mark.filterwarnings("ignore:`lora_bias=True`")
def test_only_plain_layers_over_half_precision_change(make_policy):
    kept = [adapted(torch.float32), adapted(torch.bfloat16, use_dora=True), adapted(torch.bfloat16, lora_bias=True)]
    for model in kept:
        use_base_dtype(model)
        assert {type(layer) for layer in layers(model)} == {Linear}
    assert {type(layer) for layer in layers(make_policy(dtype="bfloat16").model)} == {HalfLinear}
    assert {type(layer) for layer in layers(make_policy(dtype="float32").model)} == {Linear}


@pytest.mark.parametrize("state", ["disabled", "merged"])
def test_a_layer_without_its_adapter_is_the_base_layer(state):
    model = adapted(torch.bfloat16)
    use_base_dtype(model)
    layer, x = layers(model)[0], torch.randn(3, 128, dtype=torch.bfloat16)
    alone, with_adapter = layer.base_layer(x), layer(x)
    assert not alone.equal(with_adapter)
    if state == "disabled":
        with model.disable_adapter():
            assert layer(x).equal(alone)
    else:
        model.merge_adapter()
        assert layer(x).equal(layer.base_layer(x))
        torch.testing.assert_close(layer(x), with_adapter, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_merged_weights_are_the_trainers_factors_rounded_once(kind, make_policy):
    policy = make_policy(kind, dtype="bfloat16")
    before = {name: layer.get_base_layer().weight for name, layer in named(policy.model)}
    before = {name: (weight, weight.detach().clone()) for name, weight in before.items()}
    with policy.merged():
        for name, layer in named(policy.model):
            down = layer.lora_A["default"].weight.detach().bfloat16().double()
            up = (layer.lora_B["default"].weight.detach() * layer.scaling["default"]).bfloat16().double()
            product = (up @ down).T if kind == "gpt2" else up @ down
            exact = before[name][1].double() + product
            torch.testing.assert_close(before[name][0].double(), exact, atol=2**-9, rtol=2**-8)
            assert not torch.equal(*before[name])
        assert all(layer.merged for layer in layers(policy.model))
    assert all(torch.equal(*pair) for pair in before.values())


def test_a_layer_keeps_half_of_the_memory_that_peft_keeps():
    def kept(layer):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.nbytes) or t, lambda t: t):
            layer(torch.zeros(1000, 128, dtype=torch.bfloat16, requires_grad=True))
        return sum(sizes)

    model = adapted(torch.bfloat16)
    ours = copy.deepcopy(model)
    use_base_dtype(ours)
    assert kept(layers(ours)[0]) < 0.65 * kept(layers(model)[0])
