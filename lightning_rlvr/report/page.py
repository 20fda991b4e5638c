"""Sections as files: Markdown, one HTML page that needs nothing else, LaTeX, CSV and plots."""

from __future__ import annotations

import base64
import io
import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib as mpl
import pandas as pd
from filelock import FileLock, Timeout
from jinja2 import Environment, PackageLoader
from markdown_it import MarkdownIt
from markupsafe import Markup

from lightning_rlvr.report.section import Plot, Section, Table

REPORT = "report.html"
_UNFINISHED = ".unfinished-"
_MARKDOWN = MarkdownIt("commonmark", {"html": False})
_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {character: f"${character}$" for character in "<>|"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
)


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A folder to write into; what it holds takes its place in ``folder`` when no error came up, else it vanishes.

    Args:
        folder: A new one, or that of a former report, whose files of other names are kept; what a killed process
            left unfinished is removed.

    Raises:
        ValueError: The folder holds something else, is a file, or another process is writing into it.

    Example:
        >>> with TemporaryDirectory() as parent:
        ...     for text in ("former", "latter"):
        ...         with replacing(Path(parent, "report")) as new:
        ...             _ = (new / REPORT).write_text(text)
        ...     Path(parent, "report", REPORT).read_text()
        'latter'
    """
    kept = [path.name for path in folder.iterdir() if not path.name.startswith(_UNFINISHED)] if folder.is_dir() else []
    if (folder.exists() and not folder.is_dir()) or (kept and REPORT not in kept):
        raise ValueError(f"`--out` must be a new folder or that of a former report, got {str(folder)!r}")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(folder / f"{_UNFINISHED}lock").acquire(blocking=False)
    except Timeout as error:
        raise ValueError(f"another process is writing a report into {str(folder)!r}") from error
    with lock:
        for path in folder.glob(f"{_UNFINISHED}*/"):
            shutil.rmtree(path)
        try:
            with TemporaryDirectory(dir=folder, prefix=_UNFINISHED) as name:
                yield Path(name)
                # the page first: whoever kills this here leaves the folder of a report
                for path in sorted(Path(name).iterdir(), key=lambda path: path.name != REPORT):
                    if (folder / path.name).is_dir():
                        shutil.rmtree(folder / path.name)
                    path.replace(folder / path.name)
        finally:
            (folder / f"{_UNFINISHED}lock").unlink()


def write(
    title: str,
    sections: Sequence[Section],
    folder: Path,
    latex: Collection[str] = ("paired", "by_seed", "differences_by_seed"),
) -> None:
    """Write ``report.md``, ``report.html``, ``table.tex``, ``tables/*.csv`` and ``plots/*.{png,pdf}``.

    Args:
        title: Of the page.
        sections: In order; names of tables and plots are unique.
        folder: Exists.
        latex: Names of the tables in ``table.tex``.

    Raises:
        ValueError: Two tables, or two plots, have the same name.
    """
    tables = [table for section in sections for table in section.tables]
    plots = [plot for section in sections for plot in section.plots]
    for kind, names in (("tables", [table.name for table in tables]), ("plots", [plot.name for plot in plots])):
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"names of {kind} must be unique, got {', '.join(sorted(twice))} more than once")
        (folder / kind).mkdir()
    for table in tables:
        table.frame.to_csv(folder / "tables" / f"{table.name}.csv", index=False)
    for plot in plots:
        for suffix in ("png", "pdf"):
            (folder / "plots" / f"{plot.name}.{suffix}").write_bytes(_drawn(plot, suffix))
    (folder / "report.md").write_text(_markdown(title, sections), encoding="utf-8")
    (folder / "table.tex").write_text("\n".join(to_latex(t) for t in tables if t.name in latex), encoding="utf-8")
    (folder / REPORT).write_text(_html(title, sections), encoding="utf-8")


def cells(table: Table) -> tuple[pd.DataFrame, list[str]]:
    """A table as it is shown: formatted, columns by their names, and which of them are numbers.

    Example:
        >>> frame = pd.DataFrame({"arm": ["a", "b"], "gain": [0.126, float("nan")]})
        >>> text, numeric = cells(Table(name="t", caption="", frame=frame, formats={"gain": "{:+.2f}"}))
        >>> text["gain"].tolist(), numeric
        (['+0.13', '-'], ['gain'])
    """
    shown = {
        str(name): ["-" if pd.isna(value) else table.formats.get(str(name), "{}").format(value) for value in column]
        for name, column in table.frame.items()
    }
    numeric = [str(name) for name, column in table.frame.items() if pd.api.types.is_numeric_dtype(column)]
    return pd.DataFrame(shown, dtype=object), numeric


def to_latex(table: Table) -> str:
    r"""A table for papers, in the manner of booktabs.

    Example:
        >>> frame = pd.DataFrame({"arm": ["ot_z"], "gain": [1.0]})
        >>> print(to_latex(Table(name="t", caption="In %.", frame=frame, formats={"gain": "{:.1f}"})))
        \begin{table}[t]
        \caption{In \%.}
        \label{tab:t}
        \begin{tabular}{lr}
        \toprule
        arm & gain \\
        \midrule
        ot\_z & 1.0 \\
        \bottomrule
        \end{tabular}
        \end{table}
        <BLANKLINE>
    """
    text, numeric = cells(table)
    caption = re.sub("`([^`]*)`", r"\\texttt{\1}", table.caption.replace("**", "").translate(_LATEX))
    layout = "".join("r" if name in numeric else "l" for name in text)
    escaped = text.map(lambda cell: cell.translate(_LATEX)).rename(columns=lambda name: name.translate(_LATEX))
    return escaped.to_latex(
        index=False, escape=False, column_format=layout, caption=caption, label=f"tab:{table.name}", position="t"
    )


def _markdown(title: str, sections: Sequence[Section]) -> str:
    parts = [f"# {_escaped(title)}"]
    for section in sections:
        parts += [f"## {section.title}", *section.text]
        for table in section.tables:
            text, numeric = cells(table)
            align = ["right" if name in numeric else "left" for name in text]
            escaped = text.map(_escaped).rename(columns=_escaped)
            rows = escaped.to_markdown(index=False, disable_numparse=True, colalign=align if len(text) else None)
            parts += [f"{table.caption} ([CSV](tables/{table.name}.csv))", rows]
        for plot in section.plots:
            parts += [f"![{plot.name}](plots/{plot.name}.png)", f"{plot.caption} ([PDF](plots/{plot.name}.pdf))"]
        parts.append("\n".join(f"- {caveat}" for caveat in section.caveats))
    return "\n\n".join(filter(None, parts)) + "\n"


def _escaped(text: str) -> str:
    """What Markdown shows as it is."""
    return re.sub(r"([\\`*<|])", r"\\\1", text)


def _html(title: str, sections: Sequence[Section]) -> str:
    environment = Environment(loader=PackageLoader("lightning_rlvr.report", "."), autoescape=True)
    environment.filters |= {"markdown": _paragraphs, "inline": _inline, "cells": cells, "svg": _svg}
    environment.globals["zip"] = zip
    return environment.get_template("page.html").render(title=title, sections=sections)


def _paragraphs(text: str) -> Markup:
    return Markup(_MARKDOWN.render(text))


def _inline(text: str) -> Markup:
    return Markup(_MARKDOWN.renderInline(text))


def _svg(plot: Plot) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(_drawn(plot, 'svg')).decode('ascii')}"


def _drawn(plot: Plot, suffix: str) -> bytes:
    """The same bytes for the same figure."""
    no_date = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(suffix)
    stream = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": plot.name}):
        plot.figure.savefig(stream, format=suffix, dpi=160, metadata=no_date)
    return stream.getvalue()
