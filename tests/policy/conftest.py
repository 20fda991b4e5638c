"""Random models of a few thousand weights, saved as users save theirs."""

import pytest
import torch
from transformers import (
    Cohere2Config,
    Cohere2ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from lightning_rlvr.policy.loading import load_policy
from lightning_rlvr.policy.settings import LoraSettings, PolicySettings
from lightning_rlvr.policy.tiny import build_tokenizer

SHAPE = {
    "vocab_size": 103,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,
    "bos_token_id": None,
    "eos_token_id": 7,
    "pad_token_id": 0,
}
GPT2 = {"vocab_size": 103, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "eos_token_id": 7}
DROPOUT = {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5, "initializer_range": 0.5}
KINDS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=False)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, tie_word_embeddings=True)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**GPT2, **DROPOUT)),
    "granite": lambda: GraniteForCausalLM(GraniteConfig(**SHAPE, logits_scaling=8.0)),
    "cohere2": lambda: Cohere2ForCausalLM(Cohere2Config(**SHAPE, logit_scale=0.25)),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SHAPE, final_logit_softcapping=5.0, query_pre_attn_scalar=8, sliding_window=4)
    ),
}


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """Kind of model -> folder; each is made once."""
    folders = {}

    def make(kind="llama"):
        if kind not in folders:
            folders[kind] = tmp_path_factory.mktemp(kind)
            with torch.random.fork_rng():
                torch.manual_seed(0)
                model = KINDS[kind]()
            model.generation_config = GenerationConfig(
                do_sample=True, temperature=0.6, top_p=0.8, top_k=20, repetition_penalty=1.1, eos_token_id=[7, 9]
            )
            model.save_pretrained(folders[kind])
            build_tokenizer().save_pretrained(folders[kind])
        return str(folders[kind])

    return make


@pytest.fixture
def make_policy(model_folder):
    """A policy of the given kind, in float32; ``trained`` moves its adapter away from doing nothing."""

    def make(
        kind="llama", *, lora=True, trained=True, with_reference=False, adapter=None, targets="all-linear", **settings
    ):
        torch.manual_seed(1)
        lora_settings = LoraSettings(**({"adapter": adapter} if adapter else {"rank": 4, "target_modules": targets}))
        settings = {
            "name_or_path": model_folder(kind),
            "lora": lora_settings if lora else None,
            "dtype": "float32",
        } | settings
        policy = load_policy(PolicySettings(**settings), with_reference=with_reference)
        if lora and trained and not adapter:
            with torch.no_grad():
                for name, weight in policy.named_trainable():
                    if "lora_B" in name:
                        weight.normal_(std=0.3)
        return policy

    return make


@pytest.fixture
def batch():
    """Three prompts (2, 4, 3 tokens) with completions (4, 2, 1 tokens), padded on the outer sides."""
    prompt_ids = torch.tensor([[0, 0, 11, 12], [21, 22, 23, 24], [0, 31, 32, 33]])
    completion_ids = torch.tensor([[41, 42, 43, 7], [51, 7, 0, 0], [7, 0, 0, 0]])
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_ids != 0,
        "completion_ids": completion_ids,
        "completion_mask": completion_ids != 0,
    }


@pytest.fixture
def groups():
    """Rows of two prompts (4 and 2 tokens), in any order."""
    prompt_ids = torch.tensor([[0, 0, 11, 12], [21, 22, 23, 24], [0, 0, 11, 12], [21, 22, 23, 24], [21, 22, 23, 24]])
    completion_ids = torch.tensor([[41, 42, 43, 7], [51, 7, 0, 0], [7, 0, 0, 0], [61, 62, 7, 0], [51, 52, 53, 54]])
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_ids != 0,
        "completion_ids": completion_ids,
        "completion_mask": completion_ids != 0,
    }
