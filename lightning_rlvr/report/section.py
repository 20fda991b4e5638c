"""The parts of a report, before they become Markdown, HTML, LaTeX and CSV."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd
from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Numbers with a caption."""

    name: str
    """File name of the CSV, without suffix: lower-case snake case, unique in the report."""
    caption: str
    frame: pd.DataFrame
    """Written whole into the CSV; its index is left out, so what names the rows is a column."""
    formats: Mapping[str, str] = field(default_factory=dict)
    """By column, a format such as ``"{:+.2f}"`` for the page; NaN is shown as a dash. Others as they print."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Plot:
    """A figure with a caption; made with ``matplotlib.figure.Figure``, never with pyplot."""

    name: str
    caption: str
    figure: Figure


@dataclass(frozen=True, kw_only=True, eq=False)
class Section:
    """One question and what the runs say about it."""

    title: str
    text: tuple[str, ...] = ()
    """Paragraphs of Markdown (plain sentences, `code`, **strong**)."""
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    caveats: tuple[str, ...] = ()
    """What cannot be concluded from it, one sentence each; they are shown here and gathered at the end."""
