"""How far a step is from what this machine can do: operations and bytes against its measured rates.

First the machine: the rate of matrix products of the model's shapes, and the bandwidth of reading and copying. Then
one step of the shipped run, part by part: each takes at least its operations over the best rate, and its bytes over
the bandwidth, whichever is more. There is no bar: the gaps, largest first, say where time is left to win. With
`--threads 1` seconds are those of the processor, which other load on the machine disturbs less.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from common import command_line, first_prompts, forced_rewards, shipped_run, write
from lightning.pytorch import seed_everything
from rich.table import Table
from torch import Tensor

from lightning_rlvr.functional.batching import micro_batches
from lightning_rlvr.policy.loading import load_policy
from lightning_rlvr.policy.policy import Policy
from lightning_rlvr.rollout.base import ENGINES, RolloutEngine, Sampling
from lightning_rlvr.types import Completions, PromptBatch

Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the step: what it has to do at least, and how long it took."""

    name: str
    operations: float
    bytes: float
    tokens: int
    """Sampled, or through the layers: a prompt counts once where several rows share it."""
    seconds: float

    def bound(self, rate: float, bandwidth: float) -> tuple[float, str]:
        """Seconds that the machine needs at least, and what bounds it."""
        by_rate, by_bandwidth = self.operations / rate, self.bytes / bandwidth
        return max(by_rate, by_bandwidth), "rate" if by_rate >= by_bandwidth else "bandwidth"


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Numbers of the model that operations and bytes follow from."""

    layers: int
    """Base weights of the linear layers."""
    adapter: int
    head: int
    width: int
    """Query dimensions of all heads and layers: attention makes 4 operations for each of them and pair of tokens."""
    cache: int
    """Key and value entries of one token in all layers."""
    item: int
    """Bytes of a base weight."""


def sizes(policy: Policy) -> Sizes:
    """Sizes of a decoder with a linear head."""
    config = policy.model.config
    head = policy.model.get_output_embeddings().weight
    adapter = sum(weight.numel() for weight in policy.trainable_weights)
    embedding = policy.model.get_input_embeddings().weight
    rest = policy.num_parameters - adapter - head.numel() - (0 if embedding is head else embedding.numel())
    dimension = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Sizes(
        layers=rest,
        adapter=adapter,
        head=head.numel(),
        width=config.num_hidden_layers * config.num_attention_heads * dimension,
        cache=2 * config.num_hidden_layers * config.num_key_value_heads * dimension,
        item=head.element_size(),
    )


def seconds_of(run: Callable[[], Any], repeats: int, clock: Clock) -> float:
    """Median seconds of ``run`` after one that warms up."""
    run()
    taken = []
    for _ in range(repeats):
        started = clock()
        run()
        taken.append(clock() - started)
    return median(taken)


def matrix_rates(
    shapes: Sequence[tuple[int, int, int]], dtype: torch.dtype, repeats: int, clock: Clock
) -> dict[str, float]:
    """Operations per second of ``[n, d] x [d, m]`` by linear layers, whose weights are ``[m, d]``."""
    rates = {}
    for n, d, m in shapes:
        x, weight = torch.randn(n, d).to(dtype), torch.randn(m, d).to(dtype)
        seconds = seconds_of(lambda x=x, weight=weight: F.linear(x, weight), repeats, clock)
        rates[f"[{n}, {d}] x [{d}, {m}]"] = 2.0 * n * d * m / seconds
    return rates


def bandwidths(num_bytes: int, repeats: int, clock: Clock) -> dict[str, float]:
    """Bytes per second of reading, and of copying, which moves every byte twice; far beyond the processor's caches."""
    source = torch.ones(num_bytes // 4)
    target = torch.empty_like(source)
    return {
        "read": num_bytes / seconds_of(source.sum, repeats, clock),
        "copy": 2 * num_bytes / seconds_of(lambda: target.copy_(source), repeats, clock),
    }


def rollout_work(model: Sizes, prompt: Tensor, completion: Tensor, num_prompts: int) -> tuple[float, float]:
    """Operations and bytes of sampling with a merged adapter and prompts that are prefilled once.

    Args:
        model: Sizes of the model.
        prompt: ``[b]`` tokens of each row's prompt; rows of a prompt are neighbours.
        completion: ``[b]`` tokens of each row.
        num_prompts: Different prompts.
    """
    per_prompt = len(prompt) // num_prompts
    prefilled = prompt[::per_prompt].double()
    prefill = 2 * model.layers * prefilled.sum() + 2 * model.head * num_prompts + _attention(model, prefilled)
    operations, moved = float(prefill), float((model.layers + model.head) * model.item)
    for t in range(1, int(completion.max())):  # the first token comes from the prefill
        going = completion > t
        seen = float((prompt[going] + t).sum())
        operations += 2 * (model.layers + model.head) * int(going.sum()) + 4 * model.width * seen
        moved += (model.layers + model.head + model.cache * seen) * model.item
    return operations, moved


def training_work(
    model: Sizes, prompt: Tensor, completion: Tensor, *, tokens: int, batches: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Operations and bytes of forward and backward, the head on completion tokens only.

    The backward of frozen weights costs as much as their forward, that of the adapter twice as much; the head is
    computed once more for its gradient. Bytes are those of the weights, once for every micro-batch.

    Args:
        model: Sizes of the model.
        prompt: ``[b]`` tokens of each row's prompt.
        completion: ``[b]`` tokens of each row.
        tokens: Those that go through the layers: a prompt counts once where several rows share it.
        batches: Micro-batches.
    """
    sampled = float(completion.sum())
    attention = float(_attention(model, (prompt + completion).double()) - _attention(model, prompt.double()))
    forward = 2 * (model.layers + model.adapter) * tokens + 2 * model.head * sampled + attention
    backward = 2 * (model.layers + 2 * model.adapter) * tokens + 4 * model.head * sampled + 2 * attention
    moved = float((model.layers + model.head) * model.item * batches)
    return (forward, moved), (backward, moved)


def _attention(model: Sizes, lengths: Tensor) -> Tensor:
    """Operations of causal attention over whole rows."""
    return 2 * model.width * (lengths * (lengths + 1)).sum()


def rollout_part(
    engine: RolloutEngine,
    policy: Policy,
    prompts: PromptBatch,
    num_generations: int,
    length: int,
    *,
    repeats: int = 1,
    clock: Clock,
) -> tuple[Part, Completions]:
    """What sampling ``num_generations`` completions of at most ``length`` tokens for each prompt takes, and these."""
    index = torch.arange(len(prompts), device=prompts.prompt_ids.device).repeat_interleave(num_generations)
    sampling = Sampling(max_completion_length=length)
    sampled: list[Completions] = []

    def roll() -> None:
        sampled[:] = [engine.generate(policy, prompts, index, torch.arange(len(index)).to(index), sampling)]

    seconds = seconds_of(roll, repeats, clock)
    [completions] = sampled
    lengths = completions.completion_mask.sum(1).cpu()
    prompt_lengths = prompts.prompt_mask[completions.prompt_index].sum(1).cpu()
    operations, moved = rollout_work(sizes(policy), prompt_lengths, lengths, len(prompts))
    tokens = int(lengths.sum())
    return Part(name="rollout", operations=operations, bytes=moved, tokens=tokens, seconds=seconds), completions


def training_parts(
    policy: Policy,
    prompts: PromptBatch,
    completions: Completions,
    *,
    budget: int,
    forward_cost: int = 64,
    repeats: int = 1,
    clock: Clock,
) -> list[Part]:
    """Forward and backward of all completions in micro-batches, after one round that warms up.

    Args:
        policy: What trains.
        prompts: N prompts.
        completions: Of these.
        budget: Padded tokens of a forward.
        forward_cost: What a forward costs beside its tokens, in tokens.
        repeats: Rounds that count; the medians are taken.
        clock: Seconds.
    """
    index = completions.prompt_index
    prompt_lengths, lengths = prompts.prompt_mask[index].sum(1), completions.completion_mask.sum(1)
    batches = micro_batches(prompt_lengths, lengths, max_tokens=budget, groups=index, forward_cost=forward_cost)
    taken = []
    for _ in range(repeats + 1):
        seconds, before = [0.0, 0.0], policy.num_tokens
        for rows in batches:
            columns = completions.completion_mask[rows].any(0)
            started = clock()
            scores = policy.score(
                prompt_ids=prompts.prompt_ids[index[rows]],
                prompt_mask=prompts.prompt_mask[index[rows]],
                completion_ids=completions.completion_ids[rows][:, columns],
                completion_mask=completions.completion_mask[rows][:, columns],
                temperature=1.0,
            )
            forwarded = clock()
            scores.logprobs.sum().backward()
            seconds[0] += forwarded - started
            seconds[1] += clock() - forwarded
        taken.append(seconds)
        tokens = policy.num_tokens - before
    works = training_work(sizes(policy), prompt_lengths.cpu(), lengths.cpu(), tokens=tokens, batches=len(batches))
    return [
        Part(name=name, operations=operations, bytes=moved, tokens=tokens, seconds=median(seconds))
        for name, (operations, moved), seconds in zip(
            ("forward", "backward"), works, zip(*taken[1:], strict=True), strict=True
        )
    ]


def rates_table(rates: dict[str, dict[str, float]], bandwidth: dict[str, float]) -> Table:
    """What the machine can do."""
    table = Table("", *rates, title="The machine: 10^9 operations and bytes per second")
    for shape in next(iter(rates.values())):
        table.add_row(shape, *(f"{by_shape[shape] / 1e9:.0f}" for by_shape in rates.values()))
    for name, value in bandwidth.items():
        table.add_row(f"{name}, bytes", f"{value / 1e9:.1f}")
    return table


def parts_table(parts: Sequence[Part], rate: float, bandwidth: float) -> Table:
    """How far each part is from that, the largest gap first."""
    table = Table(title="A step against what the machine can do")
    for column in ("", "s", "Gop", "GB", "bound s", "by", "reached", "gap s"):
        table.add_column(column, justify="right" if column else "left")
    for part in sorted(parts, key=lambda part: part.bound(rate, bandwidth)[0] - part.seconds):
        bound, by = part.bound(rate, bandwidth)
        counts = (f"{part.operations / 1e9:.0f}", f"{part.bytes / 1e9:.1f}")
        reached, gap = f"{bound / part.seconds:.0%}", f"{part.seconds - bound:.2f}"
        table.add_row(part.name, f"{part.seconds:.2f}", *counts, f"{bound:.2f}", by, reached, gap)
    return table


def reward(prompts: list[str], **_: object) -> list[float]:
    """Nothing is rewarded here."""
    return forced_rewards(len(prompts))


def main() -> None:
    """Command line."""
    parser = command_line("roofline", __doc__, "config", "dtype", "threads")
    parser.add_argument("--max-completion-length", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=20, help="of each product")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.threads == 1 else time.perf_counter
    seed_everything(0, verbose=False)
    with tempfile.TemporaryDirectory() as folder:
        cli = shipped_run(folder, reward, config=options.config, dtype=options.dtype, max_steps=1)
        prompts = first_prompts(cli)
    policy = load_policy(cli.model.policy_settings, cli.model.tokenizer)
    config, dtype = policy.model.config, str(policy.model.dtype).removeprefix("torch.")
    width, inner, words = config.hidden_size, config.intermediate_size, config.vocab_size
    layers = [(n, d, m) for n in (32, 512) for d, m in ((width, width), (width, inner), (inner, width))]
    shapes = [*layers, (32, width, words), (128, width, words)]
    kinds = {"bfloat16": torch.bfloat16, "float32": torch.float32}
    rates = {name: matrix_rates(shapes, kind, options.repeats, clock) for name, kind in kinds.items()}
    bandwidth = bandwidths(2**28, 5, clock)
    limits = max(rates[dtype].values()), max(bandwidth.values())
    machine = {"dtype": dtype, "threads": options.threads, "rates": rates, "bandwidth": bandwidth}
    write(options.output, machine, [rates_table(rates, bandwidth)])
    num_generations, length = cli.model.rollout_settings.num_generations, options.max_completion_length
    budget = cli.model.loss_settings.max_tokens_per_micro_batch
    rollout, completions = rollout_part(ENGINES.build("hf"), policy, prompts, num_generations, length, clock=clock)
    parts = [rollout, *training_parts(policy, prompts, completions, budget=budget, clock=clock)]
    found = [vars(part) | {"bound": part.bound(*limits)} for part in parts]
    write(options.output, machine | {"parts": found}, [parts_table(parts, *limits)])


if __name__ == "__main__":
    main()
