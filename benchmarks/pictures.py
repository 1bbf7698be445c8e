"""The look of the benchmarks' pictures, and where they go: build/bench/NAME.png.

Colours are Okabe and Ito's, which people with colour-blindness can tell apart; lines and bars are
labelled where they are rather than in a legend. matplotlib is used without pyplot, so without a
display and without global state.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from benchmarks import report

BLUE = "#0072B2"
ORANGE = "#E69F00"
GREEN = "#009E73"
VERMILION = "#D55E00"
PURPLE = "#CC79A7"
SKY = "#56B4E9"
BLACK = "#222222"
GREY = "#8A8A8A"

_TEXT_POINTS = 11


def picture(
    columns: int = 1, *, rows: int = 1, width: float = 6.5, height: float = 4.5
) -> tuple[Figure, list[Axes]]:
    """An empty figure with rows of `columns` axes, each `width` x `height` inches."""
    layout = ConstrainedLayoutEngine(wspace=0.06)
    figure = Figure(figsize=(width * columns, height * rows), dpi=150, layout=layout)
    axes = [figure.add_subplot(rows, columns, number + 1) for number in range(rows * columns)]
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.spines[["left", "bottom"]].set_color(GREY)
        one.tick_params(colors=BLACK, labelsize=_TEXT_POINTS - 1)
        one.grid(True, color="#E6E6E6", linewidth=0.8)
        one.set_axisbelow(True)
    return figure, axes


def caption(axes: Axes, title: str, x: str, y: str) -> None:
    """Headline and axis labels."""
    axes.set_title(title, loc="left", fontsize=_TEXT_POINTS + 2, color=BLACK, pad=12)
    axes.set_xlabel(x, fontsize=_TEXT_POINTS, color=BLACK)
    axes.set_ylabel(y, fontsize=_TEXT_POINTS, color=BLACK)


def label(axes: Axes, x: Any, y: Any, text: str, color: str, **options: Any) -> None:
    """Names a line or a bar at (x, y), in its own colour; options are those of `annotate`."""
    options = {"xytext": (6, 0), "va": "center", "ha": "left", **options}
    axes.annotate(
        text,
        (x, y),
        textcoords="offset points",
        color=color,
        fontsize=_TEXT_POINTS,
        fontweight="bold",
        annotation_clip=False,
        **options,
    )


def labels(axes: Axes, x: Any, ends: Mapping[str, tuple[float, str]]) -> None:
    """Names lines that end at `x`, one above the other where they end close together.

    Args:
        axes: whose limits of y are set.
        x: where the lines end.
        ends: y and colour of each by name.
    """
    low, high = axes.get_ylim()
    inches = axes.get_position().height * axes.figure.get_figheight()
    a_point = (high - low) / (72 * inches)
    place = -math.inf
    for name, (y, color) in sorted(ends.items(), key=lambda end: end[1][0]):
        place = max(y, place + 1.3 * _TEXT_POINTS * a_point)
        label(axes, x, y, name, color, xytext=(6, (place - y) / a_point))


@dataclasses.dataclass(frozen=True)
class Bar:
    """A figure, what it is of, and its colour."""

    name: str
    value: float
    color: str


def bars(axes: Axes, groups: Sequence[Sequence[Bar]]) -> None:
    """Lying bars with their figures, from above in the order given, groups somewhat apart."""
    height = 0.0
    places, names = [], []
    for group in reversed(groups):
        for bar in reversed(group):
            axes.barh(height, bar.value, 0.8, color=bar.color)
            label(axes, bar.value, height, report.cell(bar.value), bar.color)
            places.append(height)
            names.append(bar.name)
            height += 1
        height += 0.6
    axes.set_yticks(places, names)
    axes.margins(x=0.15)


def save(figure: Figure, name: str, output: pathlib.Path = report.OUTPUT) -> pathlib.Path:
    """Writes the picture and returns its path."""
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"{name}.png"
    figure.savefig(path, facecolor="white")
    return path
