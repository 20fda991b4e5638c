import math
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from transformers import (
    GenerationConfig,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lightning_rlvr.rollout.base import Sampling
from lightning_rlvr.rollout.hf import HFEngine, _BlockLayer, _draw, _grouped_attention
from lightning_rlvr.types import PromptBatch

EOS = (1, 5)
PAD = 0
V = 32
SHAPE = {
    "vocab_size": V,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": PAD,
}
VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "patch_size": 4,
    "window_size": 16,
    "out_hidden_size": 32,
    "fullatt_block_indexes": [0],
    "initializer_range": 0.3,
}
MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
KINDS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=8)),
    "sliding": lambda: MistralForCausalLM(MistralConfig(**SHAPE, head_dim=8, sliding_window=6)),
    "recurrent": lambda: Lfm2ForCausalLM(Lfm2Config(**SHAPE, layer_types=["conv", "full_attention"])),
    "stateful": lambda: MambaForCausalLM(MambaConfig(vocab_size=V, hidden_size=32, num_hidden_layers=1)),
    "vision": lambda: Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(
            text_config=SHAPE | {"rope_parameters": MROPE},
            vision_config=VISION,
            image_token_id=28,
            video_token_id=29,
            vision_start_token_id=30,
            vision_end_token_id=31,
        )
    ),
}


def make_policy(kind="llama"):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = KINDS[kind]().eval()

    @contextmanager
    def merged():
        policy.merges += 1
        yield

    policy = SimpleNamespace(model=model, eos_token_ids=EOS, pad_token_id=PAD, merged=merged, merges=0)
    return policy


def make_prompts(lengths=(3, 9, 6), **model_inputs):
    n, p = len(lengths), max(lengths)
    mask = torch.arange(p).flip(0) < torch.tensor(lengths)[:, None]
    ids = torch.randint(6, 28, (n, p), generator=torch.Generator().manual_seed(1)) * mask
    return PromptBatch(
        prompt_ids=ids,
        prompt_mask=mask,
        evidence_mask=mask,
        task_id=torch.zeros(n, dtype=torch.int64),
        task_names=("task",),
        problem_ids=("problem",) * n,
        prompts=("prompt",) * n,
        columns=({},) * n,
        model_inputs=model_inputs,
    )


def generate(policy, prompts, prompt_index, seeds=None, *, temperature=1.0, budget=20, **engine):
    prompt_index = torch.as_tensor(prompt_index, dtype=torch.int64)
    seeds = torch.arange(len(prompt_index)) if seeds is None else torch.as_tensor(seeds)
    sampling = Sampling(temperature=temperature, max_completion_length=budget)
    return HFEngine(**engine).generate(policy, prompts, prompt_index, seeds, sampling)


def completion(result, row):
    return result.completion_ids[row][result.completion_mask[row]].tolist()


@contextmanager
def recorded_forwards(model):
    """Shapes of the token ids of every forward."""
    shapes = []
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    yield shapes
    hook.remove()


@pytest.mark.parametrize("kind", ["llama", "qwen3", "sliding", "recurrent"])
def test_greedy_completions_are_those_of_transformers(kind):
    policy, prompts = make_policy(kind), make_prompts((3, 9, 6, 9, 4, 2))
    result = generate(policy, prompts, range(6), temperature=0.0)
    expected = policy.model.generate(
        input_ids=prompts.prompt_ids,
        attention_mask=prompts.prompt_mask.long(),
        do_sample=False,
        max_new_tokens=20,
        eos_token_id=list(EOS),
        pad_token_id=PAD,
    )[:, prompts.prompt_ids.shape[1] :]
    assert result.completion_ids.tolist() == expected.tolist()
    assert len(set(result.completion_mask.sum(1).tolist())) > 1


@pytest.mark.parametrize("kind", ["llama", "sliding", "recurrent"])
def test_a_row_depends_on_its_prompt_and_seed_alone(kind):
    policy, prompts = make_policy(kind), make_prompts()
    index, seeds = [2, 0, 1, 0, 2, 1, 0, 1], [5, 6, 7, 8, 9, 10, 11, 7]
    together = generate(policy, prompts, index, seeds)
    assert len(set(together.completion_mask.sum(1).tolist())) > 2  # so rows did leave
    for row, (i, seed) in enumerate(zip(index, seeds, strict=True)):
        alone = generate(policy, prompts, [i], [seed])
        assert completion(together, row) == completion(alone, 0)
        torch.testing.assert_close(
            together.logprobs[row][together.completion_mask[row]], alone.logprobs[0], atol=1e-5, rtol=1e-5
        )
    assert completion(together, 2) == completion(together, 7)  # same prompt, same seed
    assert len({tuple(completion(together, row)) for row in (1, 3, 6)}) == 3  # same prompt, other seeds


@pytest.mark.parametrize("max_rows", [1, 3, 8])
def test_splits_into_batches_change_nothing(max_rows):
    policy, prompts = make_policy(), make_prompts()
    index = [2, 0, 1, 0, 2, 1, 0]
    whole = generate(policy, prompts, index)
    with recorded_forwards(policy.model) as shapes:
        split = generate(policy, prompts, index, max_rows=max_rows)
    assert max(rows for rows, _ in shapes) <= max_rows
    assert torch.equal(whole.completion_ids, split.completion_ids)
    assert torch.equal(whole.completion_mask, split.completion_mask)
    torch.testing.assert_close(whole.logprobs, split.logprobs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["qwen3", "sliding", "recurrent"])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.5])
def test_logprobs_are_those_of_an_unpadded_forward_at_the_sampling_temperature(kind, temperature):
    policy, prompts = make_policy(kind), make_prompts()
    result = generate(policy, prompts, [0, 1, 2, 0, 1, 2], temperature=temperature)
    for row, i in enumerate(result.prompt_index.tolist()):
        prompt = prompts.prompt_ids[i][prompts.prompt_mask[i]]
        tokens = torch.tensor(completion(result, row))
        with torch.no_grad():
            logits = policy.model(torch.cat([prompt, tokens])[None], use_cache=False).logits[0, len(prompt) - 1 : -1]
        expected = (logits / (temperature or 1.0)).log_softmax(-1).gather(1, tokens[:, None])[:, 0]
        torch.testing.assert_close(result.logprobs[row, : len(tokens)], expected, atol=1e-5, rtol=1e-5)


def test_first_tokens_follow_the_softmax():
    policy, prompts = make_policy(), make_prompts((4,))
    n, temperature = 4000, 2.0
    tokens = generate(policy, prompts, [0] * n, temperature=temperature, budget=1).completion_ids[:, 0]
    with torch.no_grad():
        logits = policy.model(prompts.prompt_ids).logits[0, -1]
    expected = n * (logits / temperature).softmax(-1)
    chi_square = ((tokens.bincount(minlength=V) - expected) ** 2 / expected).sum()
    assert expected.min() > 5
    assert chi_square < 61.1  # the 99.9% quantile for 31 degrees of freedom


def test_the_generation_config_of_a_checkpoint_has_no_effect():
    policy, prompts = make_policy(), make_prompts()
    for temperature in (0.0, 1.0):
        policy.model.generation_config = GenerationConfig()
        plain = generate(policy, prompts, [0, 1, 2], temperature=temperature)
        policy.model.generation_config = GenerationConfig(
            do_sample=True, temperature=0.6, top_p=0.8, top_k=20, repetition_penalty=1.1, max_new_tokens=2
        )
        set_up = generate(policy, prompts, [0, 1, 2], temperature=temperature)
        assert torch.equal(plain.completion_ids, set_up.completion_ids)
        assert torch.equal(plain.logprobs, set_up.logprobs)
    assert policy.model.generation_config.temperature == 0.6


def test_entropy_of_the_samples_rises_with_the_temperature():
    policy, prompts = make_policy(), make_prompts((4,))
    distinct = [
        len(generate(policy, prompts, [0] * 300, temperature=temperature, budget=1).completion_ids.unique())
        for temperature in (0.0, 0.3, 1.0, 5.0)
    ]
    assert distinct == sorted(set(distinct))


def test_prompts_are_prefilled_once_and_rows_leave_when_they_end():
    policy, prompts = make_policy(), make_prompts()
    with recorded_forwards(policy.model) as shapes:
        result = generate(policy, prompts, [1, 0] * 8)
    assert shapes[0] == (2, 9)  # two prompts of three, for sixteen rows
    assert all(tokens == 1 for _, tokens in shapes[1:])
    assert len(shapes) == result.completion_ids.shape[1]
    decoded = sum(rows for rows, _ in shapes[1:])
    assert decoded < 1.2 * (result.completion_mask.sum() - 16)  # the first token of a row comes from the prefill
    assert decoded < 0.9 * 16 * len(shapes[1:])


@pytest.mark.parametrize("max_rows", [None, 5])
def test_rows_are_told_of_once_as_they_are_returned_and_before_the_last_forward(max_rows):
    policy, prompts, told = make_policy(), make_prompts(), {}

    def finished(rows, ids):
        assert not told.keys() & set(rows)
        told.update((row, (of_row, len(shapes))) for row, of_row in zip(rows, ids, strict=True))

    index, seeds = torch.tensor([1, 0, 2] * 6), torch.arange(18)
    sampling = Sampling(max_completion_length=20)
    with recorded_forwards(policy.model) as shapes:
        result = HFEngine(max_rows).generate(policy, prompts, index, seeds, sampling, finished)
    expected = HFEngine(max_rows).generate(policy, prompts, index, seeds, sampling)
    assert torch.equal(result.completion_ids, expected.completion_ids)
    assert len(told) > 9
    for row, (ids, forwards) in told.items():
        assert ids == completion(result, row)
        assert not result.truncated[row]
        assert forwards < len(shapes)


@pytest.mark.parametrize("pad", [PAD, EOS[0]])
def test_after_the_first_end_token_there_is_nothing(pad):
    policy, prompts = make_policy(), make_prompts()
    policy.pad_token_id = pad
    result = generate(policy, prompts, [0, 1, 2] * 6)
    ids, mask = result.completion_ids, result.completion_mask
    lengths = mask.sum(1)
    assert torch.equal(mask, torch.arange(ids.shape[1]) < lengths[:, None])
    assert ids.shape[1] == lengths.max()
    assert (ids[~mask] == pad).all()
    assert (result.logprobs[~mask] == 0).all()
    assert (result.logprobs[mask] < 0).all()
    last = ids.gather(1, lengths[:, None] - 1)[:, 0]
    ends = torch.isin(ids, torch.tensor(EOS)) & mask
    assert (ends.sum(1) == (~result.truncated)).all()
    assert set(last[~result.truncated].tolist()) == set(EOS)  # both end tokens do end rows
    assert (lengths[result.truncated] == 20).all()
    assert result.truncated.any()


def test_an_end_token_as_last_token_of_the_budget_is_not_a_truncation():
    policy, prompts = make_policy(), make_prompts()
    free = generate(policy, prompts, [0, 1, 2] * 4)
    length = int(free.completion_mask.sum(1)[~free.truncated].min())
    tight = generate(policy, prompts, [0, 1, 2] * 4, budget=length)
    assert torch.equal(tight.truncated, free.completion_mask.sum(1) > length)
    assert not tight.truncated.all()


def test_a_policy_is_left_as_it_was_found():
    policy, prompts = make_policy(), make_prompts()
    model = policy.model
    model.gradient_checkpointing_enable()
    model.train()
    model.lm_head.eval()
    modes = {name: module.training for name, module in model.named_modules()}
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    in_training_mode = []
    model.register_forward_pre_hook(lambda module, args: in_training_mode.append(module.training))
    result = generate(policy, prompts, [0, 1])
    assert not any(in_training_mode)
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert model.is_gradient_checkpointing
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    assert not result.logprobs.is_inference()


def test_a_policy_is_left_as_it_was_found_after_an_error():
    policy, prompts = make_policy(), make_prompts()
    policy.model.train()

    def fail(module, args):
        raise RuntimeError("broken")

    policy.model.model.norm.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="broken"):
        generate(policy, prompts, [0])
    assert policy.model.training
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward


@pytest.mark.parametrize("merge_lora", [True, False])
def test_adapters_are_merged_for_decoding_if_wanted(merge_lora):
    policy = make_policy()
    generate(policy, make_prompts(), [0], merge_lora=merge_lora)
    assert policy.merges == merge_lora


def test_images_stay_with_their_prompts():
    policy = make_policy("vision")
    ids = torch.tensor([[0, 0, 30, 28, 28, 28, 28, 31, 7], [9, 8, 30, 28, 28, 28, 28, 31, 6]])
    grid = torch.tensor([[1, 4, 4]])
    pixels = (
        torch.randn(2, 16, 96, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 3.0])[:, None, None]
    )
    prompts = make_prompts((7, 9), pixel_values=tuple(pixels), image_grid_thw=(grid, grid))
    prompts = PromptBatch(**(vars(prompts) | {"prompt_ids": ids}))
    result = generate(policy, prompts, [1, 0, 1, 0], temperature=0.0)
    for row, i in enumerate([1, 0, 1, 0]):
        prompt = ids[i][prompts.prompt_mask[i]][None]
        expected = policy.model.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            mm_token_type_ids=(prompt == 28).long(),
            pixel_values=pixels[i],
            image_grid_thw=grid,
            do_sample=False,
            max_new_tokens=20,
            eos_token_id=list(EOS),
            pad_token_id=PAD,
        )
        assert completion(result, row) == expected[0, prompt.shape[1] :].tolist()
    assert completion(result, 0) != completion(result, 1)


def test_no_rows_give_no_completions():
    result = generate(make_policy(), make_prompts(), [])
    assert result.completion_ids.shape == result.logprobs.shape == (0, 0)


def test_models_that_keep_their_past_elsewhere_are_refused():
    with pytest.raises(ValueError, match="keeps its past in the cache it is given, got MambaForCausalLM"):
        generate(make_policy("stateful"), make_prompts(), [0])


@pytest.mark.parametrize("temperature", [-1.0, math.nan])
def test_temperatures_below_zero_are_refused(temperature):
    with pytest.raises(ValueError, match="`temperature` must be 0 "):
        generate(make_policy(), make_prompts(), [0], temperature=temperature)


def test_budgets_without_a_token_are_refused():
    with pytest.raises(ValueError, match="`max_completion_length` must be positive, got 0"):
        generate(make_policy(), make_prompts(), [0], budget=0)
    with pytest.raises(ValueError, match="`max_rows` must be positive or None, got 0"):
        HFEngine(max_rows=0)


def test_draws_are_the_inverse_distribution_function():
    probs = torch.tensor([0.0, 0.5, 0.0, 0.25, 0.25, 0.0])
    uniforms = torch.tensor([0.0, 0.25, 0.5 - 1e-6, 0.5, 0.75 - 1e-6, 0.75, 1 - 2**-53], dtype=torch.float64)
    tokens, logprobs = _draw(probs.log().expand(7, -1), uniforms, temperature=1.0)
    assert tokens.tolist() == [1, 1, 1, 3, 3, 4, 4]
    torch.testing.assert_close(logprobs, probs[tokens].log())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_draws_near_temperature_zero_are_greedy_and_finite(dtype):
    logits = torch.tensor([[29.0, 30.0, -5.0]], dtype=dtype)
    for uniforms in (0.0, 1 - 2**-53):
        token, logprob = _draw(logits, torch.tensor([uniforms], dtype=torch.float64), temperature=1e-6)
        assert (token.item(), logprob.item()) == (1, 0.0)


def test_a_cache_that_grows_by_blocks_holds_what_a_concatenation_holds(monkeypatch):
    monkeypatch.setattr(_BlockLayer, "block", 4)
    blocks, reference = _BlockLayer(), DynamicLayer()
    for step, tokens in enumerate([3, 1, 1, 1, 6, 1, 1]):
        keys, values = torch.randn(2, len(blocks.keys) if step else 4, 2, tokens, 8)
        for ours, expected in zip(blocks.update(keys, values), reference.update(keys, values), strict=True):
            assert torch.equal(ours, expected)
        assert blocks.get_seq_length() == reference.get_seq_length()
        if step == 3:
            blocks.reorder_cache(torch.tensor([0, 2, 2]))
            reference.reorder_cache(torch.tensor([0, 2, 2]))


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("masked", [True, False])
def test_grouped_attention_is_attention_over_repeated_keys(kv_heads, masked):
    query, key, value = torch.randn(3, 6, 1, 8), torch.randn(3, kv_heads, 5, 8), torch.randn(3, kv_heads, 5, 8)
    mask = torch.arange(5) >= torch.tensor([0, 2, 3])[:, None, None, None] if masked else None
    module = SimpleNamespace(num_key_value_groups=6 // kv_heads)
    output, _ = _grouped_attention(module, query, key, value, mask, scaling=0.3)
    repeated = (x.repeat_interleave(6 // kv_heads, dim=1) for x in (key, value))
    expected = F.scaled_dot_product_attention(query, *repeated, attn_mask=mask, scale=0.3)
    torch.testing.assert_close(output, expected.transpose(1, 2))
