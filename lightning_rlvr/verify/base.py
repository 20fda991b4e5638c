"""What a verifier is: completions with their gold records in, verdicts out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from lightning_rlvr.registry import Registry

Status = Literal["correct", "wrong", "no_answer", "timeout", "error", "abstained"]
STATUSES: tuple[Status, ...] = get_args(Status)
UNSCORED: frozenset[Status] = frozenset({"timeout", "error", "abstained"})


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One completion, with all that a verifier may look at."""

    prompt: str
    completion: str
    completion_ids: tuple[int, ...]
    truncated: bool
    columns: Mapping[str, Any]
    max_completion_length: int | None = None
    """Tokens that the completion could have had; None where that is not known."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of one verification: a status first, the reward that follows from it second."""

    status: Status
    reward: float
    """Raw score; NaN (never 0) when ``status`` is ``timeout``, ``error`` or ``abstained`` (no opinion asked for)."""
    answer: str | None = None
    """The answer as it was extracted, for logs."""
    reason: str = ""
    """One line for people: the rule that decided, or the error."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Unweighted scores of the parts of a composed reward by name, for logs; NaN where a part has none."""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"`status` must be one of {', '.join(STATUSES)}, got {self.status!r}")
        if self.status in UNSCORED and not math.isnan(self.reward):
            raise ValueError(f"`reward` must be NaN when `status` is {self.status!r}, got {self.reward}")

    @classmethod
    def of(cls, right: bool, reason: str = "") -> Verdict:
        """``correct`` with reward 1, or ``wrong`` with reward 0.

        Example:
            >>> Verdict.of(2 + 2 == 5, "not equal").status
            'wrong'
        """
        return cls(status="correct" if right else "wrong", reward=float(right), reason=reason)


class Verifier(ABC):
    """Scores completions against their gold records."""

    part_names: tuple[str, ...] = ()
    """Names of the ``parts`` that each of its verdicts has."""
    row_local: bool = False
    """Law: a verdict depends on its attempt alone; and it may be asked for in any thread, while others decode."""

    @abstractmethod
    def verify(self, attempts: Sequence[Attempt]) -> list[Verdict]:
        """One verdict for each attempt, in order; never raises for what a completion contains."""

    def check_columns(self, columns: Mapping[str, Any]) -> str | None:
        """What is wrong with a data row (missing column, gold that does not parse), or None; asked at loading."""
        return None

    def check_rows(self, rows: Sequence[Mapping[str, Any]]) -> list[str | None]:
        """``check_columns`` of many rows, for verifiers that can do better than one by one."""
        return [self.check_columns(columns) for columns in rows]


VERIFIERS: Registry[type[Verifier]] = Registry("verifier", "lightning_rlvr.verifiers", "lightning_rlvr.verify")
