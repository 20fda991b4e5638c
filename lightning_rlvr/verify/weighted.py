"""Several rewards as one: their weighted sum."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from lightning_rlvr.checks import require
from lightning_rlvr.verify.base import UNSCORED, VERIFIERS, Attempt, Verdict, Verifier


@VERIFIERS.register("weighted")
class WeightedVerifier(Verifier):
    r"""The sum of weight x reward over the verifiers that have an opinion, each also logged as ``reward/part_<name>``.

    A verifier that abstains is left out of the sum; where all abstain there is no score. One that fails (``timeout``,
    ``error``) leaves the completion unscored: a sum without it would be another reward. Status and answer are those
    of the first verifier with an opinion, so put the one that reads answers first: accuracy then keeps its meaning.

    Args:
        verifiers: Verifiers or their short names.
        weights: One finite number for each; by default 1.
        names: How the parts are called in logs, in letters, digits, `_`, `-` and `.`; by default the short names (the
            class name where there is none), with numbers added where two are the same.

    Raises:
        ValueError: No verifier, not one finite weight or name for each verifier, or names that are not different or
            hold other characters.

    Example:
        >>> from lightning_rlvr.verify.overlong import OverlongVerifier
        >>> verifier = WeightedVerifier(["exact", OverlongVerifier(buffer=2)], weights=[1.0, 0.5])
        >>> attempt = Attempt(
        ...     prompt="", completion=r"\boxed{7}", completion_ids=(1, 2, 3), truncated=False, columns={"answer": 7},
        ...     max_completion_length=4,
        ... )
        >>> [verdict] = verifier.verify([attempt])
        >>> verdict.status, verdict.reward, verdict.parts
        ('correct', 0.75, {'exact': 1.0, 'overlong': -0.5})
    """

    def __init__(
        self,
        verifiers: list[Verifier | str],
        weights: list[float] | None = None,
        names: list[str] | None = None,
    ) -> None:
        require(len(verifiers) >= 1, "verifiers", "a list of at least one verifier", verifiers)
        self.verifiers = [VERIFIERS.build(verifier) for verifier in verifiers]
        self.row_local = all(verifier.row_local for verifier in self.verifiers)
        count = len(self.verifiers)
        self.weights = [1.0] * count if weights is None else list(weights)
        fit = len(self.weights) == count and all(map(_is_finite, self.weights))
        require(fit, "weights", f"{count} finite numbers, one for each verifier", weights)
        self.part_names = tuple(_distinct([_name(one) for one in self.verifiers]) if names is None else names)
        fit = len(self.part_names) == len(set(self.part_names)) == count and all(map(_is_tag, self.part_names))
        require(fit, "names", f"{count} different names of letters, digits, _, - and ., one for each verifier", names)

    @override
    def verify(self, attempts: Sequence[Attempt]) -> list[Verdict]:
        judged = [verifier.verify(attempts) for verifier in self.verifiers]
        return [self._composed(verdicts) for verdicts in zip(*judged, strict=True)]

    @override
    def check_columns(self, columns: Mapping[str, Any]) -> str | None:
        return self.check_rows([columns])[0]

    @override
    def check_rows(self, rows: Sequence[Mapping[str, Any]]) -> list[str | None]:
        complaints = zip(*(verifier.check_rows(rows) for verifier in self.verifiers), strict=True)
        return ["; ".join(dict.fromkeys(filter(None, of_row))) or None for of_row in complaints]

    def _composed(self, verdicts: tuple[Verdict, ...]) -> Verdict:
        opinions = [(v, weight) for v, weight in zip(verdicts, self.weights, strict=True) if v.status != "abstained"]
        first = opinions[0][0] if opinions else verdicts[0]
        status = next((verdict.status for verdict, _ in opinions if verdict.status in UNSCORED), first.status)
        total = sum(weight * verdict.reward for verdict, weight in opinions)
        reasons = [f"{name}: {v.reason}" for name, v in zip(self.part_names, verdicts, strict=True) if v.reason]
        return Verdict(
            status=status,
            reward=math.nan if status in UNSCORED else total,
            answer=first.answer,
            reason=" | ".join(reasons),
            parts={name: verdict.reward for name, verdict in zip(self.part_names, verdicts, strict=True)},
        )


def _is_finite(weight: object) -> bool:
    return isinstance(weight, int | float) and not isinstance(weight, bool) and abs(weight) <= sys.float_info.max


def _is_tag(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(r"[\w.-]+", name, re.ASCII) is not None


def _name(verifier: Verifier) -> str:
    short = [name for name in VERIFIERS if VERIFIERS[name] is type(verifier)]
    return (short or [type(verifier).__name__])[0]


def _distinct(names: list[str]) -> list[str]:
    """Names with ``_2``, ``_3``, ... after those that occurred before."""
    return [f"{name}_{names[:i].count(name) + 1}" if name in names[:i] else name for i, name in enumerate(names)]
