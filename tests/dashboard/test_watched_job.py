"""The present state of a job from what its runner hears, without clock, thread or socket."""

import dataclasses
import json
import math

import pytest

from keras_strom import errors
from keras_strom.dashboard.diagnosis import diagnose
from keras_strom.dashboard.history import History
from keras_strom.dashboard.metrics import open_metrics
from keras_strom.dashboard.watched_job import AWAY, ENDED, SILENT_SECONDS, WatchedJob
from keras_strom.job.worker_record import MAX_BYTES, LinkRecord, WorkerRecord
from tests.support import simulated_job

TRAINING = WorkerRecord(activity="training", fit=1, step_seconds=0.1, logs={"loss": 0.5})


def rows(job: WatchedJob, now: float) -> list[dict[str, object]]:
    snapshot = job.snapshot(now)
    return [dict(zip(snapshot["columns"], row, strict=True)) for row in snapshot["workers"]]


# ------------------------------------------------------------------ records


def test_a_record_is_read_as_it_was_written() -> None:
    record = simulated_job.record(3, 64, 17)
    assert WorkerRecord.parse(record.to_json()) == WorkerRecord.parse(
        WorkerRecord.parse(record.to_json()).to_json()
    )
    assert WorkerRecord.parse(record.to_json()).steps == record.steps


def test_a_loss_that_is_no_number_any_more_arrives_as_one_that_is_none() -> None:
    logs = {"loss": math.nan, "big": math.inf}
    read = WorkerRecord.parse(WorkerRecord(activity="training", logs=logs).to_json())
    assert math.isnan(read.logs["loss"])
    assert math.isinf(read.logs["big"])


def test_a_loss_that_grows_without_bound_arrives() -> None:
    logs = {"loss": 2.5e30, "most": 1e300}
    assert WorkerRecord.parse(WorkerRecord(activity="training", logs=logs).to_json()).logs == logs


def test_a_record_fits_into_a_pipe_however_much_is_logged() -> None:
    logs = {f"a metric with a long name {i:>90}": i / 7 for i in range(200)}
    links = [LinkRecord(peer=f"10.0.0.{i}:40000", sent=i / 3) for i in range(50)]
    line = WorkerRecord(activity="training", logs=logs, links=tuple(links)).to_json()
    assert len(line) < MAX_BYTES
    assert WorkerRecord.parse(line).logs


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        "nonsense",
        '{"activity": "dancing"}',
        '{"activity": "training", "steps": -1}',
        '{"activity": "training", "step_seconds": "fast"}',
        '{"activity": "training", "unknown": 1}',
        '{"activity": "training", "links": [[1]]}',
        '{"activity": "training", "density": 1e400}',
        '{"activity": "training", "steps": 1000000000000000000}',
        '{"activity": "' + "x" * MAX_BYTES + '"}',
    ],
)
def test_what_is_no_record_is_refused(line: str) -> None:
    with pytest.raises(errors.CorruptMessage):
        WorkerRecord.parse(line)


# ------------------------------------------------------------------ the state


def test_a_worker_starts_trains_goes_away_and_comes_again() -> None:
    job = WatchedJob("train.py", 2, now=0.0)
    job.started(1, "b", 0, now=0.5)
    assert job.snapshot(0.6)["activities"] == {"starting": 1}
    job.heard(1, TRAINING, now=1.0)
    assert rows(job, 1.1)[0]["activity"] == "training"
    job.left(1, AWAY, "worker 1 was killed by SIGKILL", now=2.0)
    job.heard(1, TRAINING, now=2.1)  # It was on its way.
    away = rows(job, 2.2)[0]
    assert away["activity"] == "away"
    assert (away["step_seconds"], away["fit"], away["logs"]) == (None, None, {"loss": 0.5})
    job.started(1, "c", 1, now=3.0)
    assert (rows(job, 3.1)[0]["activity"], rows(job, 3.1)[0]["attempt"]) == ("starting", 1)
    job.heard(1, TRAINING, now=4.0)
    job.left(1, ENDED, "worker 1 has ended", now=9.0)
    texts = [event[4] for event in job.snapshot(10.0)["events"]]
    assert texts == [
        "all workers (1) train: fit 1",
        "worker 1 was killed by SIGKILL",
        "worker 1 is started on c, for the 2nd time",
        "worker 1 trains on with the others",
        "worker 1 has ended",
    ]


def test_a_worker_that_says_nothing_is_shown_as_silent() -> None:
    job = WatchedJob("train.py", 1, now=0.0)
    job.heard(0, TRAINING, now=1.0)
    assert rows(job, 1.0 + SILENT_SECONDS)[0]["silent"] is None
    assert rows(job, 31.0)[0]["silent"] == 30


def test_what_a_worker_waits_for_is_an_event() -> None:
    job = WatchedJob("train.py", 1, now=0.0)
    job.heard(0, TRAINING, now=1.0)
    job.heard(0, WorkerRecord(activity="waiting", why="the master is lost"), now=2.0)
    job.heard(0, TRAINING, now=3.0)
    assert [event[4] for event in job.snapshot(4.0)["events"]] == [
        "all workers (1) train: fit 1",
        "worker 0 waits: the master is lost",
        "worker 0 goes on",
    ]


def test_events_that_a_reader_has_are_left_out() -> None:
    job = WatchedJob("train.py", 1, now=0.0)
    for number in range(5):
        job.event("runner", -1, f"event {number}", now=number)
    assert [event[0] for event in job.snapshot(5.0, after_event=3)["events"]] == [4, 5]


def test_the_masters_events_come_once() -> None:
    job = WatchedJob("train.py", 2, now=0.0)
    status = simulated_job.status(2)
    status["events"] = [{"rank": 1, "text": "worker 1 has joined"}]
    for now in (1.0, 2.0):
        job.master({**status, "events_total": 1}, now)
    assert [event[4] for event in job.snapshot(3.0)["events"]] == ["worker 1 has joined"]


def test_the_link_that_is_shown_leads_to_the_workers_parent() -> None:
    job = WatchedJob("train.py", 64, now=0.0)
    job.master(simulated_job.status(64), 0.0)
    for rank in range(64):
        record = simulated_job.record(rank, 64, 1)
        # A child: with `port` the first worker of every host has the same one.
        other = LinkRecord(peer="10.0.1.9:50000", round_trip=9.0)
        told = WorkerRecord(activity="training", links=(other, *record.links))
        job.heard(rank, WorkerRecord.parse(told.to_json()), 1.0)
    found = rows(job, 1.0)
    assert all(row["round_trip"] < 1.0 for row in found)  # type: ignore[operator]
    assert found[63]["parent"] == simulated_job.parent_of(63, 64)


def test_a_link_to_a_child_is_not_taken_for_the_one_to_the_parent() -> None:
    job = WatchedJob("train.py", 64, now=0.0)
    job.master(simulated_job.status(64), 0.0)
    child = LinkRecord(peer="10.0.0.9:40101", loss=0.3)
    parent = LinkRecord(peer="10.0.0.1:40101", round_trip=1e-3, to_parent=True)
    for rank, links in enumerate([(child, parent), (child,)]):
        job.heard(rank, dataclasses.replace(TRAINING, links=links), 1.0)
    assert [(row["loss"], row["round_trip"]) for row in rows(job, 1.0)[:2]] == [
        (0.0, 1e-3),
        (None, None),  # It waits for another parent.
    ]
    assert job.snapshot(1.0)["slow"] == []


def test_of_many_links_the_one_to_the_parent_is_told() -> None:
    links = [LinkRecord(peer=f"10.0.0.{i}:40101", to_parent=i == 49) for i in range(50)]
    record = WorkerRecord(activity="training", links=tuple(links))
    assert WorkerRecord.parse(record.to_json()).links[0] == links[49]


def test_all_checkpoints_are_counted_though_the_page_names_the_latest_alone() -> None:
    job = WatchedJob("train.py", 1, now=0.0)
    for number in range(25):
        job.checkpoint(f"/checkpoints/{number}", now=number)
    snapshot = job.snapshot(30.0)
    assert len(snapshot["checkpoints"]) < 25
    assert b"\nkeras_strom_checkpoints 25" in open_metrics(snapshot)


def test_the_state_of_a_thousand_workers_is_small_enough_to_be_sent_each_second() -> None:
    job = WatchedJob("train.py", 1000, now=0.0)
    job.master(simulated_job.status(1000), 0.0)
    for rank in range(1000):
        job.heard(rank, simulated_job.record(rank, 1000, 7), 1.0)
    text = json.dumps(job.snapshot(1.0, 1 << 60), separators=(",", ":"), allow_nan=False)
    assert len(text) < 350_000


# ------------------------------------------------------------------ history


def test_a_history_keeps_its_bound_and_its_ends() -> None:
    history = History(workers=2, moments=100)
    for second in range(10_000):
        history.note(float(second), {1: {"loss": 1.0 / (1 + second)}})
    found = history.of("loss", [0, 1])
    assert 40 <= len(found["times"]) < 100
    assert set(found["values"][0]) == {None}
    assert found["values"][1][0] == 1.0
    assert found["times"][-1] > 9_800


def test_a_value_that_comes_seldom_outlives_the_thinning() -> None:
    history = History(workers=1, moments=10)
    for second in range(40):
        history.note(float(second), {0: {"loss": 1.0, **({"val": 2.0} if second == 1 else {})}})
    assert 2.0 in history.of("val", [0])["values"][0]


def test_the_spread_of_many_workers_is_three_lines() -> None:
    history = History(workers=5)
    history.note(0.0, {rank: {"loss": float(rank)} for rank in range(5)})
    assert history.spread("loss")["values"] == [[0.0], [2.0], [4.0]]
    assert history.spread("unknown")["values"] == [[None], [None], [None]]


# ------------------------------------------------------------------ who is slow


def training(**figures: float) -> WorkerRecord:
    return WorkerRecord(activity="training", **figures)  # type: ignore[arg-type]


USUAL = {rank: training(step_seconds=0.1, input_seconds=0.01) for rank in range(5)}


def test_nobody_is_slow_where_all_are_alike() -> None:
    assert diagnose(USUAL, {}) == ()


@pytest.mark.parametrize(
    ("record", "cause", "word"),
    [
        (training(step_seconds=0.25, input_seconds=0.01), "compute", "computes slowly: 250 ms"),
        (training(step_seconds=0.25, input_seconds=0.16), "input", "160 ms of 250 ms"),
    ],
)
def test_a_slow_worker_is_told_with_its_cause(record: WorkerRecord, cause: str, word: str) -> None:
    (slow,) = diagnose({**USUAL, 3: record}, {})
    assert (slow.rank, slow.cause) == (3, cause)
    assert word in slow.words


def test_who_waits_for_the_slow_one_is_not_slow() -> None:
    waiting = {
        rank: training(step_seconds=0.25, waited_seconds=0.15, input_seconds=0.01)
        for rank in range(4)
    }
    (slow,) = diagnose({**waiting, 4: training(step_seconds=0.25, input_seconds=0.01)}, {})
    assert (slow.rank, slow.cause) == (4, "compute")


def test_who_has_no_time_of_its_own_has_others_told_as_slow() -> None:
    records = {
        0: training(step_seconds=3.0, waited_seconds=0.0),
        1: training(step_seconds=2.33, waited_seconds=2.9),
    }
    links = {1: LinkRecord(peer="m:1", round_trip=1e-3, queued=9.0)}
    (slow,) = diagnose(records, links)
    assert (slow.rank, slow.cause) == (0, "compute")


def test_a_line_that_takes_no_updates_is_told() -> None:
    alike = {rank: training(step_seconds=0.1, waited_seconds=0.05) for rank in range(3)}
    (slow,) = diagnose(alike, {1: LinkRecord(peer="m:1", round_trip=1e-3, queued=9.0)})
    assert (slow.rank, slow.cause) == (1, "network")
    assert "50% of its time" in slow.words


def test_a_line_that_loses_packets_is_told() -> None:
    links = {rank: LinkRecord(peer="m:1", round_trip=3e-4) for rank in range(5)}
    links[2] = LinkRecord(peer="m:1", round_trip=3e-4, loss=0.12)
    (slow,) = diagnose(USUAL, links)
    assert (slow.rank, slow.cause) == (2, "network")
    assert "12%" in slow.words


def test_a_line_with_a_long_round_trip_is_told() -> None:
    links = {rank: LinkRecord(peer="m:1", round_trip=1e-3) for rank in range(5)}
    links[0] = LinkRecord(peer="m:1", round_trip=0.08)
    (slow,) = diagnose(USUAL, links)
    assert (slow.rank, slow.cause) == (0, "network")
    assert "80 ms, the others' 1 ms" in slow.words


def test_all_that_wait_for_their_data_are_told_together() -> None:
    hungry = {rank: training(step_seconds=0.1, input_seconds=0.08) for rank in range(3)}
    (slow,) = diagnose(hungry, {})
    assert (slow.rank, slow.cause) == (-1, "input")


def test_the_first_steps_in_which_tensorflow_compiles_make_nobody_slow() -> None:
    first = WorkerRecord(activity="training", steps=1, step_seconds=4.0)
    assert diagnose({**USUAL, 1: first}, {}) == ()


def test_a_worker_that_validates_is_not_slow() -> None:
    validating = WorkerRecord(activity="validating", step_seconds=9.0)
    assert diagnose({**USUAL, 1: validating}, {}) == ()
