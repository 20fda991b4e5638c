"""`rlvr report`: the runs of a sweep as tables, plots and a page."""

from __future__ import annotations

import logging
from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

import rich
from rich.markup import escape
from rich.table import Table as RichTable

from lightning_rlvr.checks import require, require_package
from lightning_rlvr.messages import ExplainedErrors, explained

_DESCRIPTION = """Compares the arms of a sweep with its baseline, paired by seed, and writes what the runs show and
what they do not.

    rlvr report runs/credit_by_calibrator
    rlvr report runs/credit_by_calibrator --arms mcpo permuted --out docs/mcpo
    rlvr report runs/mine --baseline grpo

The folder is that of `rlvr sweep`, or one of runs laid out by hand (`rlvr fit ... --runs_dir runs/mine --name
grpo/seed_0 --data.data_seed 0`, then `rlvr test`). Of every arm and seed the newest finished run counts, with its
evaluation at the last step. Runs of one seed must share problems, order and sampling seeds: others are refused.

Written are report.html (one page, nothing else needed), report.md, table.tex, tables/*.csv, plots/*.png and *.pdf, and
hparams/ for `tensorboard --logdir`. A former report in the same place is replaced once the new one is complete.
"""
_PACKAGES = ("matplotlib", "pandas", "scipy", "statsmodels", "jinja2", "tabulate", "pyarrow")


def report_command(args: Sequence[str]) -> None:
    """Write the report of a sweep and print its verdicts.

    Args:
        args: The command line after ``rlvr report``.

    Raises:
        ValueError: Bad arguments, or runs that cannot be compared; the message says why.
        ImportError: A package of the extra ``report`` is missing.
    """
    parser = ExplainedErrors(prog="rlvr report", description=_DESCRIPTION, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="Folder of the sweep.")
    parser.add_argument("--baseline", type=str, help="Arm to compare with; by default the sweep's, or grpo.")
    parser.add_argument("--arms", type=str, nargs="+", help="Only these, beside the baseline.")
    parser.add_argument("--out", type=Path, help="Where to write; by default FOLDER/report.")
    parser.add_argument("--confidence", type=float, default=0.95, help="Level of intervals and tests (0.95).")
    try:
        settings = parser.parse_args(args)
    except ValueError as error:
        raise ValueError(explained(str(error))) from error
    require(0 < settings.confidence < 1, "--confidence", "between 0 and 1", settings.confidence)
    for package in _PACKAGES:
        require_package(package, package, "report", "rlvr report")
    from lightning_rlvr.report import (  # after the check that what they import is there
        compute,
        difficulty,
        hparams,
        length,
        overview,
        page,
        paired,
        pass_at_k,
        training,
    )
    from lightning_rlvr.report.loading import load

    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it warns of every run that was resumed
    results = load(settings.folder, settings.baseline, settings.arms)
    where = settings.out or settings.folder / "report"
    with page.replacing(where) as new:  # what is wrong with the folder is said before the work
        first = overview.summary(results, settings.confidence)
        parts = (paired, difficulty, pass_at_k, length, compute)
        topics = [*(part.section(results, settings.confidence) for part in parts), training.section(results)]
        sections = [first, *topics, overview.limits(topics), overview.origin(results, settings.folder, args)]
        page.write(f"Report: {results.name}", sections, new)
        hparams.write(results, new / "hparams")
    text, numeric = page.cells(first.tables[0])
    console = RichTable(box=None, title=results.name, title_justify="left", padding=(0, 1, 0, 0))
    for name in text:
        console.add_column(str(name), justify="right" if name in numeric else "left", overflow="fold")
    for row in text.itertuples(index=False, name=None):
        console.add_row(*map(escape, row))
    rich.print(console)
    for note in results.notes:
        rich.print(escape(f"Note: {note}"))
    print(where / page.REPORT)  # noqa: T201  # the command's output
