"""The benchmark beside Horovod: its jobs' order and text, what it counts, what it reports."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.bench import horovod, horovod_place, report
from tests.bench.horovod_job import Job
from tests.bench.horovod_place import Place
from tests.bench.horovod_training import (
    ALONE,
    ALONE_TF_KERAS,
    HOROVOD,
    MIRRORED,
    STROM,
    WAYS,
    Traffic,
    Trained,
    Training,
)

NET_DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
    lo:     100       1    0    0    0     0          0         0      100       1    0    0
 port0:    2000      20    0    0    0     0          0         0      700       7    0    0
 port1:   30000     300    0    0    0     0          0         0        8       1    0    0
"""


def test_what_the_ports_receive_is_what_all_nodes_send(tmp_path: Path) -> None:
    path = tmp_path / "dev"
    path.write_text(NET_DEV)
    assert Traffic(("cat", os.fspath(path)), "port").sent_bytes() == 32_000
    assert Traffic(("cat", os.fspath(path)), "lo").sent_bytes() == 100


def test_a_job_travels_as_text() -> None:
    training = Training(epochs=2, traffic=Traffic(("cat", "/x"), "port"))
    job = Job(HOROVOD, training, master="spark://10.77.0.1:7077", address="10.77.0.1")
    assert Job.from_json(job.to_json()) == job
    outcome = Trained((1.5, 2.5), 5.0, 1000, 0.75)
    assert Trained.from_json(outcome.to_json()) == outcome


def test_every_round_has_every_way_on_every_line_and_the_lone_ones_once() -> None:
    jobs = horovod.all_jobs(list(WAYS), ["slow", "fast"])
    assert jobs == [
        *((line, way) for line in ("slow", "fast") for way in (STROM, HOROVOD, MIRRORED)),
        (horovod.NO_LINE, ALONE),
        (horovod.NO_LINE, ALONE_TF_KERAS),
    ]
    order = list(horovod.schedule(2, jobs))
    assert sorted(order[:8]) == sorted(order[8:]) == sorted(jobs)
    assert order[:8] != order[8:]


def test_a_baseline_that_fails_is_left_out_and_its_words_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(place: Place, way: str, training: Training) -> Trained:
        if way == HOROVOD:
            raise RuntimeError("Horovod ended with 1: no")
        return Trained((1.0,), 1.0, 5, 0.5)

    monkeypatch.setattr(Place, "run", run)
    monkeypatch.setattr(horovod, "available", lambda result: [STROM, HOROVOD, ALONE])
    result = report.Report("horovod", "Beside Horovod", tmp_path)
    outcomes = horovod.measure(result, Training(), 3, lines=False)
    assert {way: len(rounds) for way, rounds in outcomes[horovod.LOOPBACK].items()} == {STROM: 3}
    assert {way: len(rounds) for way, rounds in outcomes[horovod.NO_LINE].items()} == {ALONE: 3}
    (row,) = result.rows
    assert (row["name"], row["skipped"]) == ("Horovod, loopback", "Horovod ended with 1: no")


def test_the_report_holds_medians_and_what_is_sent_in_an_epoch(tmp_path: Path) -> None:
    def trained(seconds: float, megabytes: float) -> Trained:
        return Trained((seconds, seconds), 3 * seconds, int(megabytes * 1e6), 0.8)

    outcomes = {
        "100 Mbit/s": {
            STROM: [trained(4, 6), trained(100, 6), trained(5, 6)],
            HOROVOD: [trained(20, 600)] * 3,
        },
        horovod.NO_LINE: {ALONE: [trained(8, 0)] * 3},
    }
    result = report.Report("horovod", "Beside Horovod", tmp_path)
    horovod.add_rows(result, outcomes, Training(epochs=3, pictures=1000))
    horovod.draw(outcomes, Training(), tmp_path)
    own, other, alone = result.rows
    assert (own["seconds_an_epoch"], own["examples_per_s"], own["mb_an_epoch"]) == (5, 200, 2)
    assert (other["name"], other["mb_an_epoch"]) == (HOROVOD, 200)
    assert (alone["group"], "mb_an_epoch" in alone) == ("One process", False)
    (target,) = result.targets
    assert (target.name, target.value, target.met) == ("times_less_100_Mbit_s", 100, True)
    assert (tmp_path / "horovod.png").exists()


def test_a_job_on_this_machine_gives_its_outcome(tmp_path: Path) -> None:
    outcome = Place.loopback().run(ALONE, Training(epochs=1, pictures=64))
    assert len(outcome.epoch_seconds) == 1
    assert 0 < outcome.accuracy < 1


def test_a_job_that_fails_says_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_place, "ENVIRONMENT", Path(sys.prefix))
    with pytest.raises(RuntimeError, match=r"ended with 1:(.|\n)*KeyError: 'none such'"):
        Place.loopback().run("none such", Training())


def test_without_its_environment_the_report_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(horovod, "ENVIRONMENT", tmp_path)
    result = report.Report("horovod", "Beside Horovod", tmp_path)
    assert horovod.available(result) == [STROM, ALONE]
    assert [row["name"] for row in result.rows] == [MIRRORED, HOROVOD]
    assert ".ci/horovod/set-up" in json.dumps(result.rows)
