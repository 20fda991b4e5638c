"""The hash that tells problems apart, the same in every process and on every machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np


def problem_hash(problem_id: str, prompt: str, columns: Mapping[str, Any]) -> str:
    """What tells a problem from every other, and from itself once prompt, gold answer or another column changed.

    Args:
        problem_id: What the data call it.
        prompt: As the policy is shown it.
        columns: Plain values, nested or not. Beside what JSON can say, they may hold what rows of Parquet files and
            generators do: numpy scalars and arrays count as their Python values, dates, times, decimals and bytes as
            Python writes them. The order of names does not count.

    Returns:
        16 hexadecimal digits.

    Raises:
        TypeError: A column holds something else; its text might have an address in it, which no other run has.

    Example:
        >>> problem_hash("sums/1", "1 + 1 = ?", {"answer": "2"})
        '4cf26192df852b4f'
    """
    try:
        record = json.dumps([problem_id, prompt, dict(columns)], sort_keys=True, default=_plain)
    except TypeError as error:
        raise TypeError(
            f"columns of problem {problem_id} must be plain values that a hash can be made of: {error}"
        ) from error
    return hashlib.sha256(record.encode()).hexdigest()[:16]


def _plain(value: object) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, (date, time, timedelta, Decimal, bytes)):
        return repr(value)
    raise TypeError(f"got {type(value).__name__}")
