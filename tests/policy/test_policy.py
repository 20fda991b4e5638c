import copy

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from lightning_rlvr.policy.loading import load_policy, load_tokenizer
from lightning_rlvr.policy.policy import Policy, probe_head
from lightning_rlvr.policy.settings import LoraSettings, PolicySettings
from lightning_rlvr.policy.tiny import build_tokenizer

ALL_KINDS = ["llama", "qwen3", "gpt2", "granite", "cohere2", "gemma2"]


def naive_logits(policy, prompt, completion):
    """Logits of the completion tokens from the whole model: one row, no padding, all positions."""
    ids = torch.tensor([[*prompt, *completion]])
    logits = policy.model(input_ids=ids, use_cache=False).logits[0]
    return logits[len(prompt) - 1 : -1].float()


def rows(batch):
    for i in range(len(batch["prompt_ids"])):
        yield (
            batch["prompt_ids"][i][batch["prompt_mask"][i]].tolist(),
            batch["completion_ids"][i][batch["completion_mask"][i]].tolist(),
        )


def assert_zero_outside_mask(values, batch):
    assert values.dtype == torch.float32
    assert not values[~batch["completion_mask"]].any()


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("rows_of", ["batch", "groups"])
def test_score_equals_naive_computation_of_each_row_alone(kind, rows_of, make_policy, request):  # LP-05, LP-07, LP-09
    policy, batch = make_policy(kind), request.getfixturevalue(rows_of)
    scores = policy.score(**batch, temperature=0.7, statistics=["margin"], entropy=True)
    for i, (prompt, completion) in enumerate(rows(batch)):
        logprobs = (naive_logits(policy, prompt, completion) / 0.7).log_softmax(-1)
        n = len(completion)
        expected = logprobs[range(n), completion]
        torch.testing.assert_close(scores.logprobs[i, :n], expected, atol=1e-5, rtol=1e-5)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        torch.testing.assert_close(scores.entropy[i, :n], entropy, atol=1e-5, rtol=1e-5)
        top = logprobs.exp().topk(2).values
        torch.testing.assert_close(scores.statistics["margin"][i, :n], top[:, 0] - top[:, 1], atol=1e-5, rtol=1e-5)
    for values in (scores.logprobs, scores.entropy, scores.statistics["margin"]):
        assert_zero_outside_mask(values, batch)


def test_gradients_equal_those_of_the_naive_computation(make_policy, batch):
    policy = make_policy(lora=False)
    (-policy.score(**batch, temperature=1.0).logprobs.sum()).backward()
    ours = {name: weight.grad.clone() for name, weight in policy.named_trainable()}
    policy.zero_grad()
    for prompt, completion in rows(batch):
        logprobs = naive_logits(policy, prompt, completion).log_softmax(-1)
        (-logprobs[range(len(completion)), completion].sum()).backward()
    for name, weight in policy.named_trainable():
        torch.testing.assert_close(ours[name], weight.grad, atol=1e-4, rtol=1e-4)


def test_a_gap_in_the_mask_hides_no_token_from_later_ones(make_policy, batch):
    policy = make_policy()
    full = policy.score(**batch, temperature=1.0).logprobs
    mask = batch["completion_mask"].clone()
    mask[0, 1] = False
    gap = policy.score(**batch | {"completion_mask": mask}, temperature=1.0).logprobs
    torch.testing.assert_close(gap, full * mask)


def test_no_valid_token_scores_zero_and_has_zero_gradient(make_policy, batch):
    policy = make_policy()
    empty = torch.zeros_like(batch["completion_mask"])
    logprobs = policy.score(**batch | {"completion_mask": empty}, temperature=1.0).logprobs
    logprobs.sum().backward()
    assert not logprobs.any()
    assert all(weight.grad is not None and not weight.grad.any() for _, weight in policy.named_trainable())


def test_score_needs_a_prompt(make_policy, batch):
    nothing = {name: batch[name][:, :0] for name in ("prompt_ids", "prompt_mask")}
    with pytest.raises(ValueError, match="`prompt_ids` must have at least one token"):
        make_policy().score(**batch | nothing, temperature=1.0)


def test_forwards_are_counted(make_policy, batch):
    policy = make_policy()
    for _ in range(3):
        policy.score(**batch, temperature=1.0)
    assert policy.num_forwards == 3


def test_model_inputs_reach_the_model_row_by_row(make_policy, batch):
    policy = make_policy()
    received = []
    policy.model.get_base_model().base_model.register_forward_pre_hook(
        lambda module, args, kwargs: received.append(kwargs.pop("pixel_values")), with_kwargs=True
    )
    images = tuple(torch.full((n, 2), float(n)) for n in (1, 2, 1))
    policy.score(**batch, temperature=1.0, model_inputs={"pixel_values": images})
    assert received[0].tolist() == [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0], [1.0, 1.0]]


def test_dropout_is_off_in_every_forward_whatever_the_mode(make_policy, batch):  # R1-02, R1-04
    policy = make_policy("gpt2").train()
    for layer in policy.model.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.5
    first, second = (policy.score(**batch, temperature=1.0).logprobs for _ in range(2))
    assert torch.equal(first, second)
    torch.nn.ModuleList([policy]).train()
    assert not any(module.training for module in policy.modules())


@pytest.mark.parametrize("kind", ["gpt2", "qwen3"])
def test_checkpointing_changes_no_gradient_and_reaches_every_layer(kind, make_policy, batch):  # GK-02
    gradients = []
    for checkpointing in (False, True):
        policy = make_policy(kind, gradient_checkpointing=checkpointing)
        calls = count_layer_calls(policy)
        policy.score(**batch, temperature=1.0).logprobs.sum().backward()
        assert calls == [2, 2] if checkpointing else calls == [1, 1]
        gradients.append({name: weight.grad for name, weight in policy.named_trainable()})
    for name, expected in gradients[0].items():
        assert expected.abs().sum() > 0, name
        torch.testing.assert_close(gradients[1][name], expected, atol=1e-5, rtol=1e-5)


def count_layer_calls(policy):
    layers = [m for m in policy.modules() if type(m).__name__ in ("GPT2MLP", "Qwen3MLP")]
    calls = [0] * len(layers)

    def count(i):
        def hook(*_):
            calls[i] += 1

        return hook

    for i, layer in enumerate(layers):
        layer.register_forward_pre_hook(count(i))
    return calls


def test_checkpointing_leaves_forwards_without_gradient_alone(make_policy):  # GK-04: a rollout may use its cache
    policy = make_policy(gradient_checkpointing=True)
    ids = torch.tensor([[11, 12, 13]])
    with torch.no_grad():
        cached = policy.model(input_ids=ids, use_cache=True)
        step = policy.model(input_ids=torch.tensor([[14]]), past_key_values=cached.past_key_values).logits[0, -1]
        whole = policy.model(input_ids=torch.tensor([[11, 12, 13, 14]])).logits[0, -1]
    torch.testing.assert_close(step, whole)


def test_all_end_tokens_count_and_nothing_else_of_the_generation_config(make_policy):  # GC-02
    policy = make_policy()
    assert policy.eos_token_ids == (1, 7, 9)  # tokenizer, config, generation config
    config = policy.model.get_base_model().generation_config
    assert (config.temperature, config.top_p, config.top_k, config.repetition_penalty) == (1.0, 1.0, 0, 1.0)
    assert sorted(config.eos_token_id) == [1, 7, 9]
    assert policy.pad_token_id == 0


def test_a_new_adapter_has_the_base_model_as_reference(make_policy, batch):  # RM-01
    policy = make_policy(trained=False)
    before = policy.score(**batch, temperature=1.0).logprobs
    move(policy)
    assert not torch.allclose(policy.score(**batch, temperature=1.0).logprobs, before)
    with torch.no_grad(), policy.reference():
        torch.testing.assert_close(policy.score(**batch, temperature=1.0).logprobs, before)


@pytest.mark.parametrize("start", ["adapter", "all weights"])
def test_the_reference_is_the_policy_as_training_started(start, make_policy, batch, tmp_path):  # RM-01
    if start == "adapter":
        make_policy().save(tmp_path / "a")
        policy = make_policy(adapter=str(tmp_path / "a"), with_reference=True)
    else:
        policy = make_policy(lora=False, with_reference=True)
    before = policy.score(**batch, temperature=1.0).logprobs
    with torch.no_grad(), policy.reference():
        assert torch.equal(policy.score(**batch, temperature=1.0).logprobs, before)  # KL = 0 at step 0
    move(policy)
    after = policy.score(**batch, temperature=1.0).logprobs
    assert not torch.allclose(after, before)
    with torch.no_grad(), policy.reference():
        assert torch.equal(policy.score(**batch, temperature=1.0).logprobs, before)
    assert torch.equal(policy.score(**batch, temperature=1.0).logprobs, after)


def test_policy_and_reference_see_the_same_inputs(make_policy, batch):  # RM-03
    policy = make_policy(trained=False)
    seen = []
    policy.model.get_base_model().base_model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs), with_kwargs=True
    )
    policy.score(**batch, temperature=1.0)
    with torch.no_grad(), policy.reference():
        policy.score(**batch, temperature=1.0)
    first, second = seen
    assert first.keys() == second.keys()
    assert all(torch.equal(torch.as_tensor(first[k]), torch.as_tensor(second[k])) for k in first)


def test_a_reference_that_was_not_kept_is_an_error(make_policy):
    policy = make_policy(lora=False)
    with pytest.raises(RuntimeError, match="with_reference=True"), policy.reference():
        pass


def move(policy):
    with torch.no_grad():
        for _, weight in policy.named_trainable():
            weight += 0.1


def base_weights(policy):
    return {name: w.clone() for name, w in policy.model.state_dict().items() if "lora_" not in name}


@pytest.mark.parametrize(("kind", "dtype"), [("llama", "bfloat16"), ("gpt2", "float32")])
def test_merging_leaves_the_base_weights_bit_identical(kind, dtype, make_policy, batch):
    policy = make_policy(kind, dtype=dtype)
    before, outside = base_weights(policy), policy.score(**batch, temperature=1.0).logprobs
    for _ in range(3):
        with policy.merged(), policy.merged(), torch.no_grad():
            inside = policy.score(**batch, temperature=1.0).logprobs
        if dtype == "float32":  # bfloat16 rounds the merged weights
            torch.testing.assert_close(inside, outside.detach(), atol=1e-5, rtol=1e-5)
    assert any(not torch.equal(before[name], value) for name, value in merged_weights(policy).items())
    with pytest.raises(KeyError), policy.merged():
        raise KeyError
    after = base_weights(policy)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert torch.equal(policy.score(**batch, temperature=1.0).logprobs, outside)


def merged_weights(policy):
    with policy.merged():
        return base_weights(policy)


def test_merging_does_nothing_without_adapter(make_policy):
    policy = make_policy(lora=False)
    with policy.merged():
        assert all(weight.requires_grad for weight in policy.model.parameters())


def test_quantized_base_weights_refuse_a_merge(make_policy):  # WS-02
    policy = make_policy()
    policy.model.get_base_model().is_quantized = True
    with pytest.raises(ValueError, match="quantised"), policy.plain_weights(merged=False):
        pass
    with pytest.raises(ValueError, match="quantised"), policy.merged():
        pass


def test_trainable_state_survives_a_round_trip_in_order(make_policy, batch):  # RS-07
    policy, other = make_policy(), make_policy(trained=False)
    state = copy.deepcopy(policy.trainable_state_dict())
    other.load_trainable_state_dict(state)
    assert list(other.trainable_state_dict()) == list(state)
    scores = [p.score(**batch, temperature=1.0).logprobs for p in (policy, other)]
    assert torch.equal(*scores)


def test_a_state_of_another_adapter_is_refused(make_policy):
    state = make_policy(lora=False).trainable_state_dict()
    with pytest.raises(ValueError, match="the checkpoint must hold the 28 trainable tensors"):
        make_policy().load_trainable_state_dict(state)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2"])
def test_plain_weights_are_those_of_the_policy_with_or_without_the_adapter(kind, make_policy):
    policy = make_policy(kind)
    base = base_weights(policy)
    with policy.plain_weights(merged=False) as weights:
        apart = {name: weight.clone() for name, weight in weights.items()}
        assert {weight.data_ptr() for weight in weights.values()} <= {w.data_ptr() for w in policy.parameters()}
        plain = type(policy.model.get_base_model())(policy.plain_config())
        assert weights.keys() == plain.state_dict().keys()
    with policy.plain_weights() as weights:
        folded = dict(weights)
    adapted = {name for name, weight in folded.items() if not torch.equal(weight, apart[name])}
    assert len(adapted) == len([name for name, _ in policy.named_trainable()]) / 2
    assert len(apart) == len(base)
    assert policy.adapter_rank == 4
    assert make_policy(lora=False).adapter_rank == 0


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2"])
def test_plain_libraries_load_what_was_saved(kind, make_policy, model_folder, tmp_path):
    policy = make_policy(kind)
    ids = torch.tensor([[11, 12, 13]])
    expected = policy.model(input_ids=ids).logits
    policy.save(tmp_path / "adapter")
    policy.save(tmp_path / "merged", merged=True)
    base = AutoModelForCausalLM.from_pretrained(model_folder(kind), dtype=torch.float32)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(merged.eval()(input_ids=ids).logits, expected, atol=1e-4, rtol=1e-4)
    adapted = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    assert torch.equal(adapted(input_ids=ids).logits, expected)
    assert adapted.peft_config["default"].base_model_name_or_path == model_folder(kind)
    assert merged.generation_config.top_k == 20  # what the checkpoint recommends is published again
    assert (tmp_path / "merged" / "tokenizer.json").exists()


def test_saving_replaces_a_folder_as_a_whole(make_policy, tmp_path):
    policy = make_policy()
    policy.save(tmp_path / "x", merged=True)
    policy.save(tmp_path / "x")
    assert (tmp_path / "x" / "adapter_model.safetensors").exists()
    assert not (tmp_path / "x" / "model.safetensors").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize(
    ("kind", "head"),
    [("llama", (1.0, None)), ("granite", (0.125, None)), ("cohere2", (0.25, None)), ("gemma2", (1.0, 5.0))],
)
def test_probe_finds_scale_and_soft_cap(kind, head, make_policy):
    scale, softcap = probe_head(make_policy(kind).model.get_base_model())
    assert scale == pytest.approx(head[0], rel=1e-5)
    assert softcap == head[1]


def test_probe_refuses_logits_that_it_cannot_explain(make_policy):
    model = make_policy(lora=False).model
    model.register_forward_hook(lambda module, args, output: setattr(output, "logits", output.logits**2))
    with pytest.raises(ValueError, match="the logits of LlamaForCausalLM must be its LM head applied"):
        Policy(model, build_tokenizer())


def test_digest_tells_policies_apart_by_whatever_their_outputs_follow_from():
    def digest(change=lambda policy: None, **lora):
        settings = PolicySettings(name_or_path="tiny_untrained", lora=LoraSettings(**lora) if lora else None)
        policy = load_policy(settings, load_tokenizer(settings))
        with torch.no_grad():
            change(policy)
        return policy.digest

    def trained(policy):
        next(weight for name, weight in policy.named_trainable() if "lora_B" in name).fill_(1e-3)

    def turned(policy):
        weight = policy.trainable_weights[1]
        weight.copy_(weight.flip(0))

    assert digest() == digest()
    assert digest(turned) != digest()
    assert digest(lambda policy: setattr(policy.model.config, "rope_parameters", {"rope_theta": 10.0})) != digest()
    assert digest(rank=2) == digest(rank=2, alpha=64) == digest(rank=4), "a new adapter changes nothing yet"
    assert len({digest(trained, rank=2), digest(trained, rank=2, alpha=64), digest(rank=2)}) == 3
