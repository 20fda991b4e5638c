"""Samples on disk: an evaluation that was interrupted, or that grows, goes on where it stopped."""

from __future__ import annotations

import itertools
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from filelock import FileLock, Timeout
from lightning.pytorch.strategies import Strategy

from lightning_rlvr.checks import require_package
from lightning_rlvr.evaluation.samples import Sample, from_table, schema, to_table
from lightning_rlvr.verify.base import Verdict

Key = tuple[str, int]
"""What tells samples apart: hash of the problem, number of the sample."""


class SampleStore:
    """The samples of one set under fixed conditions, in a folder of their own.

    ``settings.json`` holds the conditions and what ``finish`` adds. While the evaluation runs every ``add`` leaves one
    file in ``parts/``; at the end ``per_problem.parquet`` holds exactly the samples of the evaluation, so that whoever
    reads it finds the numbers of the table. What was sampled beyond that (more samples of a problem, other problems)
    stays in ``parts/`` for an evaluation that wants it. At no moment is there a sample that no file holds.

    Verdicts are no part of the conditions: whoever takes a sample from here has it judged anew, so that a verifier
    that was mended, or was down, costs no new sample.

    Use ``open``.
    """

    def __init__(self, path: Path, keep_text: bool, lock: FileLock | None) -> None:
        self.path = path
        self.keep_text = keep_text
        self._lock = lock
        self._run = secrets.token_hex(8)
        self._counter = itertools.count()
        found = (sample for file in self._files() for sample in _read(file) if sample.completion_ids is not None)
        self._done = {_key(sample): sample for sample in found}

    @classmethod
    def open(
        cls, parent: Path, name: str, conditions: Mapping[str, Any], *, keep_text: bool = True, lock: bool = True
    ) -> SampleStore:
        """The store with these conditions in ``<parent>/<name>``, ``<parent>/<name>.2``, ...; a new one if none has.

        Args:
            parent: Folder of all stores.
            name: Name of the set; what cannot be part of a folder name becomes ``_``.
            conditions: Plain values: all that a sample depends on, except problem and number.
            keep_text: Keep the completions of a finished evaluation, not only their verdicts.
            lock: Keep other processes out. The first rank opens with it; the others, which share the folder, open it
                afterwards without.

        Raises:
            ImportError: pyarrow is not installed.
            ValueError: Two names need the same folder, or a file is damaged.
            OSError: Another evaluation writes into the folder, or processes do not see the same folder.
        """
        require_package("pyarrow", "pyarrow", "data", "keeping samples of an evaluation")
        settings = {"name": name, "conditions": json.loads(json.dumps(conditions))}
        if not lock:
            path, known = _find(parent, settings)
            if not known:
                raise FileNotFoundError(
                    f"{str(path)!r} must be made by the first process and seen by all: is it on a file system that "
                    f"they share?"
                )
            return cls(path, keep_text, None)
        parent.mkdir(parents=True, exist_ok=True)
        with FileLock(parent / ".lock"):
            path, known = _find(parent, settings)
            path.mkdir(exist_ok=True)
            held = FileLock(path / ".lock")
            try:
                held.acquire(blocking=False)
            except Timeout as error:
                raise BlockingIOError(f"another evaluation writes into {str(path)!r}; wait until it ends") from error
            if not known:
                _write(path / "settings.json", _json(settings))
        return cls(path, keep_text, held)

    @property
    def done(self) -> Mapping[Key, Sample]:
        """Samples that need not be drawn, by (problem hash, sample number): found when opened, or added since.

        One whose completion was not kept cannot be verified again and is none of them.
        """
        return MappingProxyType(self._done)

    def add(self, samples: Sequence[Sample], rank: int = 0) -> None:
        """Keep new samples; they are on disk when this returns."""
        if samples:
            self._add_part(samples, rank)
            self._done |= {_key(sample): sample for sample in samples}

    def finish(self, problems: Sequence[tuple[str, str]], num_samples: int, verdicts: Mapping[Key, Verdict]) -> None:
        """Write the result of the evaluation, and unlock the folder; for the first rank, once all have added theirs.

        Args:
            problems: Id and hash of every problem, in order.
            num_samples: Samples of each problem.
            verdicts: What the verifier says of each.

        Raises:
            OSError: A sample is missing.
        """
        files = list(self._files())
        known = {_key(sample): sample for file in files for sample in _read(file)}
        wanted = [(name, (shown, number)) for name, shown in problems for number in range(num_samples)]
        missing = [(name, key) for name, key in wanted if key not in known]
        if missing:
            name, (_, number) = missing[0]
            raise FileNotFoundError(
                f"{len(missing)} of {len(wanted)} samples are missing in {str(self.path)!r}, the first is sample "
                f"{number} of problem {name!r}: the folder must be on a file system that all processes share"
            )
        result = [replace(known[key], problem_id=name).judged(verdicts[key]) for name, key in wanted]
        if not self.keep_text:
            result = [replace(sample, text=None, completion_ids=None) for sample in result]
        named = {key for _, key in wanted}
        others = [one for key, one in known.items() if key not in named and one.completion_ids is not None]
        if others:
            self._add_part(others, rank=0)
        _write(self._result, _parquet(result))
        for file in files:
            if file != self._result:
                file.unlink()
        if not others and self._parts.exists():
            shutil.rmtree(self._parts)
        sizes = {"num_problems": len(problems), "num_samples": num_samples}
        _write(self.path / "settings.json", _json(_settings(self.path) | sizes))
        self.close()

    def close(self) -> None:
        """Unlock the folder; a process that ends does so in any case."""
        if self._lock is not None:
            self._lock.release()

    @property
    def _parts(self) -> Path:
        return self.path / "parts"

    @property
    def _result(self) -> Path:
        return self.path / "per_problem.parquet"

    def _files(self) -> Iterator[Path]:
        if self._result.exists():
            yield self._result
        yield from sorted(self._parts.glob("*.parquet"))

    def _add_part(self, samples: Sequence[Sample], rank: int) -> None:
        self._parts.mkdir(exist_ok=True)
        _write(self._parts / f"{rank:04d}-{self._run}-{next(self._counter):06d}.parquet", _parquet(samples))


def open_stores(
    strategy: Strategy, parent: Path, names: Sequence[str], conditions: Mapping[str, Any], *, keep_text: bool
) -> dict[str, SampleStore]:
    """One store for each set; a collective call: the first rank makes and locks the folders."""
    first = strategy.is_global_zero
    if not first:
        strategy.barrier()
    stores = {name: SampleStore.open(parent, name, conditions, keep_text=keep_text, lock=first) for name in names}
    if first:
        strategy.barrier()
    return stores


def _key(sample: Sample) -> Key:
    return sample.problem_hash, sample.sample


def _find(parent: Path, settings: Mapping[str, Any]) -> tuple[Path, bool]:
    """The folder with these settings, or the first that is free; and whether it has them."""
    folder = re.sub(r"[^\w.+=-]+", "_", settings["name"]).lstrip(".") or "_"
    path, number = parent / folder, 1
    while any((path / name).exists() for name in ("settings.json", "parts", "per_problem.parquet")):
        known = _settings(path)
        if known["name"] != settings["name"]:
            raise ValueError(
                f"the sets {known['name']!r} and {settings['name']!r} need the same folder {str(path)!r}; rename one"
            )
        if known["conditions"] == settings["conditions"]:
            return path, True
        number += 1
        path = parent / f"{folder}.{number}"
    return path, False


def _settings(path: Path) -> dict[str, Any]:
    file = path / "settings.json"
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
        return {key: settings[key] for key in ("name", "conditions")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(file, error) from error


def _read(file: Path) -> list[Sample]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file, page_checksum_verification=True) as opened:
            table = opened.read()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _damaged(file, error) from error
    if table.schema != schema():
        raise _damaged(file, f"columns are {', '.join(table.schema.names)}")
    return from_table(table)


def _damaged(file: Path, reason: object) -> ValueError:
    return ValueError(f"{str(file)!r} cannot be read ({reason}); restore it, or move its folder away to start anew")


def _parquet(samples: Sequence[Sample]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(to_table(samples), sink, compression="zstd", write_page_checksum=True)
    return bytes(sink.getvalue())


def _json(settings: Mapping[str, Any]) -> bytes:
    return (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()


def _write(file: Path, data: bytes) -> None:
    """All of the file or nothing, whenever the process or the machine stops."""
    unfinished = file.with_suffix(".unfinished")
    with unfinished.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    unfinished.replace(file)
