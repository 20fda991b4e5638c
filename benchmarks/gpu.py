"""The parts of a training step on a GPU: a model of Qwen3-4B's shape with random weights, in bfloat16, with LoRA.

Tokens per second, memory, and operations per second beside the machine's measured rate of matrix products. Nothing is
downloaded, and every size is a flag: `--device cpu` with small ones shows on any machine that the script runs.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import psutil
import torch
from common import command_line, peak_resident, write
from rich.table import Table
from roofline import Part, bandwidths, matrix_rates, rollout_part, training_parts
from transformers import AutoModelForCausalLM, Qwen3Config

from lightning_rlvr.policy.loading import load_policy
from lightning_rlvr.policy.policy import Policy
from lightning_rlvr.policy.settings import LoraSettings, PolicySettings
from lightning_rlvr.policy.tiny import build_tokenizer
from lightning_rlvr.rollout.base import ENGINES
from lightning_rlvr.types import PromptBatch


class Device:
    """Time and memory of a GPU, or of the CPU in its place."""

    def __init__(self, name: str) -> None:
        self.device = torch.device(name)
        self.is_gpu = self.device.type == "cuda"

    def clock(self) -> float:
        """Seconds, once all that was asked for is done."""
        if self.is_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    def forget_peak(self) -> None:
        """The peak begins here; a CPU's begins with the process."""
        if self.is_gpu:
            torch.cuda.reset_peak_memory_stats()

    def memory(self) -> dict[str, float]:
        """GiB: the peak of what torch allocated (CPU: of the process), and what is taken now, vLLM's included."""
        if self.is_gpu:
            free, total = torch.cuda.mem_get_info()
            peak, taken = torch.cuda.max_memory_allocated(), total - free
        else:
            peak, taken = peak_resident(), psutil.Process().memory_info().rss
        return {"peak_gib": round(peak / 2**30, 2), "taken_gib": round(taken / 2**30, 2)}


def build(options: argparse.Namespace) -> Policy:
    """A policy with random weights, loaded as any other."""
    tokenizer = build_tokenizer()
    config = Qwen3Config(
        vocab_size=options.words,
        hidden_size=options.hidden,
        intermediate_size=options.intermediate,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.key_value_heads,
        head_dim=options.head_dim,
        max_position_embeddings=40960,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with tempfile.TemporaryDirectory() as folder:
        with torch.device(options.device):
            AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        settings = PolicySettings(
            name_or_path=folder,
            dtype=options.dtype,
            lora=LoraSettings(rank=options.rank),
            attn_implementation=options.attention,
            gradient_checkpointing=options.checkpointing,
        )
        return load_policy(settings, device=options.device).to(options.device)


def random_prompts(options: argparse.Namespace) -> PromptBatch:
    """Prompts of random tokens, all of one length."""
    shape = (options.prompts, options.prompt_length)
    mask = torch.ones(shape, dtype=torch.bool, device=options.device)
    return PromptBatch(
        prompt_ids=torch.randint(3, options.words, shape, device=options.device),
        prompt_mask=mask,
        evidence_mask=mask,
        task_id=torch.zeros(options.prompts, dtype=torch.int64, device=options.device),
        task_names=("random",),
        problem_ids=tuple(map(str, range(options.prompts))),
        prompts=("",) * options.prompts,
        columns=({},) * options.prompts,
    )


def measure(options: argparse.Namespace) -> Iterator[tuple[Part, dict[str, float]]]:
    """Each part as soon as it is known, and its memory."""
    device, policy, prompts = Device(options.device), build(options), random_prompts(options)
    for name in options.engines:
        engine = ENGINES.build(name)
        engine.sync(policy)  # an engine of its own starts here
        with torch.no_grad():
            for weight in policy.trainable_weights:
                weight += 1e-6 * torch.randn_like(weight)
        started = device.clock()
        engine.sync(policy)
        synced = device.clock() - started
        device.forget_peak()
        rollout, completions = rollout_part(
            engine,
            policy,
            prompts,
            options.group,
            options.max_completion_length,
            repeats=options.repeats,
            clock=device.clock,
        )
        memory = device.memory() | {"sync_seconds": round(synced, 3)}
        engine.sleep()
        yield Part(**(vars(rollout) | {"name": f"rollout, {name}"})), memory
    device.forget_peak()
    parts = training_parts(
        policy,
        prompts,
        completions,
        budget=options.budget,
        forward_cost=1024 if device.is_gpu else 64,
        repeats=options.repeats,
        clock=device.clock,
    )
    memory = device.memory()  # of both: the one needs what the other keeps
    for part in parts:
        yield part, memory


def table(title: str, found: list[tuple[Part, dict[str, float]]], rate: float, bandwidth: float) -> Table:
    """One row for each part."""
    result = Table(title=title)
    columns = ("", "s", "tokens / s", "10^12 op / s", "of the rate", "of the bound", "peak GiB", "taken GiB", "sync s")
    for name in columns:
        result.add_column(name, justify="right" if name else "left")
    for part, memory in found:
        reached, (bound, by) = part.operations / part.seconds, part.bound(rate, bandwidth)
        result.add_row(
            part.name,
            f"{part.seconds:.2f}",
            f"{part.tokens / part.seconds:.0f}",
            f"{reached / 1e12:.2f}",
            f"{reached / rate:.0%}",
            f"{bound / part.seconds:.0%} ({by})",
            f"{memory['peak_gib']:.1f}",
            f"{memory['taken_gib']:.1f}",
            f"{memory['sync_seconds']:.2f}" if "sync_seconds" in memory else "",
        )
    return result


def main() -> None:
    """Command line."""
    parser = command_line("gpu", __doc__, "dtype")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--engines", nargs="+", default=["hf"], choices=("hf", "vllm"))
    for name, size, meaning in (
        ("layers", 36, ""),
        ("hidden", 2560, "width of the layers"),
        ("intermediate", 9728, "width inside of them"),
        ("heads", 32, "of the queries"),
        ("key-value-heads", 8, ""),
        ("head-dim", 128, ""),
        ("words", 151936, ""),
        ("rank", 16, "of the adapter"),
        ("prompts", 16, ""),
        ("group", 8, "completions for each prompt"),
        ("prompt-length", 256, "tokens"),
        ("max-completion-length", 512, "tokens"),
        ("budget", 16384, "padded tokens of a micro-batch"),
        ("repeats", 2, "of each part that count, after one that does not"),
    ):
        parser.add_argument(f"--{name}", type=int, default=size, help=meaning)
    parser.add_argument("--attention", default="sdpa", help="or flash_attention_2, ...")
    parser.add_argument("--checkpointing", action="store_true", help="recompute layers in the backward")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("gpu.py needs a GPU that torch can use, or --device cpu and small sizes, such as --layers 2")
    torch.manual_seed(0)
    device = Device(options.device)
    dtype = torch.float32 if options.dtype == "float32" else torch.bfloat16
    hidden, inner = options.hidden, options.intermediate
    shapes = [(options.budget, hidden, inner), (options.budget, inner, hidden), (1024, hidden, options.words)]
    with torch.device(options.device):
        rates = matrix_rates(shapes, dtype, 10, device.clock)
        bandwidth = bandwidths(2**32 if device.is_gpu else 2**26, 5, device.clock)
    limits = max(rates.values()), max(bandwidth.values())
    name = torch.cuda.get_device_name() if device.is_gpu else "CPU"
    title = f"A step of {options.layers} layers of width {hidden} on {name}: {limits[0] / 1e12:.2f} x 10^12 op / s"
    settings = {key: value for key, value in vars(options).items() if key != "output"}
    result: dict[str, Any] = {"title": title, "settings": settings, "rates": rates, "bandwidth": bandwidth}
    found = []
    for part, memory in measure(options):
        found.append((part, memory))
        parts = [vars(part) | memory for part, memory in found]
        write(options.output, result | {"parts": parts}, [table(title, found, *limits)])


if __name__ == "__main__":
    main()
