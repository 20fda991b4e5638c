"""Texts and verdicts of sampled rows, of some while others are still decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import NamedTuple, Self

from lightning_rlvr.types import PromptBatch
from lightning_rlvr.verify.base import Attempt, Verdict

Judge = Callable[[Sequence[str], Sequence[Attempt]], list[Verdict]]
"""The task of each attempt, the attempts -> verdicts in order."""


class SampledRow(NamedTuple):
    """A completion without its padding."""

    number: int
    """The place that it was asked for."""
    ids: tuple[int, ...]
    truncated: bool


def attempt(
    prompts: PromptBatch, prompt: int, text: str, ids: Sequence[int], *, truncated: bool, max_completion_length: int
) -> Attempt:
    """What a verifier is shown of a completion of one of the prompts."""
    return Attempt(
        prompt=prompts.prompts[prompt],
        completion=text,
        completion_ids=tuple(ids),
        truncated=truncated,
        max_completion_length=max_completion_length,
        columns=prompts.columns[prompt],
    )


class Verification:
    """Judges rows: in a thread of its own as they end, where their verifier allows that, and all others at the end.

    A row that the engine returns other than it told, because it decoded it again, is judged again.

    Args:
        judge: Attempts to verdicts.
        decode: Token ids to text.
        prompts: What is answered.
        prompt_index: The prompt of each row that is asked for.
        row_local: Tasks whose verifier judges an attempt by itself, in any thread.
        max_completion_length: The budget in tokens.

    Example:
        >>> import torch
        >>> mask = torch.ones(1, 1, dtype=torch.bool)
        >>> prompts = PromptBatch(
        ...     prompt_ids=mask.long(), prompt_mask=mask, evidence_mask=mask, task_id=torch.tensor([0]),
        ...     task_names=("sums",), problem_ids=("a",), prompts=("1+1=",), columns=({"answer": "2"},),
        ... )
        >>> def judge(tasks, attempts):
        ...     return [Verdict.of(attempt.completion == attempt.columns["answer"]) for attempt in attempts]
        >>> with Verification(
        ...     judge, lambda ids: "".join(map(str, ids)), prompts, [0, 0], row_local={"sums"}, max_completion_length=9
        ... ) as verification:
        ...     verification.finished([1], [[2]])
        ...     texts, verdicts = verification.complete([SampledRow(0, (7,), False), SampledRow(1, (2,), False)])
        >>> texts, [verdict.status for verdict in verdicts]
        (('7', '2'), ['wrong', 'correct'])
    """

    def __init__(
        self,
        judge: Judge,
        decode: Callable[[Sequence[int]], str],
        prompts: PromptBatch,
        prompt_index: Sequence[int],
        *,
        row_local: AbstractSet[str],
        max_completion_length: int,
    ) -> None:
        self._judge = judge
        self._decode = decode
        self._prompts = prompts
        self._prompt_index = prompt_index
        self._max_completion_length = max_completion_length
        tasks = prompts.task_id.tolist()
        self._tasks = [prompts.task_names[tasks[prompt]] for prompt in prompt_index]
        self._row_local = row_local
        self._told: set[SampledRow] = set()
        self._waiting: SimpleQueue[SampledRow] = SimpleQueue()
        self._known: dict[SampledRow, tuple[str, Verdict]] = {}
        self._thread = ThreadPoolExecutor(1, "verification")
        self._jobs: list[Future[None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=True)

    @property
    def wants_finished(self) -> bool:
        """Whether any row can be judged before the others."""
        return not self._row_local.isdisjoint(self._tasks)

    def finished(self, numbers: Sequence[int], ids: Sequence[Sequence[int]]) -> None:
        """Take rows that have ended, with their token ids; what is told twice is judged once."""
        for number, of_row in zip(numbers, ids, strict=True):
            row = SampledRow(number, tuple(of_row), truncated=False)
            if self._tasks[number] in self._row_local and row not in self._told:
                self._told.add(row)
                self._waiting.put(row)
        if not self._waiting.empty():
            self._jobs.append(self._thread.submit(self._judge_waiting))

    def complete(self, rows: Sequence[SampledRow]) -> tuple[tuple[str, ...], tuple[Verdict, ...]]:
        """Texts and verdicts of all rows, in their order; what the thread raised is raised here."""
        self._judge_waiting([row for row in rows if row not in self._told])
        for job in self._jobs:
            job.result()
        texts, verdicts = zip(*(self._known[row] for row in rows), strict=True)
        return texts, verdicts

    def _judge_waiting(self, others: Sequence[SampledRow] = ()) -> None:
        """All that wait, at once: a verifier has a price for each call, and shares work between equal answers."""
        rows = list(others)
        with suppress(Empty):
            while True:
                rows.append(self._waiting.get_nowait())
        if not rows:
            return
        texts = [self._decode(row.ids) for row in rows]
        verdicts = self._judge([self._tasks[row.number] for row in rows], list(map(self._attempt, rows, texts)))
        self._known.update(zip(rows, zip(texts, verdicts, strict=True), strict=True))

    def _attempt(self, row: SampledRow, text: str) -> Attempt:
        return attempt(
            self._prompts,
            self._prompt_index[row.number],
            text,
            row.ids,
            truncated=row.truncated,
            max_completion_length=self._max_completion_length,
        )
