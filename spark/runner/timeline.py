"""When did which worker do what in a training: collected on the way, shown as a picture or a trace.

Each process notes its own phases with a `Recorder`; the driver adds the workers' to its own and
makes a `Timeline` of all. A phase begins by the clock of the machine that it ran on, so phases of
different machines stand as well beside each other as those clocks agree; how long one took is
exact.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from keras_strom import errors

if TYPE_CHECKING:
    import os

#: Stands where a worker's rank would.
DRIVER = -1
#: What lies between two phases of a worker.
WAIT = "wait"

_VERSION = 1
# Beyond so many, phases still count in the totals but are not kept one by one.
_MOST_PHASES = 20_000
_SHORTEST_WAIT_SECONDS = 1e-3
_MICROSECONDS = 1e6
_TRACE_PROCESS = 1
_PICTURES = (".png", ".svg", ".pdf")


@dataclasses.dataclass(frozen=True)
class Phase:
    """One thing that one process did.

    Attributes:
        worker: its rank; `DRIVER` for the driver.
        name: what it did ("export", "start", "read", "train", "evaluate", "wait", ...).
        begin, end: in seconds; since the epoch in a `Recorder`, since the training's begin in a
            `Timeline`.
    """

    worker: int
    name: str
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.begin


class Recorder:
    """Notes phases; what a worker does between two of them is waiting.

    Args:
        worker: whose phases are noted here; those of others can be added.
        clock: seconds that only grow.
        now: seconds since the epoch.

    Example:
        >>> recorder = Recorder()
        >>> with recorder.phase("export"):
        ...     pass
        >>> [phase.name for phase in recorder.phases]
        ['export']
    """

    def __init__(
        self,
        worker: int = DRIVER,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.phases: list[Phase] = []
        #: Seconds of the phases that were too many to be kept, by worker and name.
        self.left_out: dict[tuple[int, str], float] = collections.defaultdict(float)
        self._worker = worker
        self._clock = clock
        # A clock that is set while a training runs must not tear a phase apart.
        self._epoch = now() - clock()
        self._open: tuple[str, float] | None = None
        self._last: dict[int, float] = {}

    def enter(self, name: str) -> None:
        """Begins a phase, and ends the one before."""
        self.leave()
        self._open = name, self._epoch + self._clock()

    def leave(self) -> None:
        """Ends the phase that has begun, if there is one."""
        if self._open is not None:
            name, begin = self._open
            self._open = None
            self.add([Phase(self._worker, name, begin, self._epoch + self._clock())])

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Notes a block as a phase, also if it fails."""
        self.enter(name)
        try:
            yield
        finally:
            self.leave()

    def add(self, phases: Iterable[Phase]) -> None:
        """Takes over phases, each worker's in their order."""
        for phase in phases:
            last = self._last.get(phase.worker)
            if (
                phase.worker != DRIVER
                and last is not None
                and phase.begin - last > _SHORTEST_WAIT_SECONDS
            ):
                self._keep(Phase(phase.worker, WAIT, last, phase.begin))
            self._keep(phase)
            self._last[phase.worker] = phase.end

    def timeline(self) -> Timeline:
        """All phases so far."""
        begin = min((phase.begin for phase in self.phases), default=0.0)
        moved = [
            dataclasses.replace(phase, begin=phase.begin - begin, end=phase.end - begin)
            for phase in self.phases
        ]
        return Timeline(tuple(moved), dict(self.left_out))

    def _keep(self, phase: Phase) -> None:
        if len(self.phases) < _MOST_PHASES:
            self.phases.append(phase)
        else:
            self.left_out[phase.worker, phase.name] += phase.seconds


@dataclasses.dataclass(frozen=True)
class Timeline:
    """What driver and workers did, and when: `StromModel.timeline`, `RunResult.timeline`.

    Attributes:
        phases: one by one, the first 20000.
        left_out: the seconds of those beyond that, by worker and name.

    Example:
        >>> timeline = Timeline((Phase(DRIVER, "export", 0.0, 2.0), Phase(0, "train", 2.0, 5.0)))
        >>> timeline.totals()[0]
        {'train': 3.0}
        >>> timeline.save("build/fit")  # doctest: +SKIP
    """

    phases: tuple[Phase, ...]
    left_out: Mapping[tuple[int, str], float] = dataclasses.field(default_factory=dict)

    def totals(self) -> dict[int, dict[str, float]]:
        """Seconds of each kind of phase, by worker (`DRIVER` for the driver)."""
        found: dict[int, dict[str, float]] = {}
        seconds = [((phase.worker, phase.name), phase.seconds) for phase in self.phases]
        for (worker, name), one in [*seconds, *self.left_out.items()]:
            of_worker = found.setdefault(worker, {})
            of_worker[name] = of_worker.get(name, 0.0) + one
        return dict(sorted(found.items()))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the timeline to files.

        Args:
            path: ends with ".json" for the figures, which Perfetto and Chrome open as a trace, with
                ".png", ".svg" or ".pdf" for the picture; without an ending both are written, as
                PATH.json and PATH.png.

        Raises:
            InvalidOption: another ending, or a picture where matplotlib is missing.
        """
        file = pathlib.Path(path)
        if file.suffix == "":
            self.save(file.with_name(file.name + ".json"))
            self.save(file.with_name(file.name + ".png"))
        elif file.suffix == ".json":
            file.write_text(self.to_json() + "\n")
        elif file.suffix in _PICTURES:
            self._draw(file)
        else:
            raise errors.InvalidOption(
                f"path={str(path)!r} must end with .json, {', '.join(_PICTURES)} or nothing"
            )

    def to_json(self) -> str:
        """The figures, as a JSON object of the Trace Event Format; `from_json` reads them.

        The events are what Perfetto shows; all other keys are to that format metadata.
        """
        value = {
            # First, where every reader of the format finds it.
            "traceEvents": self._trace_events(),
            "displayTimeUnit": "ms",
            "version": _VERSION,
            "totals": {_name_of(worker): names for worker, names in self.totals().items()},
            "left_out": [[*key, seconds] for key, seconds in self.left_out.items()],
            "phases": [dataclasses.asdict(phase) for phase in self.phases],
        }
        return json.dumps(value, indent=1)

    def _trace_events(self) -> list[dict[str, Any]]:
        """A thread for the driver and each worker, and a complete event (X) for each phase."""
        names: dict[str, Any] = {"ph": "M", "pid": _TRACE_PROCESS}
        events = [names | {"name": "process_name", "tid": 0, "args": {"name": "keras-strom"}}]
        for worker in self.totals():
            thread = names | {"tid": _thread_of(worker)}
            events += [
                thread | {"name": "thread_name", "args": {"name": _name_of(worker)}},
                thread | {"name": "thread_sort_index", "args": {"sort_index": _thread_of(worker)}},
            ]
        events += [
            {
                "ph": "X",
                "name": phase.name,
                "cat": "driver" if phase.worker == DRIVER else "worker",
                "pid": _TRACE_PROCESS,
                "tid": _thread_of(phase.worker),
                "ts": round(phase.begin * _MICROSECONDS, 3),
                "dur": round(max(phase.seconds, 0.0) * _MICROSECONDS, 3),
            }
            for phase in self.phases
        ]
        return events

    @classmethod
    def from_json(cls, text: str) -> Timeline:
        """The timeline that `to_json` wrote, of this release or one before it was a trace.

        Raises:
            InvalidData: it is something else.
        """
        try:
            value: dict[str, Any] = json.loads(text)
            if value["version"] != _VERSION:
                raise ValueError(f"version {value['version']}")
            return cls(
                tuple(Phase(**phase) for phase in value["phases"]),
                {(worker, name): seconds for worker, name, seconds in value["left_out"]},
            )
        except (KeyError, TypeError, ValueError) as error:
            raise errors.InvalidData(f"no timeline of version {_VERSION}: {error}") from error

    def _draw(self, file: pathlib.Path) -> None:
        """A row for the driver and each worker, a colour for each kind of phase."""
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise errors.InvalidOption(
                f"{file.name} would be a picture, and matplotlib is not installed: pip install "
                "'keras-strom[bench]', or save the figures as .json"
            ) from error
        totals = self.totals()
        rows = {worker: row for row, worker in enumerate(totals)}
        names = list(dict.fromkeys(phase.name for phase in self.phases))
        figure = Figure(figsize=(12, 1.5 + 0.4 * len(rows)), layout="constrained")
        axes = figure.subplots()
        for name in names:
            colour = "lightgray" if name == WAIT else f"C{names.index(name) % 10}"
            of_all = sum(one.get(name, 0.0) for one in totals.values())
            label = f"{name}, {of_all:.1f} s"
            for worker, row in rows.items():
                spans = [
                    (phase.begin, phase.seconds)
                    for phase in self.phases
                    if (phase.worker, phase.name) == (worker, name)
                ]
                if spans:
                    axes.broken_barh(spans, (row - 0.4, 0.8), facecolors=colour, label=label)
                    label = "_"  # Stands in the legend already.
        axes.set_yticks(list(rows.values()), [_name_of(worker) for worker in rows])
        axes.invert_yaxis()
        axes.set_xlabel("seconds")
        if names:
            figure.legend(loc="outside upper center", ncols=min(len(names), 6))
        figure.savefig(file, dpi=150)


def _thread_of(worker: int) -> int:
    """Its number in a trace: the driver's is 1, for 0 stands for none there."""
    return worker + 2


def _name_of(worker: int) -> str:
    return "driver" if worker == DRIVER else f"worker {worker}"
