"""One evaluated completion, its row in a Parquet file, and its vote."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_rlvr.functional.random import derive_seed
from lightning_rlvr.verify.base import Status, Verdict

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One completion of one problem: a row of ``per_problem.parquet``."""

    problem_id: str
    problem_hash: str
    """What was shown: another one is another problem, whatever its id."""
    sample: int
    """Number of the completion, 0, 1, ..."""
    tokens: int
    """Length, end token included."""
    truncated: bool
    seed: int
    text: str | None = None
    """None = not kept."""
    completion_ids: Sequence[int] | None = None
    """As sampled, end token included; None = not kept."""
    status: Status | None = None
    """None = not verified yet; then the next fields say nothing."""
    reward: float = math.nan
    """NaN = could not be scored (null in the file)."""
    answer: str | None = None
    """As extracted; None where there is none or the verifier extracts none."""
    reason: str = ""
    """The rule that decided, or the error."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Of a composed reward, unweighted."""

    def judged(self, verdict: Verdict) -> Sample:
        """The same completion with what a verifier says of it."""
        return replace(
            self,
            status=verdict.status,
            reward=verdict.reward,
            answer=None if verdict.answer is None else str(verdict.answer),
            reason=str(verdict.reason),
            parts=verdict.parts,
        )


def schema() -> pa.Schema:
    """Columns of the file, one for each field; needs pyarrow."""
    import pyarrow as pa

    types = {
        "str": pa.string(),
        "int": pa.int64(),
        "float": pa.float64(),
        "bool": pa.bool_(),
        "Status": pa.string(),
        "Sequence[int]": pa.list_(pa.int32()),
        "Mapping[str, float]": pa.map_(pa.string(), pa.float64()),
    }
    return pa.schema([(item.name, types[str(item.type).removesuffix(" | None")]) for item in fields(Sample)])


def to_table(samples: Sequence[Sample]) -> pa.Table:
    """Samples as rows, in order; a NaN reward is null, which averages of other tools leave out.

    Example:
        >>> sample = Sample(
        ...     problem_id="p", problem_hash="h", sample=0, status="timeout", reward=float("nan"), answer="1",
        ...     tokens=3, truncated=False, seed=7, text=None,
        ... )
        >>> to_table([sample])["reward"].to_pylist(), from_table(to_table([sample]))[0].reward
        ([None], nan)
    """
    import pyarrow as pa

    rows = [asdict(sample) | ({"reward": None} if math.isnan(sample.reward) else {}) for sample in samples]
    return pa.Table.from_pylist(rows, schema=schema())


def from_table(table: pa.Table) -> list[Sample]:
    """The inverse of ``to_table``."""
    return [
        Sample(**row | {"reward": math.nan if row["reward"] is None else row["reward"], "parts": dict(row["parts"])})
        for row in table.to_pylist()
    ]


def votes(samples: Sequence[Sample]) -> Tensor:
    """What each sample says in a majority: 1 the correct answer, 0 nothing, else a number of its wrong answer.

    Unscored samples do not vote. Wrong answers are the same if they are so without white space and ``$``.

    Returns:
        int64 ``[B]``, below 2**53.

    Example:
        >>> from dataclasses import replace
        >>> right = Sample(
        ...     problem_id="p", problem_hash="h", sample=0, status="correct", reward=1.0, answer="1", tokens=3,
        ...     truncated=False, seed=7, text=None,
        ... )
        >>> wrong = [replace(right, status="wrong", answer=answer) for answer in ("$x + 1$", "x+1")]
        >>> votes([right, replace(right, status="timeout"), *wrong])
        tensor([               1,                0, 4245303963515040, 4245303963515040])
    """
    return torch.tensor([_vote(sample) for sample in samples], dtype=torch.int64)


def _vote(sample: Sample) -> int:
    if sample.status == "correct":
        return 1
    if sample.status != "wrong" or sample.answer is None:
        return 0
    return 2 + derive_seed("".join(sample.answer.replace("$", "").split())) % 2**52
