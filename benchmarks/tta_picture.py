"""The picture of `make bench-time-to-accuracy`: accuracy against seconds, every run a line."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from benchmarks import pictures
from benchmarks.tta_curves import Compared, Curves, common_target, mean_seconds
from benchmarks.tta_plan import STEP_SECONDS
from benchmarks.tta_report import TITLES
from benchmarks.tta_training import HOROVOD, HOROVOD_FP16, MIRRORED, SILENT, STROM

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
    for place, one in enumerate(axes):
        one.sharex(axes[place - place % len(lines)])  # So that lines can be compared.
    for setting, curves in compared.items():
        row = rows.index((setting.task, setting.workers))
        column = lines.index(setting.line)
        panel = axes[row * len(lines) + column]
        panel.set_visible(True)
        _draw_curves(panel, curves)
        headline = f"{setting.line.name}, {setting.workers} workers"
        step = STEP_SECONDS.get((setting.task, setting.workers))
        headline += "" if step is None else f", steps of {step * 1e3:g} ms or more"
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
        "Each run of a seed is a curve, of means of three evaluations. keras-strom's are of the "
        "line itself;\nof the synchronous methods accuracy by steps was measured on an unlimited "
        "line, and the time of a step on this one.\nDotted: the accuracy that all reach; dots: "
        "when, on average.",
        fontsize=10,
        color=pictures.BLACK,
    )
    pictures.save(figure, name, output)


def _draw_curves(panel: Axes, curves: Curves) -> None:
    target = common_target(curves)
    panel.axhline(target, color=pictures.BLACK, linewidth=0.8, linestyle=":")
    highest = target
    for way, several in curves.items():
        color = COLORS[way]
        for curve in several:
            means = curve.running_means
            highest = max(highest, *means)
            panel.plot(curve.seconds, means, color=color, linewidth=1.2, alpha=0.8)
        panel.plot([mean_seconds(several, target)], [target], "o", color=color, zorder=4)
    panel.set_ylim(min(_LOWEST, target - 0.02), highest + 0.005)
    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.annotate(
        f"{target:.3f}",
        (0.01, target),
        xycoords=("axes fraction", "data"),
        va="bottom",
        fontsize=9,
        color=pictures.BLACK,
    )
