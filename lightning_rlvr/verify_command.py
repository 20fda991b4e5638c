"""`rlvr verify`: what a verifier says about one completion, or about every row of a file."""

from __future__ import annotations

import json
import math
import os
import sys
from argparse import Action, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from jsonargparse import DefaultHelpFormatter
from typing_extensions import override

from lightning_rlvr.json_rows import read_json_rows
from lightning_rlvr.messages import ExplainedErrors, explained
from lightning_rlvr.registry import with_class_paths
from lightning_rlvr.verify.base import STATUSES, VERIFIERS, Attempt, Verdict, Verifier

_DESCRIPTION = r"""Shows what a verifier makes of a completion: the verdict, the reward, the answer that it read and
the rule that decided. The exit status is 0 whatever the verdict.

    rlvr verify '\frac{1}{2}' 'So it is \boxed{0.5}.'
    rlvr verify --verifier numeric --verifier.rtol 0.01 3.14 'Answer: 22/7'
    rlvr verify --verifier function --verifier.function my_package.rewards.short 12 'It is 12.'
    rlvr verify -- '-\sqrt{2}' '\boxed{-1.41}'

Single quotes keep the shell from reading backslashes and dollar signs; `--` comes before a text that begins with a
minus sign (and after all settings).

    rlvr verify samples.jsonl > judged.jsonl

reads one JSON object a line, with the columns `gold` and `pred` (the completion). Columns `truncated` (true where the
completion was cut off) and `completion_ids` count too, and any other reaches the verifier (`choices`, `tolerance`,
...). Every row is written with `status`, `reward` (null: no score), `answer` and `reason`, in place of its own columns
of these names, and a composed reward with its `parts`; a row whose gold cannot be read has the status error. A last
line on standard error counts the statuses.
"""
_BATCHES = 16, 256
"""Rows of the first batch and at most, doubling between: there is output soon, and what was judged outlives Ctrl-C."""


class _Formatter(RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Keeps the line breaks of the examples, and adds nothing to what the help says."""

    @override
    def _get_help_string(self, action: Action) -> str:
        return action.help or ""


def verify_command(args: Sequence[str]) -> None:
    """Judge one completion, or the rows of a file, and print what was found.

    Args:
        args: The command line after ``rlvr verify``.

    Raises:
        ValueError: Bad arguments, settings or file; the message names what was expected.

    Example:
        >>> verify_command(["--verifier", "exact", "7", "Answer: 8"])
        status  wrong
        reward  0
        answer  8
        ...
    """
    verifier, gold, completion, truncated = _parsed(args)
    if completion is not None:
        attempt = _attempt({"gold": gold, "pred": completion, "truncated": truncated})
        [verdict] = _judged(verifier, [attempt])
        lines = _shown(verdict)
        width = max(map(len, lines))
        print("\n".join(f"{name:<{width}}  {value}" for name, value in lines.items()))  # noqa: T201  # the output
        return
    file = Path(gold)
    if not (file.suffix.lower() == ".jsonl" and file.is_file()):
        raise ValueError(f"give a gold answer and a completion, or an existing .jsonl file; got only {gold!r}")
    if truncated:
        raise ValueError("`--truncated` is for a completion on the command line; a file has a column `truncated`")
    _judge_file(verifier, file)


def _parsed(args: Sequence[str]) -> tuple[Verifier, str, str | None, bool]:
    names = ", ".join(VERIFIERS)
    parser = ExplainedErrors(prog="rlvr verify", description=_DESCRIPTION, formatter_class=_Formatter)
    parser.add_argument("gold", type=str, help="The gold answer; or, alone, a JSON Lines file.")
    parser.add_argument("completion", type=str, nargs="?", help="What a model wrote.")
    parser.add_argument("--truncated", action="store_true", help="The completion was cut off.")
    parser.add_subclass_arguments(
        Verifier, "verifier", help=f"Short name ({names}), class path or YAML file; by default math."
    )
    parser.set_defaults({"verifier": {"class_path": "lightning_rlvr.verify.math.MathVerifier"}})
    try:
        settings = parser.parse_args(with_class_paths(args, {"--verifier": VERIFIERS}))
        verifier = parser.instantiate(settings).verifier
    except ValueError as error:
        hint = "; a text that begins with a minus sign comes after `--`"
        raise ValueError(explained(str(error)) + hint * ("unrecognized arguments: -" in str(error))) from error
    return verifier, settings.gold, settings.completion, settings.truncated


def _shown(verdict: Verdict) -> dict[str, str]:
    record = _recorded(verdict)
    lines = record | {f"reward of {name}": reward for name, reward in record.pop("parts", {}).items()}
    return {name: _text(value) for name, value in lines.items()}


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else " ".join(str(value).split())


def _judge_file(verifier: Verifier, file: Path) -> None:
    counts: Counter[str] = Counter()
    rows = _rows(file)
    size, most = _BATCHES
    while batch := list(islice(rows, size)):
        size = min(2 * size, most)
        verdicts = _judged(verifier, [_attempt(row) for row in batch])
        counts.update(verdict.status for verdict in verdicts)
        records = [row | _recorded(verdict) for row, verdict in zip(batch, verdicts, strict=True)]
        try:
            sys.stdout.writelines(json.dumps(record, allow_nan=False) + "\n" for record in records)
            sys.stdout.flush()
        except BrokenPipeError:  # `| head` has seen enough; nor shall the interpreter complain at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
    shares = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
    print(f"{counts.total()} rows: {shares or 'none'}", file=sys.stderr)  # noqa: T201  # the command's output


def _recorded(verdict: Verdict) -> dict[str, Any]:
    record = {
        "status": verdict.status,
        "reward": _or_null(verdict.reward),
        "answer": verdict.answer,
        "reason": verdict.reason,
    }
    parts = {name: _or_null(reward) for name, reward in verdict.parts.items()}
    return record | ({"parts": parts} if parts else {})


def _or_null(reward: float) -> float | None:
    return None if math.isnan(reward) else reward


def _judged(verifier: Verifier, attempts: Sequence[Attempt]) -> list[Verdict]:
    """What the verifier says; ``error`` where it could not read the row itself."""
    complaints = verifier.check_rows([attempt.columns for attempt in attempts])
    sound = [attempt for attempt, complaint in zip(attempts, complaints, strict=True) if complaint is None]
    verdicts = iter(verifier.verify(sound))
    return [
        next(verdicts) if complaint is None else Verdict(status="error", reward=math.nan, reason=complaint)
        for complaint in complaints
    ]


def _attempt(row: Mapping[str, Any]) -> Attempt:
    return Attempt(
        prompt=str(row.get("prompt", "")),
        completion=row["pred"],
        completion_ids=tuple(row.get("completion_ids", ())),
        truncated=row.get("truncated", False),
        columns={**row, "answer": row["gold"]},
    )


_KINDS = {"pred": (str, "text"), "truncated": (bool, "true or false"), "completion_ids": (list, "a list")}


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    for where, row in read_json_rows(file):
        for name in ("gold", "pred"):
            if name not in row:
                raise ValueError(f"{where} has no column {name!r}; got {', '.join(row) or 'none'}")
        for name, (kind, expected) in _KINDS.items():
            if name in row and not isinstance(row[name], kind):
                raise ValueError(f"{where}: `{name}` must be {expected}, got {row[name]!r}")
        yield row
