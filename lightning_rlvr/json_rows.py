"""The rows of JSON and JSON Lines files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_json_rows(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file, read as they are asked for, each with its place for messages.

    A ``.jsonl`` file holds a value on each line, blank ones aside, any other file a single value, and a value is a row
    or a list of rows. NaN and infinite numbers, which are no JSON, become None.

    Args:
        file: UTF-8, with or without byte order mark.

    Raises:
        ValueError: The file is not UTF-8, not JSON, or holds something other than objects.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(folder, "a.jsonl")
        ...     _ = file.write_text('{"x": 1}' + chr(10) * 2 + '{"x": NaN}')
        ...     [(place.partition(" of ")[0], row) for place, row in read_json_rows(file)]
        [('line 1', {'x': 1}), ('line 3', {'x': None})]
    """
    lines = file.suffix.lower() == ".jsonl"
    with file.open("rb") as content:  # in text mode, other characters than the line feed would end a line too
        for number, line in enumerate(content if lines else [content.read()], start=1):
            place = f"line {number} of {str(file)!r}" if lines else repr(str(file))
            try:
                text = line.decode("utf-8-sig")
                value = json.loads(text, parse_constant=_finite, parse_float=_finite) if text.strip() else []
            except UnicodeDecodeError as error:
                raise ValueError(f"{place} must be UTF-8: {error}") from error
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{place} is not JSON: {error}") from error
            for row_number, row in enumerate(value if isinstance(value, list) else [value], start=1):
                where = place if lines else f"row {row_number} of {place}"
                if not isinstance(row, dict):
                    raise ValueError(f"{where} must be an object, got {type(row).__name__}")
                yield where, row


def _finite(number: str) -> float | None:
    value = float(number)
    return value if math.isfinite(value) else None
