"""A character model of 0.9M parameters, warmed up on sums: enough for many runs on a laptop, with room to learn."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from lightning_rlvr.policy.folders import cache_root, cached_folder
from lightning_rlvr.tasks import sums

SPECIAL_TOKENS = ("<pad>", "<eos>", "<unk>")
IGNORED = -100
"""Target of positions without a loss, as torch has it."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    r"""One token for each character of printable ASCII, white space included; all others are ``<unk>``.

    Example:
        >>> tokenizer = build_tokenizer()
        >>> ids = tokenizer("27+48=\n").input_ids
        >>> len(ids), tokenizer.decode(ids), tokenizer.eos_token
        (7, '27+48=\n', '<eos>')
    """
    vocabulary = {token: i for i, token in enumerate((*SPECIAL_TOKENS, *string.printable))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def build_tiny(seed: int = 0) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """The model at its seeded initialisation, in float32, and its tokenizer; global random state is left alone.

    Example:
        >>> model, tokenizer = build_tiny()
        >>> model.num_parameters(), model.config.vocab_size
        (866560, 103)
    """
    tokenizer = build_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    return model, tokenizer


def warm_up(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, *, pass_rate: float = 0.35, max_steps: int = 600
) -> float:
    """Supervised steps on worked sums until the model solves a share of them by itself.

    The share is the mean probability of whole worked solutions at temperature 1, read from one forward: what sampling
    would find, without its noise (and without the few right answers that come by another way).

    Args:
        model: Trained in place.
        tokenizer: Its tokenizer.
        pass_rate: Share at which to stop; looked at every 10 steps of 64 sums.
        max_steps: Where to give up.

    Returns:
        The share of sums solved.

    Raises:
        RuntimeError: ``max_steps`` steps were not enough.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
    held_back = _encode(tokenizer, sums.generate("tiny:held back", 256))
    for step in range(max_steps):
        if step % 10 == 0:
            with torch.no_grad():
                solved = float(_losses(model, *held_back).sum(1).neg().exp().mean())
            if solved >= pass_rate:
                return solved
        losses = _losses(model, *_encode(tokenizer, sums.generate(f"tiny:{step}", 64)))
        (losses.sum() / losses.count_nonzero()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    raise RuntimeError(f"the tiny model must solve a share of {pass_rate} after {max_steps} steps, got {solved:.3f}")


def _encode(tokenizer: PreTrainedTokenizerFast, records: Sequence[sums.SumRecord]) -> tuple[Tensor, Tensor]:
    """Token ids ``[b, L]``, right-padded, and the targets of each position: the solution and the end token only."""
    rows = [tokenizer(r["problem"] + r["solution"] + "<eos>").input_ids for r in records]
    width = max(map(len, rows))
    ids = torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in rows])
    starts = torch.tensor([[len(r["problem"])] for r in records])
    in_solution = (torch.arange(width) >= starts) & (ids != tokenizer.pad_token_id)
    return ids, ids.masked_fill(~in_solution, IGNORED)[:, 1:]


def _losses(model: Qwen3ForCausalLM, ids: Tensor, targets: Tensor) -> Tensor:
    """``[b, L - 1]`` nats; 0 where there is no target."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=IGNORED, reduction="none")


def tiny_folder(name: str) -> Path:
    """The folder that holds ``tiny`` or ``tiny_untrained``, built first if the cache does not have it (half a minute).

    The cache is keyed by the sources that decide what the model is.

    Args:
        name: ``tiny`` or ``tiny_untrained``.
    """
    recipe = b"".join(Path(file).read_bytes() for file in (__file__, sums.__file__))
    folder = cache_root() / f"{name}-{hashlib.sha256(recipe).hexdigest()[:12]}"

    def build(new: Path) -> None:
        model, tokenizer = build_tiny()
        if name == "tiny":
            warm_up(model, tokenizer)
        model.save_pretrained(new)
        tokenizer.save_pretrained(new)

    return cached_folder(folder, build)
