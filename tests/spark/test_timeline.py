"""The timeline of a training: recorded, added up, saved and drawn."""

from __future__ import annotations

import builtins
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from keras_strom import errors
from keras_strom.spark.runner import timeline
from keras_strom.spark.runner.event import Event
from keras_strom.spark.runner.run_timeline import timeline_of
from keras_strom.spark.runner.timeline import DRIVER, Phase, Recorder, Timeline


class Clock:
    """Goes only when it is told to."""

    def __init__(self) -> None:
        self.seconds = 50.0

    def __call__(self) -> float:
        return self.seconds


def recorder(clock: Clock, worker: int = DRIVER) -> Recorder:
    return Recorder(worker, clock=clock, now=lambda: 1000.0 + clock())


def some() -> Timeline:
    return Timeline(
        (
            Phase(DRIVER, "export", 0.0, 2.0),
            Phase(0, "train", 2.0, 5.0),
            Phase(1, "train", 2.0, 4.0),
            Phase(1, "wait", 4.0, 5.0),
            Phase(0, "train", 5.0, 6.5),
        ),
        {(0, "train"): 10.0},
    )


def test_a_phase_ends_where_the_next_begins() -> None:
    clock = Clock()
    found = recorder(clock)
    found.enter("export")
    clock.seconds += 2
    found.enter("train")
    clock.seconds += 3
    found.leave()
    found.leave()
    assert found.timeline().phases == (
        Phase(DRIVER, "export", 0.0, 2.0),
        Phase(DRIVER, "train", 2.0, 5.0),
    )


def test_a_phase_is_noted_if_it_fails() -> None:
    clock = Clock()
    found = recorder(clock)
    with contextlib.suppress(KeyError), found.phase("export"):
        clock.seconds += 2
        raise KeyError
    assert found.timeline().totals() == {DRIVER: {"export": 2.0}}


def test_what_a_worker_does_between_two_phases_is_waiting() -> None:
    clock = Clock()
    driver = recorder(clock)
    driver.enter("train")
    for begin in (60.0, 70.0):
        worker = recorder(clock, worker=3)
        clock.seconds = begin
        with worker.phase("train"):
            clock.seconds += 4
        driver.add(worker.phases)
    driver.leave()
    assert driver.timeline().totals() == {
        DRIVER: {"train": 24.0},
        3: {"train": 8.0, "wait": 6.0},
    }


def test_more_phases_than_are_kept_still_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "_MOST_PHASES", 3)
    found = Recorder()
    found.add(Phase(0, "train", float(second), second + 1.0) for second in range(10))
    assert len(found.timeline().phases) == 3
    assert found.timeline().totals() == {0: {"train": 10.0}}


def test_totals_are_sums_by_worker_and_phase() -> None:
    assert some().totals() == {
        DRIVER: {"export": 2.0},
        0: {"train": 14.5},
        1: {"train": 2.0, "wait": 1.0},
    }


def test_json_gives_the_timeline_back() -> None:
    text = some().to_json()
    assert Timeline.from_json(text) == some()
    assert json.loads(text)["totals"]["worker 1"] == {"train": 2.0, "wait": 1.0}
    for wrong in ("{}", "[]", "nothing", '{"version": 9}'):
        with pytest.raises(errors.InvalidData, match="timeline"):
            Timeline.from_json(wrong)


def test_json_is_a_trace_that_perfetto_opens(tmp_path: Path) -> None:
    some().save(tmp_path / "fit.json")
    trace = json.loads((tmp_path / "fit.json").read_text())
    assert next(iter(trace)) == "traceEvents"
    events = trace["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}
    for event in events:
        assert {"name", "pid", "tid"} <= set(event)
        assert event["ph"] == "M" or min(event["ts"], event["dur"]) >= 0
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sorted(names.values()) == ["driver", "worker 0", "worker 1"]
    shown = [
        (names[event["tid"]], event["name"], event["ts"], event["dur"])
        for event in events
        if event["ph"] == "X"
    ]
    assert shown[:2] == [("driver", "export", 0.0, 2e6), ("worker 0", "train", 2e6, 3e6)]
    assert len(shown) == len(some().phases)


def test_a_timeline_that_was_saved_before_it_was_a_trace_still_loads() -> None:
    value = json.loads(some().to_json())
    before = {name: value[name] for name in ("version", "totals", "left_out", "phases")}
    assert Timeline.from_json(json.dumps(before)) == some()


def test_a_timeline_is_saved_as_figures_and_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    some().save(tmp_path / "fit")
    assert Timeline.from_json((tmp_path / "fit.json").read_text()) == some()
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")
    some().save(tmp_path / "fit.svg")
    picture = (tmp_path / "fit.svg").read_text()
    assert "<svg" in picture
    Timeline(()).save(tmp_path / "empty.svg")
    with pytest.raises(errors.InvalidOption, match=r"\.json"):
        some().save(tmp_path / "fit.txt")


def test_without_matplotlib_the_error_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(errors.InvalidOption, match="matplotlib is not installed"):
        some().save(tmp_path / "fit.png")
    some().save(tmp_path / "fit.json")


def happened(*events: tuple[float, str, int]) -> list[Event]:
    return [Event(seconds, kind, rank, "") for seconds, kind, rank in events]


def test_a_worker_of_a_run_waits_starts_trains_and_runs_on() -> None:
    found = timeline_of(
        happened(
            (1.0, "registered", 0),
            (2.0, "registered", 1),
            (2.0, "started", 0),
            (2.0, "started", 1),
            (5.0, "master: joined", 0),
            (6.0, "master: joined", 1),
            (6.5, "master: started", -1),
            (9.0, "master: ended", -1),
            (10.0, "ended", 0),
            (11.0, "ended", 1),
        ),
        start_seconds=2.0,
        seconds=12.0,
    )
    assert found.totals() == {
        DRIVER: {"start": 2.0, "run": 10.0},
        0: {"wait": 2.5, "start": 3.0, "train": 2.5, "run": 1.0},
        1: {"wait": 0.5, "start": 4.0, "train": 2.5, "run": 2.0},
    }


def test_a_worker_that_was_lost_is_away_and_trains_on() -> None:
    found = timeline_of(
        happened(
            (1.0, "started", 0),
            (2.0, "master: joined", 0),
            (3.0, "master: started", -1),
            (4.0, "lost", 0),
            (4.1, "master: lost", 0),
            (6.0, "registered", 0),
            (6.0, "restarted", 0),
            (7.0, "master: joined", 0),
            (7.5, "master: rejoined", 0),
            (8.0, "started", 1),  # Comes late, and joins nobody.
            (9.0, "master: ended", -1),
        ),
        start_seconds=1.0,
        seconds=10.0,
    )
    assert [(phase.name, phase.begin) for phase in found.phases if phase.worker == 0] == [
        ("start", 1.0),
        ("wait", 2.0),
        ("train", 3.0),
        ("away", 4.0),
        ("start", 6.0),
        ("wait", 7.0),
        ("train", 7.5),
        ("run", 9.0),
    ]
    assert found.totals()[1] == {"run": 2.0}
