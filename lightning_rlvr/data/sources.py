"""Where problems come from: generators, files and hub data sets."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal, InvalidOperation
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from lightning.pytorch.utilities import rank_zero_warn
from typing_extensions import override

from lightning_rlvr.checks import require, require_choice, require_package
from lightning_rlvr.data.templates import PromptTemplate
from lightning_rlvr.functional.random import derive_seed
from lightning_rlvr.json_rows import read_json_rows
from lightning_rlvr.tasks import sums
from lightning_rlvr.verify.base import VERIFIERS, Verifier

if TYPE_CHECKING:
    from datasets import Dataset

Split = Literal["train", "val", "test"]

_OPTIONS = ("choices", "options")
"""Columns that are part of the question where a row has them."""
_NOT_READ = frozenset({".arrow", ".csv", ".gz", ".pkl", ".tar", ".tsv", ".txt", ".xlsx", ".yaml", ".zip", ".zst"})
"""Suffixes of data files that are not read: such a path is no hub id either."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One problem with all that is known about it."""

    id: str
    """Stable over runs, unique over all tasks."""
    problem: str
    """What is asked, as text."""
    columns: Mapping[str, Any]
    """Its record: `answer` and whatever else its verifier or template reads."""
    task: str


class ProblemSource(ABC):
    """Problems of one task, with the verifier that scores them.

    Args:
        task: Name of the task, for logs.
        verifier: A verifier or its short name.
        template: How these problems are shown; by default as the data module says.
    """

    def __init__(self, task: str, verifier: Verifier | str, template: PromptTemplate | None = None) -> None:
        self.task = task
        self.verifier = VERIFIERS.build(verifier)
        self.template = template

    @abstractmethod
    def load(self, split: Split, seed: int) -> list[Problem]:
        """The problems of a split, the same for the same ``seed``.

        Args:
            split: `train`, `val` for held-out problems, or `test` for a benchmark.
            seed: Data seed; other seeds give unrelated draws or splits.

        Raises:
            ValueError: The settings or the data are unusable; the message names setting, row and column.
        """

    @property
    def cleaning(self) -> Mapping[str, int]:
        """What was read and what ``load`` left out of it, counted by reason; nothing where all was taken."""
        return {}


class ReasoningGymSource(ProblemSource):
    """Problems that a reasoning-gym data set generates.

    Args:
        dataset: Name of the data set.
        size: Number of training problems.
        val_size: Number of held-out problems.
        settings: Difficulty and other settings of the data set.
        task: Name of the task; by default that of the data set.
        verifier: A verifier or its short name.
        template: How these problems are shown; by default as the data module says.

    Raises:
        ImportError: reasoning-gym is not installed.
    """

    def __init__(
        self,
        dataset: str = "chain_sum",
        size: int = 2048,
        val_size: int = 128,
        settings: dict[str, Any] | None = None,
        task: str | None = None,
        verifier: Verifier | str = "reasoning_gym",
        template: PromptTemplate | None = None,
    ) -> None:
        super().__init__(task or dataset, verifier, template)
        require_package("reasoning_gym", "reasoning-gym", "data", type(self).__name__)
        self.dataset = dataset
        self.size = size
        self.val_size = val_size
        self.settings = dict(settings or {})

    @override
    def load(self, split: Split, seed: int) -> list[Problem]:
        from reasoning_gym.factory import DATASETS, create_dataset

        if self.dataset not in DATASETS:
            raise ValueError(f"unknown `dataset` {self.dataset!r}; choices: {', '.join(sorted(DATASETS))}")
        # item i of seed s is made from Random(s + i): near seeds would share their items
        first = derive_seed("reasoning_gym", self.dataset, seed, split) % 2**31
        size = self.val_size if _held_out(split) else self.size
        try:
            items = list(create_dataset(self.dataset, seed=first, size=size, **self.settings)) if size else []
        except (TypeError, AssertionError) as error:
            names = ", ".join(f.name for f in fields(DATASETS[self.dataset][1]) if f.name not in {"seed", "size"})
            raise ValueError(f"`settings` of {self.dataset} do not fit ({error}); choices: {names}") from error
        return [
            Problem(id=f"{self.task}/{seed}/{split}/{i}", problem=item["question"], columns=item, task=self.task)
            for i, item in enumerate(items)
        ]


class SumsSource(ProblemSource):
    """Sums of two terms with worked solutions; needs no package and no download.

    Args:
        size: Number of training problems.
        val_size: Number of held-out problems.
        max_term: Largest term.
        task: Name of the task.
        verifier: A verifier or its short name.
        template: How these problems are shown; by default as the data module says.

    Example:
        >>> SumsSource(size=1).load("train", seed=0)[0].columns["answer"].isdigit()
        True
    """

    def __init__(
        self,
        size: int = 2048,
        val_size: int = 128,
        max_term: int = 99,
        task: str = "sums",
        verifier: Verifier | str = "exact",
        template: PromptTemplate | None = None,
    ) -> None:
        super().__init__(task, verifier, template)
        self.size = size
        self.val_size = val_size
        self.max_term = max_term

    @override
    def load(self, split: Split, seed: int) -> list[Problem]:
        if split == "test":  # a benchmark is a draw of its own, whatever is trained on
            records = sums.generate(f"{seed}:test", self.val_size, max_term=self.max_term)
        else:  # one draw without replacement, so that the splits are disjoint
            both = sums.generate(seed, self.size + self.val_size, max_term=self.max_term)
            records = both[self.size :] if _held_out(split) else both[: self.size]
        return [
            Problem(id=f"{self.task}/{row['problem']}", problem=row["problem"], columns=dict(row), task=self.task)
            for row in records
        ]


class DatasetSource(ProblemSource):
    """Rows of a JSON Lines, JSON or Parquet file, of a folder, or of a data set on the Hugging Face hub.

    Rows that repeat a problem (and its `choices` or `options`) with the same answer, white space aside, count once;
    problems that occur with different answers are left out, with a warning. A benchmark keeps every row, as papers
    count them. Rows keep all their own columns beside those that `columns` names.

    Args:
        path: File (`.jsonl`, `.json`, `.parquet`), folder or hub id.
        columns: Our names to theirs; dots lead into nested values, as in `reward_model.ground_truth` or
            `prompt.0.content`. By default `{problem: problem, answer: answer}`; `id` and what the verifier or the
            template reads may be added. Only problem, answer and id may not be null.
        name: Configuration of a hub data set.
        split: Split of the data set; a single file has only `train`.
        held_out: Rows that are kept for validation, drawn by data seed: a fraction below 1 or a whole number of rows.
            With 0 all rows belong to whichever split is asked for, and to a benchmark those that repeat others too.
        limit: Read only so many rows.
        problem_pattern: Regular expression that the whole text of a problem must match; its first group becomes the
            problem. Strips a prompt template that is part of the data.
        drop: Leave out problems in which this regular expression finds something.
        task: Name of the task; by default the name of file, folder or hub data set.
        verifier: A verifier or its short name.
        template: How these problems are shown; by default as the data module says.

    Raises:
        ValueError: `columns` lacks `problem`, `held_out` or `limit` is out of range, or a regular expression is none.
    """

    def __init__(
        self,
        path: str,
        columns: dict[str, str] | None = None,
        name: str | None = None,
        split: str = "train",
        held_out: float = 0,
        limit: int | None = None,
        problem_pattern: str | None = None,
        drop: str | None = None,
        task: str | None = None,
        verifier: Verifier | str = "math",
        template: PromptTemplate | None = None,
    ) -> None:
        super().__init__(task or Path(path).stem, verifier, template)
        self.path = path
        self.columns = {"problem": "problem", "answer": "answer"} if columns is None else dict(columns)
        self.name = name
        self.split = split
        self.held_out = held_out
        self.limit = limit
        self.problem_pattern = problem_pattern
        self.drop = drop
        self._counts: Mapping[str, int] = {}
        if "problem" not in self.columns:
            raise ValueError(f"`columns` must say which column is `problem`, got {', '.join(self.columns) or 'none'}")
        countable = 0 <= held_out < 1 or (held_out >= 1 and held_out % 1 == 0)
        require(countable, "held_out", "a fraction below 1 or a whole number of rows", held_out)
        require(limit is None or limit >= 1, "limit", "at least 1", limit)
        _groups("drop", drop or "")
        grouped = problem_pattern is None or _groups("problem_pattern", problem_pattern) > 0
        require(grouped, "problem_pattern", "a regular expression with a group for the problem", problem_pattern)

    @override
    def load(self, split: Split, seed: int) -> list[Problem]:
        whole = split == "test" and not self.held_out
        problems, self._counts = self._cleaned(distinct=False) if whole else self._distinct
        if not problems:
            raise ValueError(f"`path` must hold at least one problem, got none in {self.path!r}")
        held_out = round(self.held_out if self.held_out >= 1 else self.held_out * len(problems))
        if held_out >= len(problems):
            raise ValueError(f"`held_out` must leave a problem to train on, got {held_out} of {len(problems)}")
        if not _held_out(split) or held_out:
            last = set(shuffled(len(problems), derive_seed("held_out", self.task, seed))[:held_out])
            problems = [problem for i, problem in enumerate(problems) if (i in last) == _held_out(split)]
        return problems

    @property
    @override
    def cleaning(self) -> Mapping[str, int]:
        return self._counts

    @cached_property
    def _distinct(self) -> tuple[list[Problem], Mapping[str, int]]:
        return self._cleaned(distinct=True)

    def _cleaned(self, distinct: bool) -> tuple[list[Problem], Mapping[str, int]]:
        """Distinct problems, or those of all rows; rows read, repetitions, and problems left out for each reason."""
        counts = {"rows": 0}
        first: dict[str | int, Problem] = {}
        conflicting = set()
        for number, row in self._rows(counts, distinct):
            problem = self._problem(number, row)
            key = normalized(problem) if distinct else number
            known = first.setdefault(key, problem)
            if _comparable(known.columns.get("answer")) != _comparable(problem.columns.get("answer")):
                conflicting.add(key)
        unwanted = re.compile(self.drop or r"(?!)")
        dropped = {key for key, problem in first.items() if unwanted.search(problem.problem)}
        if conflicting := conflicting - dropped:
            rank_zero_warn(f"{self.path!r} gives {len(conflicting)} problems with different answers: left out")
        kept = [problem for key, problem in first.items() if key not in conflicting | dropped]
        if len({problem.id for problem in kept}) < len(kept):
            raise ValueError(
                f"`columns` maps `id` to {self.columns['id']!r}, whose values must differ from row to row"
            )
        counts |= {"repeated": counts["rows"] - len(first), "dropped": len(dropped), "conflicting": len(conflicting)}
        return kept, counts

    def _rows(self, counts: dict[str, int], distinct: bool) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Rows with their numbers, all of them counted; of a table only the first of those that agree, if distinct."""
        rows = _stored(self.path, self.name, self.split)
        if isinstance(rows, Iterator):
            for number, row in enumerate(islice(rows, self.limit), start=1):
                counts["rows"] = number
                yield number, row
            return
        rows = rows.select(range(min(len(rows), self.limit or len(rows))))
        counts["rows"] = len(rows)
        compared = [self.columns["problem"], self.columns.get("answer", "answer")]
        present = {name: name for name in rows.column_names} | self.columns
        compared += [present[name] for name in _OPTIONS if name in present]
        chosen = _first_occurrences(rows, compared) if distinct else range(len(rows))
        yield from zip((number + 1 for number in chosen), rows.select(chosen), strict=True)

    def _problem(self, number: int, row: Mapping[str, Any]) -> Problem:
        mapped = {ours: _look_up(row, theirs, self.path, number) for ours, theirs in self.columns.items()}
        text = mapped["problem"]
        if not isinstance(text, (str, int, float, type(None))):
            raise ValueError(
                f"row {number} of {self.path!r}: `problem` must be text, got {type(text).__name__}; "
                f"dots lead into nested values, as in `problem: {self.columns['problem']}.0.content`"
            )
        if self.problem_pattern is not None and text is not None:
            match = re.fullmatch(self.problem_pattern, str(text))
            if match is None or match[1] is None:
                start = str(text)[:60]
                raise ValueError(f"row {number} of {self.path!r} does not match `problem_pattern`: {start!r}...")
            mapped["problem"] = text = match[1]
        for ours in ("problem", "answer", "id"):
            if mapped.get(ours, "") is None or (ours == "problem" and not str(text).strip()):
                raise ValueError(f"row {number} of {self.path!r} has no {ours} (column {self.columns[ours]!r})")
        return Problem(
            id=f"{self.task}/{mapped.get('id', number)}",
            problem=str(text),
            columns={**row, **mapped},
            task=self.task,
        )


def normalized(problem: Problem) -> str:
    """The problem's text, its choices included, white space aside: what makes two problems the same.

    Example:
        >>> normalized(Problem(id="a", problem=" 1  + 2 ", columns={}, task="sums"))
        '1 + 2'
        >>> normalized(Problem(id="b", problem="1 + 2", columns={"choices": ["3", "4"]}, task="sums"))
        "1 + 2 ['3', '4']"
    """
    options = [problem.columns[name] for name in _OPTIONS if problem.columns.get(name) is not None]
    return " ".join(" ".join(map(str, [problem.problem, *options])).split())


def shuffled(size: int, seed: int) -> list[int]:
    """The numbers below ``size`` in an order that depends on ``seed`` alone.

    Example:
        >>> sorted(shuffled(4, seed=7))
        [0, 1, 2, 3]
    """
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed)).tolist()


def _held_out(split: str) -> bool:
    require_choice("split", get_args(Split), split)
    return split != "train"


def _comparable(answer: object) -> object:
    """What different answers differ in: neither white space, nor 14.0 and "014" and ["14"]."""
    if isinstance(answer, list) and len(answer) == 1:
        return _comparable(answer[0])
    text = "".join(str(answer).split())
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    return number if number.is_finite() else text


def _groups(name: str, pattern: str) -> int:
    try:
        return re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"`{name}` must be a regular expression, got {pattern!r}: {error}") from error


def _look_up(row: Mapping[str, Any], path: str, source: str, number: int) -> Any:
    if path in row:
        return row[path]
    value: Any = row
    for key in path.split("."):
        if value is None:
            return None
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            raise ValueError(
                f"row {number} of {source!r} has no column {path!r}, which `columns` names; got {', '.join(row)}"
            )
    return value


def _column(batch: Any, path: str) -> Iterator[str]:
    from pyarrow import compute, types

    top, *keys = [path] if path in batch.column_names else path.split(".")
    values = batch[top]
    for key in keys:
        nested = types.is_struct(values.type)
        values = compute.struct_field(values, key) if nested else compute.list_element(values, int(key))
    return map(str, values.to_pylist())


def _stored(path: str, name: str | None, split: str) -> Iterator[Mapping[str, Any]] | Dataset:
    file = Path(path)
    kind = file.suffix.lower()
    if kind not in {".jsonl", ".json", ".parquet"}:
        if not file.is_dir() and (file.is_file() or kind in _NOT_READ):
            raise ValueError(f"`path` must be a .jsonl, .json or .parquet file, a folder or a hub id, got {path!r}")
        return _dataset(path, name, split)
    if not file.is_file():
        raise ValueError(f"`path` must be an existing file, got {path!r}")
    if split != "train":
        raise ValueError(f"`split` must be train for a single file, got {split!r}")
    if name is not None:
        raise ValueError(f"`name` is for data sets on the hub, got {name!r} with the file {path!r}")
    if kind == ".parquet":
        return _dataset("parquet", None, split, data_files=path)
    return (row for _, row in read_json_rows(file))


def _first_occurrences(rows: Dataset, paths: Sequence[str]) -> list[int]:
    """Numbers of the rows whose values at ``paths`` no earlier row has; the columns are read as Arrow batches.

    A million rows take seconds that way, and minutes as Python objects.
    """
    from pyarrow import ArrowException

    first: dict[Any, int] = {}
    start = 0
    for batch in rows.with_format("arrow").iter(10_000):
        try:
            keys: Iterable[Any] = zip(*(_column(batch, path) for path in paths), strict=True)
        except (ArrowException, KeyError, ValueError):  # some row lacks it: whoever reads them all will name the row
            keys = range(start, start + len(batch))
        for number, key in enumerate(keys, start=start):
            first.setdefault(key, number)
        start += len(batch)
    return list(first.values())


def _dataset(path: str, name: str | None, split: str, **files: str) -> Dataset:
    require_package("datasets", "datasets", "data", f"reading {files.get('data_files', path)!r}")
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        return load_dataset(path, name, split=split, **files)
    except (OSError, ValueError, DatasetsError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"`path` {files.get('data_files', path)!r} (name {name}, split {split!r}) cannot be loaded: {reason}"
        ) from error
