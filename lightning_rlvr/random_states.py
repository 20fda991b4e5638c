"""The random states of a process, as a checkpoint that loads as weights only can hold them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def random_states(device: torch.device) -> dict[str, Any]:
    """States of torch, numpy, Python, and of ``device`` where it is a GPU.

    Example:
        >>> states = random_states(torch.device("cpu"))
        >>> first = torch.rand(1), random.random()
        >>> restore_random_states(states, torch.device("cpu"))
        >>> (torch.rand(1), random.random()) == first
        True
    """
    name, keys, *rest = np.random.get_state()
    assert isinstance(keys, np.ndarray)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": (name, keys.tolist(), *rest),
        "python": random.getstate(),
    }


def restore_random_states(states: Mapping[str, Any], device: torch.device) -> None:
    """Go on from ``states``; that of a GPU is left out elsewhere."""
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
    np.random.set_state(tuple(states["numpy"]))
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
