"""The picture of `demo.py`: test accuracy by epoch, and by what has gone over the network.

matplotlib is used without pyplot, so without a display. The colours are three of Okabe and Ito's,
which people with colour-blindness can tell apart, and every line is named where it ends.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

BLACK = "#222222"
GREY = "#8A8A8A"
COLORS = {"sharing": "#0072B2", "single_worker": "#D55E00", "no_communication": "#009E73"}


def draw(figures: Mapping[str, Any], titles: Mapping[str, str], path: pathlib.Path) -> None:
    """Writes the picture.

    Args:
        figures: those of build/demo.json.
        titles: what each way of `accuracy_by_epoch` is called.
        path: of the PNG file.
    """
    figure = Figure(figsize=(13, 5), dpi=130, layout="constrained")
    by_epoch, by_bytes = figure.subplots(1, 2, sharey=True)
    percent = {
        way: [100 * accuracy for accuracy in figures["accuracy_by_epoch"][way]] for way in titles
    }
    _draw_epochs(by_epoch, percent, titles)
    _draw_megabytes(by_bytes, percent, titles, figures)
    for axes in (by_epoch, by_bytes):
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(GREY)
        axes.tick_params(colors=BLACK, labelleft=True)
        axes.grid(True, color="#E6E6E6", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set_ylabel("test accuracy, %", fontsize=11)
    figure.savefig(path, facecolor="white")


def _draw_epochs(
    axes: Axes, percent: Mapping[str, Sequence[float]], titles: Mapping[str, str]
) -> None:
    axes.set_title("Accuracy by epoch", loc="left", fontsize=13, pad=12)
    axes.set_xlabel("epoch (all images once, by all workers together)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    for way, values in percent.items():
        axes.plot(range(1, len(values) + 1), values, "o-", color=COLORS[way], linewidth=2)
    axes.margins(y=0.08)
    heights = spread({way: values[-1] for way, values in percent.items()}, _line_height(axes))
    for way, values in percent.items():
        _name(axes, (len(values), heights[way]), f"{titles[way]} {values[-1]:.1f}", COLORS[way])


def _draw_megabytes(
    axes: Axes,
    percent: Mapping[str, Sequence[float]],
    titles: Mapping[str, str],
    figures: Mapping[str, Any],
) -> None:
    axes.set_title("Accuracy by megabytes on the wire", loc="left", fontsize=13, pad=12)
    axes.set_xlabel("megabytes, logarithmic (the other two send none)")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    color = COLORS["sharing"]
    megabytes = figures["megabytes_by_epoch"]["sharing"]
    axes.plot(megabytes, percent["sharing"], "o-", color=color, linewidth=2)
    last = (megabytes[-1], percent["sharing"][-1])
    _name(axes, last, f"{titles['sharing']}\n{last[0]:,.1f} MB in all", color)
    dense = figures["dense_bytes"] / 1e6
    first = dense / figures["epochs"]
    sent = f"{dense:,.0f}" if figures["epochs"] == 1 else f"{first:,.0f} to {dense:,.0f}"
    times = figures["compression"]
    axes.axvspan(first, dense, color="#EEEEEE", zorder=0)
    axes.text(
        (first * dense) ** 0.5,
        0.04,
        f"all-reduce:\n{sent} MB,\n{times:,.{0 if times >= 10 else 1}f} times\nas much",
        transform=axes.get_xaxis_transform(),
        ha="center",
        va="bottom",
        color=BLACK,
    )
    axes.set_xlim(min(megabytes[0], first) / 1.5, max(last[0], dense) * 1.5)


def _name(axes: Axes, place: tuple[float, float], text: str, color: str) -> None:
    axes.annotate(
        text,
        place,
        xytext=(9, 0),
        textcoords="offset points",
        va="center",
        color=color,
        fontsize=11,
        fontweight="bold",
        annotation_clip=False,
    )


def _line_height(axes: Axes) -> float:
    low, high = axes.get_ylim()
    return 0.06 * (high - low)


def spread(heights: Mapping[str, float], least: float) -> dict[str, float]:
    """Heights for labels that are at least `least` apart, in the order of those given."""
    placed: dict[str, float] = {}
    above = float("inf")
    for name in sorted(heights, key=lambda name: -heights[name]):
        above = placed[name] = min(heights[name], above - least)
    return placed
