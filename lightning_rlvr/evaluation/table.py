"""What ``rlvr test`` shows: the conditions as used, and a row of numbers for each set."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from lightning_rlvr.verify.base import UNSCORED

_MOST_KS = 3


def evaluation_table(results: Mapping[str, Mapping[str, float]], header: Mapping[str, Any]) -> Group:
    """Conditions and results, for a console of 100 columns; of ``pass@k`` and ``maj@k`` a few.

    Args:
        results: What ``EvaluationSummary.compute`` gave.
        header: The conditions as used, by name.

    Example:
        >>> from rich.console import Console
        >>> rates = dict.fromkeys(("truncated", "no_answer", "timeout", "error", "abstained"), 0.0)
        >>> result = {"accuracy": 0.25, "accuracy_se": 0.05, "length": 40.5, "length_p50": 38.0, "length_p90": 66.0,
        ...           "num_problems": 30.0, "num_samples": 1.0, **rates}
        >>> Console(width=100).print(evaluation_table({"sums": result}, {"temperature": 1.0, "stop_ids": [2]}))
        temperature 1.0, stop_ids [2]
        ...
        sums... 30... 25.0 (5.0)... 40... 38... 66... 0.0...
    """
    names = {name for row in results.values() for name in row}
    last_set = list(results)[-3] if "macro" in results else None
    passes, majorities = (sorted(int(n[len(p) :]) for n in names if n.startswith(p)) for p in ("pass@", "maj@"))
    table = Table(
        box=box.SIMPLE,
        padding=0,
        show_edge=False,
        caption="rates in percent; (se) is the standard error over problems; lengths in tokens",
        caption_justify="left",
    )
    table.add_column("set", overflow="fold")
    num_samples = max((row["num_samples"] for row in results.values()), default=0)
    for title in (
        "prob-\nlems",
        f"avg@{num_samples:g}\n(se)",
        *(f"pass\n@{k}" for k in passes[:_MOST_KS]),
        *(f"maj\n@{k}" for k in majorities[-1:]),
        *("length\nmean", "\np50", "\np90", "trun-\ncated", "no an-\nswer", "un-\nscored"),
    ):
        table.add_column(title, justify="right", no_wrap=True)
    for name, row in results.items():
        table.add_row(
            escape(name),
            f"{row['num_problems']:.0f}",
            f"{_percent(row['accuracy'])} ({_percent(row['accuracy_se'])})",
            *(_percent(row[f"pass@{k}"]) for k in passes[:_MOST_KS]),
            *(_percent(row[f"maj@{k}"]) for k in majorities[-1:]),
            *(f"{row[key]:.0f}" for key in ("length", "length_p50", "length_p90")),
            *(_percent(rate) for rate in (row["truncated"], row["no_answer"], sum(row[s] for s in UNSCORED))),
            end_section=name == last_set,
        )
    return Group(Text(", ".join(f"{name} {value}" for name, value in header.items())), table)


def _percent(rate: float) -> str:
    return "-" if math.isnan(rate) else f"{100 * rate:.1f}"
