"""One look for all figures of a report: sizes, colours that stay apart in grey print, a line style per arm."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Neighbours differ in lightness, so that grey print and colour-blind readers tell them apart.
COLORS = ("#1b1b1b", "#e08214", "#2166ac", "#5aae61", "#8e0152", "#67a9cf", "#a6761d", "#7b6fb0")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (7, 2)))
MARKERS = "osD^vPX*"
WIDTH, HEIGHT = 5.2, 3.4
"""Inches of one panel."""


class Style(TypedDict):
    """Keyword arguments of ``Axes.plot`` that tell one arm from the others in all figures."""

    color: str
    linestyle: str | tuple[int, tuple[int, ...]]
    marker: str


def style(arm_index: int) -> Style:
    """Colour, line style and marker of an arm by its place in ``SweepResults.arms``: the baseline (0) is black, solid.

    Colour with line style tells 24 arms apart, colour with marker 64.

    Example:
        >>> style(0)
        {'color': '#1b1b1b', 'linestyle': '-', 'marker': 'o'}
        >>> style(8)
        {'color': '#1b1b1b', 'linestyle': '-.', 'marker': 's'}
    """
    return {
        "color": COLORS[arm_index % len(COLORS)],
        "linestyle": LINES[arm_index % len(LINES)],
        "marker": MARKERS[(arm_index + arm_index // len(COLORS)) % len(MARKERS)],
    }


def panels(
    columns: int, *, rows: int = 1, title: str = "", xlabel: str = "", ylabel: str = ""
) -> tuple[Figure, list[Axes]]:
    """An empty figure of panels, row by row, which share the y axis and its label.

    Example:
        >>> figure, panel = panels(3, ylabel="accuracy")
        >>> len(panel), panel[0].get_ylabel(), panel[1].get_ylabel()
        (3, 'accuracy', '')
    """
    size = WIDTH * (1 + 0.75 * (columns - 1)), HEIGHT * (1 + 0.9 * (rows - 1))
    figure = Figure(figsize=size, layout="constrained")
    axes = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
    for number, panel in enumerate(axes):
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color="#dddddd", linewidth=0.6)
        panel.set_axisbelow(True)
        panel.set_xlabel(xlabel)
        panel.set_ylabel("" if number % columns else ylabel)
    if title:
        figure.suptitle(title, fontsize="medium")
    return figure, axes


def legend(figure: Figure, panel: Axes) -> None:
    """The labels of one panel below the whole figure.

    Example:
        >>> figure, panel = panels(2)
        >>> _ = panel[0].plot([1, 2], label="grpo", **style(0))
        >>> legend(figure, panel[0])
        >>> [text.get_text() for text in figure.legends[0].get_texts()]
        ['grpo']
    """
    handles, labels = panel.get_legend_handles_labels()
    entry = 0.55 + 0.09 * max(map(len, labels))  # inches: the line, and a character of the default font
    columns = max(1, min(len(labels), int(figure.get_figwidth() / entry)))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def axes(*, title: str = "", xlabel: str = "", ylabel: str = "") -> tuple[Figure, Axes]:
    """An empty figure of one panel.

    Example:
        >>> figure, panel = axes(xlabel="k", ylabel="pass@k")
        >>> _ = panel.plot([1, 2], [0.3, 0.5], label="grpo", **style(0))
        >>> panel.get_xlabel()
        'k'
    """
    figure, (panel,) = panels(1, title=title, xlabel=xlabel, ylabel=ylabel)
    return figure, panel


def curve(
    panel: Axes,
    arm_index: int,
    label: str,
    x: npt.ArrayLike,
    mean: npt.ArrayLike,
    low: npt.ArrayLike,
    high: npt.ArrayLike,
    *,
    marked: bool = False,
) -> None:
    """An arm's line in its style over a band from ``low`` to ``high`` (none where they are NaN).

    Args:
        panel: To draw into.
        arm_index: As ``style`` takes it.
        label: In the legend.
        x: ``[N]``, as the next three.
        mean: The line.
        low: Lower end of the band.
        high: Upper end of the band.
        marked: Points are few and shown.

    Example:
        >>> _, panel = axes()
        >>> curve(panel, 0, "grpo", [1, 2], [0.3, 0.5], [0.2, 0.4], [0.4, 0.6])
        >>> panel.lines[0].get_label(), len(panel.collections)
        ('grpo', 1)
    """
    look = style(arm_index)
    [line] = panel.plot(x, mean, label=label, color=look["color"], linestyle=look["linestyle"])
    if marked:
        line.set(marker=look["marker"], markersize=4)
    panel.fill_between(x, low, high, color=look["color"], alpha=0.12, linewidth=0)


def log_axis(panel: Axes, values: npt.ArrayLike) -> None:
    """A logarithmic x axis with about six whole numbers on it.

    Example:
        >>> _, panel = axes()
        >>> log_axis(panel, [1, 32])
        >>> panel.get_xticks().tolist()
        [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    """
    ticks = np.unique(np.geomspace(np.min(values), np.max(values), 6).round())
    panel.set_xscale("log")
    panel.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
    panel.minorticks_off()
