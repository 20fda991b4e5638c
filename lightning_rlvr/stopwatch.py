"""Where the seconds of a training step go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from lightning.pytorch.profilers import Profiler

Timed = Callable[[str], AbstractContextManager[object]]
"""Name of a part -> what to do that part in; ``nullcontext`` measures nothing."""

PARTS = ("rollout", "sync", "verify", "score", "backward", "optimizer")
"""What a step consists of, beside calibration and logs; no part lies inside another.

Logged is the rank that took longest, part by part: over several ranks they may add up to more than a step.

* ``rollout``: the engine samples; an adapter that it merges for that, and unmerges, is included.
* ``sync``: an engine with weights of its own takes over the policy's, and gives its memory back after the rollout.
* ``verify``: from the end of the sampling until the last verdict is there.
* ``score``: forwards without gradient, before the first update.
* ``backward``: forward, credit and backward of all micro-batches, those repeated for want of memory included.
* ``optimizer``: gradients are summed over ranks, clipped and stepped on.
"""


class Stopwatch:
    """Seconds by part, each also an action of that name in the trainer's profiler.

    Args:
        profiler: The trainer's.
        device: Waited for where it is a GPU, so that its work counts where it was asked for.

    Example:
        >>> from lightning.pytorch.profilers import PassThroughProfiler
        >>> timed = Stopwatch(PassThroughProfiler(), torch.device("cpu"))
        >>> with timed("verify"):
        ...     time.sleep(0.01)
        >>> timed.seconds["verify"] >= 0.01, timed.seconds["rollout"]
        (True, 0.0)
    """

    def __init__(self, profiler: Profiler, device: torch.device) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._profiler = profiler
        self._device = device

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Add the seconds spent inside to ``part``, one of ``PARTS``."""
        started = self._now()
        with self._profiler.profile(part):
            yield
            now = self._now()
        self.seconds[part] += now - started

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
