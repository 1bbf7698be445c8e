"""A job's present state in a terminal: `keras-strom status` and `keras-strom top`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keras_strom.dashboard.diagnosis import in_words

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_STYLES = {
    "training": "green",
    "validating": "blue",
    "waiting": "yellow",
    "away": "bold red",
    "failed": "bold red",
    "ended": "dim",
}
_NOTHING = "-"
_EVENTS = 5  # The latest, which a view shows.


def state_view(state: Mapping[str, Any], *, width: int, rows: int | None = None) -> Group:
    """All of a state that a terminal has room for.

    Args:
        state: of `WatchedJob.snapshot`.
        width: characters in a line; columns that matter least are left out first.
        rows: of workers, at most; those that are slow or away come first then. None = all.
    """
    from rich.console import Group
    from rich.text import Text

    activities = ", ".join(f"{count} {name}" for name, count in state["activities"].items())
    head = Text.assemble(
        (state["name"], "bold"),
        f"  {state['ended'] or activities or 'starting'}  ",
        (_clock(state["seconds"]), "dim"),
    )
    parts: list[Any] = [head]
    for one in state["slow"]:
        who = f"worker {one['rank']} " if one["rank"] >= 0 else ""
        parts.append(Text.assemble((f"{one['cause']:<8}", "yellow"), f"{who}{one['words']}"))
    parts.append(_table(state, width, rows))
    for _, seconds, _, _, text in state["events"][-_EVENTS:]:
        parts.append(Text.assemble((f"{_clock(seconds):>8}  ", "dim"), text))
    return Group(*parts)


# What a row tells, in the order of the columns, and how much each matters: the least goes first.
_Column = tuple[str, int, Callable[[Mapping[str, Any]], str]]
_COLUMNS: tuple[_Column, ...] = (
    ("worker", 99, lambda w: str(w["rank"])),
    ("does", 98, lambda w: w["activity"] + (f", silent {w['silent']} s" if w["silent"] else "")),
    ("epoch", 90, lambda w: f"{w['epoch']}/{w['epochs'] or '?'}" if w["epoch"] else _NOTHING),
    ("steps", 60, lambda w: _number(w["steps"])),
    ("step", 95, lambda w: _seconds(w["step_seconds"])),
    ("input", 94, lambda w: _seconds(w["input_seconds"])),
    ("waits", 93, lambda w: _seconds(w["waited_seconds"])),
    ("staleness", 70, lambda w: _number(w["staleness"])),
    ("density", 50, lambda w: _number(w["density"])),
    ("threshold", 30, lambda w: _number(w["threshold"])),
    ("residual", 20, lambda w: _number(w["residual_norm"])),
    ("sends", 75, lambda w: _rate(w["sent"])),
    ("receives", 55, lambda w: _rate(w["received"])),
    ("round trip", 76, lambda w: _seconds(w["round_trip"])),
    ("lost", 77, lambda w: _NOTHING if w["loss"] is None else f"{w['loss']:.1%}"),
    ("host", 65, lambda w: str(w["host"])),
)
_METRICS_MATTER = (92, 40)
_LEFT = ("does", "host")


def _table(state: Mapping[str, Any], width: int, rows: int | None) -> Table:
    from rich.table import Table
    from rich.text import Text

    workers = [dict(zip(state["columns"], row, strict=True)) for row in state["workers"]]
    slow = {one["rank"] for one in state["slow"]}
    shown = workers
    if rows is not None and len(workers) > rows:
        usual = ("training", "validating")
        odd = [w for w in workers if w["rank"] in slow or w["activity"] not in usual]
        others = [w for w in workers if w not in odd]
        shown = sorted([*odd, *others][:rows], key=lambda w: int(w["rank"]))
    columns = _columns(state["metrics"], shown, width)
    caption = f"{len(shown)} of {len(workers)} workers" if len(shown) < len(workers) else None
    table = Table(box=None, header_style="dim", pad_edge=False, caption=caption)
    for name, _ in columns:
        table.add_column(name, justify="left" if name in _LEFT else "right", no_wrap=True)
    for at, worker in enumerate(shown):
        styles = {
            "worker": "bold yellow" if worker["rank"] in slow else "",
            "does": _STYLES.get(worker["activity"], "dim"),
        }
        table.add_row(*(Text(texts[at], styles.get(name, "")) for name, texts in columns))
    return table


def _columns(
    metrics: Sequence[str], shown: Sequence[Mapping[str, Any]], width: int
) -> list[tuple[str, list[str]]]:
    """The columns for which there is room, with their texts."""
    of_metrics: list[_Column] = [
        (name, matters, functools.partial(_metric, name))
        for name, matters in zip(
            [one for one in metrics if one != "step seconds"], _METRICS_MATTER, strict=False
        )
    ]
    found = [
        (name, matters, [text(worker) for worker in shown])
        for name, matters, text in (*_COLUMNS[:7], *of_metrics, *_COLUMNS[7:])
    ]
    while sum(2 + max(map(len, (name, *texts))) for name, _, texts in found) - 2 > width:
        if len(found) < 3:
            break
        found.remove(min(found, key=lambda column: column[1]))
    return [(name, texts) for name, _, texts in found]


def _metric(name: str, worker: Mapping[str, Any]) -> str:
    return _number((worker["logs"] or {}).get(name))


def _number(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or _NOTHING
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _seconds(value: float | None) -> str:
    return _NOTHING if value is None else in_words(value) if value else "0"


def _rate(value: float | None) -> str:
    if value is None:
        return _NOTHING
    for unit, size in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B/s"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
