"""Metrics of sampled problems that are exact under several processes, uneven ranks and repeated rows."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat
from typing_extensions import override

from lightning_rlvr.checks import require
from lightning_rlvr.functional.evaluation import majority_at_k, pass_at_k


class SampleMetric(Metric):
    """A number that follows from one value, or several, of each sample; it does not depend on who saw which sample.

    Rows are kept until ``compute`` and told apart by (problem, sample): one that came twice, as from a padded
    ``DistributedSampler``, counts once. Values are kept as float64: whole numbers up to 2**53 are exact.

    Args:
        num_values: Values of each sample.
    """

    full_state_update = False
    rows: list[Tensor]

    def __init__(self, num_values: int = 1) -> None:
        super().__init__()
        self.num_values = num_values
        self.add_state("rows", [], dist_reduce_fx="cat")
        self.reset()

    @override
    def reset(self) -> None:
        super().reset()
        # for a rank without rows torchmetrics would gather float32 of one dimension, which does not fit to the others
        self.rows.append(torch.empty(0, 2 + self.num_values, dtype=torch.int64, device=self.device))

    @override
    def update(self, problem: Tensor, sample: Tensor, value: Tensor) -> None:
        """Add B samples.

        Args:
            problem: ``[B]`` int64, a stable number of the problem (``derive_seed`` of its name).
            sample: ``[B]`` int64, number of the sample within its problem.
            value: ``[B]`` numbers, or ``[B, num_values]``.
        """
        if problem.dtype != torch.int64 or sample.dtype != torch.int64:
            raise TypeError(f"`problem` and `sample` must be torch.int64, got {problem.dtype} and {sample.dtype}")
        bits = value.detach().double().reshape(len(problem), self.num_values).view(torch.int64)
        self.rows.append(torch.cat([problem[:, None], sample[:, None], bits], 1))

    @override
    def compute(self) -> Tensor:
        rows = dim_zero_cat(self.rows)
        rows = rows[rows[:, 1].argsort(stable=True)]
        rows = rows[rows[:, 0].argsort(stable=True)]
        new = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        new[1:] = (rows[1:, :2] != rows[:-1, :2]).any(1)
        problem, value = rows[new, 0], rows[new, 2:].contiguous().view(torch.float64)
        return self.reduce(problem, value[:, 0] if self.num_values == 1 else value)

    @abstractmethod
    def reduce(self, problem: Tensor, value: Tensor) -> Tensor:
        """The metric of distinct samples; a pure function.

        Args:
            problem: ``[R]`` int64, sorted; within a problem, samples come in the order of their numbers.
            value: ``[R]`` float64, or ``[R, num_values]``.

        Returns:
            float64.
        """


class SampleTable(SampleMetric):
    """The distinct samples of all processes themselves: gathered once, they serve any number of metrics' ``reduce``.

    Example:
        >>> table = SampleTable(num_values=2)
        >>> table.update(torch.tensor([9, 4, 9]), torch.tensor([0, 0, 0]), torch.tensor([[1, 5], [0, 6], [1, 5]]))
        >>> table.compute()  # number of the problem, values
        tensor([[0., 0., 6.],
                [1., 1., 5.]], dtype=torch.float64)
    """

    @override
    def reduce(self, problem: Tensor, value: Tensor) -> Tensor:
        number = torch.unique_consecutive(problem, return_inverse=True)[1]
        return torch.cat([number[:, None].double(), value.reshape(-1, self.num_values)], 1)


class _AtK(SampleMetric):
    """A metric of k samples."""

    def __init__(self, k: int) -> None:
        super().__init__()
        require(k >= 1, "k", ">= 1", k)
        self.k = k


class PassAtK(_AtK):
    """Unbiased pass@k, mean over problems; the value is 1 for a correct sample, else 0. ``k = 1`` is avg@n.

    Args:
        k: At most the number of samples of every problem.

    Example:
        >>> metric = PassAtK(k=2)
        >>> metric.update(torch.tensor([7, 7, 7, 8, 8]), torch.tensor([0, 1, 2, 0, 1]), torch.tensor([1, 0, 0, 0, 0]))
        >>> metric.compute()
        tensor(0.3333, dtype=torch.float64)
    """

    @override
    def reduce(self, problem: Tensor, value: Tensor) -> Tensor:
        return self.by_problem(problem, value).mean()

    def by_problem(self, problem: Tensor, value: Tensor) -> Tensor:
        """The estimate of each problem, float64 ``[P]``; arguments as of ``reduce``."""
        _, number, counts = torch.unique_consecutive(problem, return_inverse=True, return_counts=True)
        correct = torch.zeros_like(counts).index_add_(0, number, (value == 1).long())
        return pass_at_k(counts, correct, self.k)


class MajorityAtK(_AtK):
    """maj@k, mean over problems; the value is a vote as ``majority_at_k`` reads it, NaN where answers are unknown.

    With a NaN among them the result is NaN: a majority of those that are known would be another quantity.

    Args:
        k: At most the number of samples of every problem.

    Example:
        >>> metric = MajorityAtK(k=3)
        >>> metric.update(torch.tensor([7, 7, 7]), torch.tensor([0, 1, 2]), torch.tensor([1, 5, 1]))
        >>> metric.compute()
        tensor(1., dtype=torch.float64)
    """

    @override
    def reduce(self, problem: Tensor, value: Tensor) -> Tensor:
        if not len(value) or bool(value.isnan().any()):
            return value.new_tensor(torch.nan)
        counts = torch.unique_consecutive(problem, return_counts=True)[1]
        votes, count = value.long(), counts.repeat_interleave(counts)
        sizes = [int(n) for n in counts.unique()]  # a single one, unless problems differ in the number of samples
        return torch.cat([majority_at_k(votes[count == n].reshape(-1, n), self.k) for n in sizes]).mean()


class SampleMean(SampleMetric):
    """Mean over samples; NaN values are left out, and without any other the mean is NaN.

    Example:
        >>> metric = SampleMean()
        >>> metric.update(torch.tensor([7, 7, 8]), torch.tensor([0, 1, 0]), torch.tensor([1.0, torch.nan, 2.0]))
        >>> metric.compute()
        tensor(1.5000, dtype=torch.float64)
    """

    @override
    def reduce(self, problem: Tensor, value: Tensor) -> Tensor:
        return value.nanmean()


class SampleQuantile(SampleMetric):
    """Quantile over samples, interpolated linearly; NaN values are left out, and without any other it is NaN.

    Args:
        q: Between 0 and 1.

    Example:
        >>> metric = SampleQuantile(q=0.9)
        >>> metric.update(torch.tensor([7, 7, 8]), torch.tensor([0, 1, 0]), torch.tensor([10, 20, 30]))
        >>> metric.compute()
        tensor(28., dtype=torch.float64)
    """

    def __init__(self, q: float) -> None:
        super().__init__()
        require(0 <= q <= 1, "q", "between 0 and 1", q)
        self.q = q

    @override
    def reduce(self, problem: Tensor, value: Tensor) -> Tensor:
        return value.nanquantile(self.q) if len(value) else value.new_tensor(torch.nan)
