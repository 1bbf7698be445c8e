"""The picture of `make bench-time-to-accuracy`: accuracy against seconds, every run a line."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from tests.bench import pictures
from tests.bench.tta_curves import Compared, Curves, common_target, mean_seconds
from tests.bench.tta_report import TITLES
from tests.bench.tta_training import HOROVOD, HOROVOD_FP16, MIRRORED, SILENT, STROM

COLORS: Mapping[str, str] = {
    STROM: pictures.ORANGE,
    HOROVOD: pictures.BLUE,
    HOROVOD_FP16: pictures.SKY,
    MIRRORED: pictures.PURPLE,
    SILENT: pictures.GREY,
}
#: Below this all are alike.
_LOWEST = 0.75


def draw(compared: Compared, name: str, output: pathlib.Path) -> None:
    """A row of panels for each task and number of workers, a column for each line."""
    if not compared:
        return
    rows = list(dict.fromkeys((setting.task, setting.workers) for setting in compared))
    lines = list(dict.fromkeys(setting.line for setting in compared))
    figure, axes = pictures.picture(len(lines), rows=len(rows), width=5.4, height=3.9)
    for one in axes:
        one.set_visible(False)
    for setting, curves in compared.items():
        row = rows.index((setting.task, setting.workers))
        column = lines.index(setting.line)
        panel = axes[row * len(lines) + column]
        panel.set_visible(True)
        _draw_curves(panel, curves)
        headline = f"{setting.line.name}, {setting.workers} workers"
        y = f"{TITLES[setting.task]}\ntest accuracy" if column == 0 else ""
        pictures.caption(panel, headline, "seconds of training" if row + 1 == len(rows) else "", y)
    ways = [way for way in COLORS if any(way in curves for curves in compared.values())]
    figure.legend(
        [Line2D([], [], color=COLORS[way], linewidth=3) for way in ways],
        ways,
        loc="outside upper center",
        ncols=len(ways),
        frameon=False,
    )
    figure.supxlabel(
        "A run of a seed is a line. keras-strom's are of the line itself; of the synchronous "
        "methods accuracy by steps was measured\non an unlimited line, and the time of a step on "
        "this one. Dotted: the accuracy that all reach; dots: when, on average.",
        fontsize=10,
        color=pictures.BLACK,
    )
    pictures.save(figure, name, output)


def _draw_curves(panel: Axes, curves: Curves) -> None:
    target = common_target(curves)
    panel.axhline(target, color=pictures.BLACK, linewidth=0.8, linestyle=":")
    for way, several in curves.items():
        for curve in several:
            panel.plot(curve.seconds, curve.accuracies, color=COLORS[way], linewidth=1.1, alpha=0.8)
        seconds = mean_seconds(several, target)
        panel.plot([seconds], [target], "o", color=COLORS[way], markersize=6, zorder=4)
    panel.set_xscale("log")
    top = max(max(curve.accuracies) for several in curves.values() for curve in several)
    panel.set_ylim(min(_LOWEST, target - 0.02), top + 0.005)
    panel.annotate(
        f"{target:.3f}",
        (1, target),
        xycoords=("axes fraction", "data"),
        ha="right",
        va="bottom",
        fontsize=9,
        color=pictures.BLACK,
    )
