"""Memory of scoring and its backward as the vocabulary grows and the tokens do not, beside full logits.

A pass is that what lies above the weights grows by no more than a tenth from the smallest to the largest vocabulary.
Blocks that are freed go back to the system at once: which of them glibc keeps depends on their sizes in the order in
which they were freed, and would count as memory that scoring needs.
"""

from __future__ import annotations

import gc
import os
import time
from typing import Any

import psutil
import torch
from common import command_line, in_new_process, peak_resident, verdict, write
from rich.table import Table
from torch import Tensor

from lightning_rlvr.policy.scoring import token_scores

BAR = 1.1
ARMS = ("chunked", "full logits")


def measure(arm: str, vocabulary: int, tokens: int, width: int, threads: int) -> dict[str, float]:
    """Log-probs, entropy and backward of random hidden states, in this process, which must be a new one.

    Args:
        arm: One of ``ARMS``.
        vocabulary: Words; the weights are bfloat16 and do not train.
        tokens: Rows that go through the head at once.
        width: Of the hidden states.
        threads: Of torch.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    weight = torch.randn(vocabulary, width, dtype=torch.bfloat16)
    hidden = torch.randn(tokens, width).bfloat16()
    targets = torch.randint(vocabulary, (tokens,))
    run = chunked if arm == "chunked" else full
    run(hidden[:1].clone().requires_grad_(), weight[:1000], targets[:1] % 1000)  # kernels are loaded
    gc.collect()
    before = psutil.Process().memory_info().rss
    started = time.process_time()
    run(hidden.requires_grad_(), weight, targets)
    seconds = time.process_time() - started
    return {
        "mib": round((peak_resident() - before) / 2**20, 1),
        "weights_mib": round(weight.nbytes / 2**20, 1),
        "cpu_seconds": round(seconds, 3),
    }


def chunked(hidden: Tensor, weight: Tensor, targets: Tensor) -> None:
    """As a policy scores."""
    scores = token_scores(hidden, weight, None, targets, temperature=1.0, statistics=("entropy",))
    scores.logprobs.sum().backward()


def full(hidden: Tensor, weight: Tensor, targets: Tensor) -> None:
    """As it reads in a paper."""
    words = (hidden @ weight.T).float().log_softmax(-1)
    -(words.detach().exp() * words.detach()).sum(-1)
    words.gather(1, targets[:, None]).sum().backward()


def growth(sizes: list[float]) -> float:
    """The last of several sizes over the first."""
    return round(sizes[-1] / sizes[0], 2)


def table(title: str, vocabularies: list[int], found: dict[str, list[dict[str, float]]]) -> Table:
    """One row for each vocabulary, one column for each arm and measure."""
    result = Table(title=title)
    for name in ("words", "weights, MiB", *(f"{arm}, {unit}" for arm in found for unit in ("MiB", "CPU s"))):
        result.add_column(name, justify="right")
    for words, *rows in zip(vocabularies, *found.values(), strict=True):
        cells = [(f"{row['mib']:.0f}", f"{row['cpu_seconds']:.2f}") for row in rows]
        weights = f"{rows[0]['weights_mib']:.0f}"
        result.add_row(str(words), weights, *(cell for pair in cells for cell in pair))
    return result


def main() -> None:
    """Command line."""
    parser = command_line("head_memory", __doc__, "threads")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--width", type=int, default=576)
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[2**15, 2**16, 2**17, 2**18])
    options = parser.parse_args()
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(2**20)  # read by glibc where a process starts
    found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    for i, words in enumerate(options.vocabularies):
        for arm, rows in found.items():
            rows.append(in_new_process(measure, arm, words, options.tokens, options.width, options.threads))
        ratios = {arm: growth([row["mib"] for row in rows]) for arm, rows in found.items()}
        title = (
            f"Peak above weights and inputs, {options.tokens} tokens of width {options.width}: grows "
            f"{ratios['chunked']:.2f} times, full logits {ratios['full logits']:.2f}; bar of {BAR} "
            f"{verdict(ratios['chunked'], BAR)}"
        )
        vocabularies = options.vocabularies[: i + 1]
        content = {"title": title, "bar": BAR, "vocabularies": vocabularies, "arms": found, "growth": ratios}
        write(options.output, content, [table(title, vocabularies, found)])


if __name__ == "__main__":
    main()
