"""Scalars of one training step, exact over ranks at the price of two small collectives."""

from __future__ import annotations

from collections.abc import Callable

import torch
from lightning.pytorch.strategies import Strategy
from torch import Tensor

from lightning_rlvr.distributed import reduced


class StepMetrics:
    """Collects sums, counts and maxima of this rank; ``reduce`` turns them into scalars of the global batch.

    Adding to a name again accumulates. Every rank must add the same names; a mean over nothing is left out.

    Example:
        >>> metrics = StepMetrics()
        >>> metrics.mean("length", torch.tensor([3.0, 5.0, 9.0]), torch.tensor([True, True, False]))
        >>> metrics.maximum("longest", torch.tensor([3.0, 9.0]))
        >>> metrics.scalars()
        {'length': 4.0, 'longest': 9.0}
    """

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}
        self._totals: dict[str, Tensor] = {}
        self._maxima: dict[str, Tensor] = {}
        self._moments: dict[str, Tensor] = {}
        self._roots: set[str] = set()

    def mean(self, name: str, values: Tensor, mask: Tensor | None = None) -> None:
        """Mean over all entries of ``values`` (any shape) where ``mask`` (same shape) is True; NaNs are left out."""
        keep = ~values.isnan() if mask is None else mask & ~values.isnan()
        self.ratio(name, values.double().masked_fill(~keep, 0.0).sum(), keep.sum())

    def rms(self, name: str, values: Tensor, mask: Tensor | None = None) -> None:
        """Root of the mean square, under the same rules as ``mean``."""
        self.mean(name, values.square(), mask)
        self._roots.add(name)

    def ratio(self, name: str, numerator: Tensor, denominator: Tensor) -> None:
        """Sum of ``numerator`` over ranks divided by that of ``denominator``."""
        above, below = self._sums.get(name, (0.0, 0.0))
        self._sums[name] = (numerator.double() + above, denominator.double() + below)

    def correlation(self, name: str, x: Tensor, y: Tensor) -> None:
        """Pearson correlation of ``x`` and ``y`` (any shape, the same); left out where one of them is constant."""
        x, y = x.double().flatten(), y.double().flatten()
        moments = torch.stack([x.new_tensor(len(x)), x.sum(), y.sum(), x @ x, y @ y, x @ y])
        self._moments[name] = moments + self._moments.get(name, 0.0)

    def total(self, name: str, value: Tensor | float) -> None:
        """Sum over ranks."""
        self._totals[name] = torch.as_tensor(value, dtype=torch.float64) + self._totals.get(name, 0.0)

    def maximum(self, name: str, values: Tensor | float) -> None:
        """Largest entry over ranks; an empty tensor adds nothing."""
        values = torch.as_tensor(values, dtype=torch.float64).flatten()
        so_far = self._maxima.get(name, values.new_tensor(-torch.inf))
        self._maxima[name] = torch.cat([values, so_far.reshape(1)]).amax()

    def savepoint(self) -> Callable[[], None]:
        """What takes back all that is added from now on; to be called once at most."""
        state = {name: entries.copy() for name, entries in vars(self).items()}
        return lambda: vars(self).update(state)

    def reduce(self, strategy: Strategy) -> dict[str, float]:
        """Scalars over all ranks; a collective call."""
        sums, maxima = self._flat()
        return self._named(reduced(strategy, sums, "sum"), reduced(strategy, maxima, "max"))

    def scalars(self) -> dict[str, float]:
        """Scalars of this rank alone."""
        return self._named(*self._flat())

    def _flat(self) -> tuple[list[float], list[float]]:
        sums = [float(part) for name in sorted(self._sums) for part in self._sums[name]]
        sums += [float(self._totals[name]) for name in sorted(self._totals)]
        sums += [float(moment) for name in sorted(self._moments) for moment in self._moments[name]]
        return sums, [float(self._maxima[name]) for name in sorted(self._maxima)]

    def _named(self, sums: list[float], maxima: list[float]) -> dict[str, float]:
        values = iter(sums)
        named: dict[str, float] = {}
        for name in sorted(self._sums):
            numerator, denominator = next(values), next(values)
            if denominator != 0:
                mean = numerator / denominator
                named[name] = mean**0.5 if name in self._roots else mean
        named.update((name, next(values)) for name in sorted(self._totals))
        for name in sorted(self._moments):
            count, x, y, xx, yy, xy = (next(values) for _ in range(6))
            variances = (count * xx - x * x) * (count * yy - y * y)
            if count > 1 and variances > 1e-9 * (count * count * xx * yy):
                named[name] = (count * xy - x * y) / variances**0.5
        named.update((name, v) for name, v in zip(sorted(self._maxima), maxima, strict=True) if v > -float("inf"))
        return dict(sorted(named.items()))
