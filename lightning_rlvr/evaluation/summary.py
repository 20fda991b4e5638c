"""The numbers of one evaluation: of every set, over all problems, and their mean over sets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lightning_rlvr.checks import require, require_choice
from lightning_rlvr.evaluation.samples import Sample, votes
from lightning_rlvr.functional.random import derive_seed
from lightning_rlvr.metrics.evaluation import (
    MajorityAtK,
    PassAtK,
    SampleMean,
    SampleMetric,
    SampleQuantile,
    SampleTable,
)
from lightning_rlvr.verify.base import STATUSES

_COLUMNS = ("set", "status", "reward", "vote", "length", "truncated")


class EvaluationSummary:
    """Metrics of one evaluation, exact over processes; every sample counts once, however often it comes.

    For each set: ``accuracy`` (avg@n: mean over problems of the share of correct samples) and its standard error over
    problems ``accuracy_se``; ``pass@k`` and ``maj@k`` for k = 2, 4, 8, ... up to n and n itself; ``reward`` (mean over
    scored samples), ``length``, ``length_p10``, ``length_p50``, ``length_p90``, ``length_correct`` in tokens; the
    shares ``truncated`` and of every status but correct; ``num_problems`` and ``num_samples`` (of each problem).

    ``pass@n`` is whether any sample was correct: it has no unbiased estimate of less variance, so compare arms at
    smaller k. ``maj@k`` is NaN for a verifier that extracts no answers.

    Args:
        set_names: Names of the sets.
        num_samples: Samples of each problem, n.
        device: Where samples are gathered.

    Example:
        >>> summary = EvaluationSummary(["sums"], num_samples=1)
        >>> summary.update("sums", [Sample(
        ...     problem_id="p", problem_hash="h", sample=0, status="correct", reward=1.0, answer="1", tokens=3,
        ...     truncated=False, seed=7, text=None,
        ... )])
        >>> results = summary.compute()
        >>> list(results), results["sums"]["accuracy"], results["sums"]["length"]
        (['sums'], 1.0, 3.0)
    """

    def __init__(self, set_names: Sequence[str], num_samples: int, device: torch.device | str = "cpu") -> None:
        require(num_samples >= 1, "num_samples", ">= 1", num_samples)
        require(not {"micro", "macro"} & {*set_names}, "set_names", "other than micro and macro", tuple(set_names))
        self.set_names = tuple(set_names)
        self._ks = sorted({2**i for i in range(1, num_samples.bit_length())} | {num_samples} - {1})
        self._table = SampleTable(len(_COLUMNS)).to(device)

    def update(self, set_name: str, samples: Sequence[Sample]) -> None:
        """Add samples of a set that this process has."""
        require_choice("set_name", self.set_names, set_name)
        if not samples:
            return
        columns = {
            "set": [self.set_names.index(set_name)] * len(samples),
            "status": [STATUSES.index(sample.status) for sample in samples],
            "reward": [sample.reward for sample in samples],
            "vote": votes(samples).double().masked_fill(_without_answer(samples), math.nan).tolist(),
            "length": [sample.tokens for sample in samples],
            "truncated": [sample.truncated for sample in samples],
        }
        device = self._table.device
        self._table.update(
            torch.tensor([derive_seed(set_name, sample.problem_id) for sample in samples], device=device),
            torch.tensor([sample.sample for sample in samples], device=device),
            torch.tensor([columns[name] for name in _COLUMNS], dtype=torch.float64, device=device).T,
        )

    def compute(self) -> dict[str, dict[str, float]]:
        """Results by set; of several also ``micro`` (all problems alike) and ``macro`` (all sets alike).

        A collective call.
        A set without samples is left out. ``macro`` averages what is defined (NaN is not), sums ``num_problems``, and
        takes the sets as independent for ``accuracy_se``.
        """
        table = self._table.compute()
        problem, rows = table[:, 0].long(), dict(zip(_COLUMNS, table[:, 1:].unbind(1), strict=True))
        results: dict[str, dict[str, float]] = {}
        for number, name in enumerate(self.set_names):
            of_set = rows["set"] == number
            if bool(of_set.any()):
                results[name] = self._metrics(problem[of_set], {key: column[of_set] for key, column in rows.items()})
        if len(results) > 1:
            sets = list(results.values())
            results |= {"micro": self._metrics(problem, rows), "macro": _macro(sets)}
        return results

    def _metrics(self, problem: Tensor, rows: Mapping[str, Tensor]) -> dict[str, float]:
        correct = (rows["status"] == STATUSES.index("correct")).double()
        length_correct = rows["length"].masked_fill(correct == 0, math.nan)
        metrics: dict[str, tuple[SampleMetric, Tensor]] = {
            **{f"pass@{k}": (PassAtK(k), correct) for k in self._ks},
            **{f"maj@{k}": (MajorityAtK(k), rows["vote"]) for k in self._ks},
            "reward": (SampleMean(), rows["reward"]),
            "length": (SampleMean(), rows["length"]),
            **{f"length_p{p}": (SampleQuantile(p / 100), rows["length"]) for p in (10, 50, 90)},
            "length_correct": (SampleMean(), length_correct),
            "truncated": (SampleMean(), rows["truncated"]),
            **{
                status: (SampleMean(), (rows["status"] == number).double())
                for number, status in enumerate(STATUSES)
                if status != "correct"
            },
        }
        accuracy = PassAtK(1).by_problem(problem, correct)
        spread = accuracy.std() if len(accuracy) > 1 else accuracy.new_tensor(math.nan)
        return {
            "accuracy": float(accuracy.mean()),
            "accuracy_se": float(spread) / len(accuracy) ** 0.5,
            **{name: float(metric.reduce(problem, column)) for name, (metric, column) in metrics.items()},
            "num_problems": float(len(accuracy)),
            "num_samples": len(problem) / len(accuracy),
        }


def _without_answer(samples: Sequence[Sample]) -> Tensor:
    """Scored, but by a verifier that does not say what the answer was; bool ``[B]``."""
    return torch.tensor([sample.status in ("correct", "wrong") and sample.answer is None for sample in samples])


def _macro(sets: Sequence[Mapping[str, float]]) -> dict[str, float]:
    means = {name: float(torch.tensor([r[name] for r in sets], dtype=torch.float64).nanmean()) for name in sets[0]}
    return means | {
        "accuracy_se": math.sqrt(sum(result["accuracy_se"] ** 2 for result in sets)) / len(sets),
        "num_problems": sum(result["num_problems"] for result in sets),
    }
