"""The benchmark beside Horovod: its jobs' order and text, what it counts, what it reports."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from benchmarks import horovod, horovod_place, report
from benchmarks.horovod_job import Job
from benchmarks.horovod_place import Place
from benchmarks.horovod_training import (
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
from benchmarks.processes import wait_for

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
    training = Training(steps=20, judged=False, traffic=Traffic(("cat", "/x"), "port"))
    job = Job(HOROVOD, training, master="spark://10.77.0.1:7077", address="10.77.0.1")
    assert Job.from_json(job.to_json()) == job
    for outcome in (Trained(9, 1.5, 1000.5, 0.75), Trained(9, 1.5, 0.0, None)):
        assert Trained.from_json(outcome.to_json()) == outcome


def test_the_slowest_worker_speaks_for_all() -> None:
    workers = [Trained(9, seconds, 5.0, 0.8) for seconds in (0.1, 0.3, 0.2)]
    assert Trained.slowest(workers) is workers[1]


def test_slow_ways_take_fewer_steps_and_are_not_judged() -> None:
    assert horovod.training_of("1 Gbit/s", HOROVOD, 468) == Training(steps=468, judged=True)
    assert horovod.training_of(horovod.SLOW, STROM, 468) == Training(steps=468, judged=True)
    assert horovod.training_of(horovod.SLOW, HOROVOD, 468) == Training(steps=100, judged=False)
    assert horovod.training_of(horovod.SLOW, HOROVOD, 20) == Training(steps=20, judged=False)
    assert horovod.training_of(horovod.NO_LINE, ALONE, 468) == Training(steps=150, judged=False)


@pytest.mark.parametrize("steps", ["10", "469"])
def test_too_few_or_too_many_steps_are_refused(
    steps: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        horovod.main(["--steps", steps])
    assert f"--steps={steps}: more than 10, and no more than 468" in capsys.readouterr().err


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
        return Trained(9, 1.0, 5.0, 0.5)

    monkeypatch.setattr(Place, "run", run)
    monkeypatch.setattr(horovod, "available", lambda result: [STROM, HOROVOD, ALONE])
    result = report.Report("horovod", "Beside Horovod", tmp_path)
    outcomes = horovod.measure(result, 468, 3, lines=False)
    assert {way: len(rounds) for way, rounds in outcomes[horovod.LOOPBACK].items()} == {STROM: 3}
    assert {way: len(rounds) for way, rounds in outcomes[horovod.NO_LINE].items()} == {ALONE: 3}
    (row,) = result.rows
    assert (row["name"], row["skipped"]) == ("Horovod, loopback", "Horovod ended with 1: no")


def test_the_report_holds_medians_of_the_rounds(tmp_path: Path) -> None:
    def trained(seconds: float, megabytes: float, accuracy: float | None = 0.8) -> Trained:
        return Trained(458, seconds, megabytes * 1e6, accuracy)

    outcomes = {
        horovod.SLOW: {
            STROM: [trained(0.04, 0.02), trained(1, 0.02), trained(0.05, 0.02)],
            HOROVOD: [trained(0.12, 2, None), trained(4, 2, None), trained(0.15, 2, None)],
        },
        horovod.NO_LINE: {ALONE: [trained(0.08, 0)] * 3},
    }
    result = report.Report("horovod", "Beside Horovod", tmp_path)
    horovod.add_rows(result, outcomes)
    horovod.draw(outcomes, tmp_path)
    own, other, alone = result.rows
    assert (own["ms_a_step"], own["mb_a_step"], own["times_as_long"]) == (50, 0.02, 1)
    assert (own["s_an_epoch"], own["accuracy"]) == (0.05 * 468, 0.8)
    assert own["steps"] == 458
    # The ratio is the median of the rounds' own, 3, 4 and 3.
    assert other["name"] == HOROVOD
    assert other["times_as_long"] == pytest.approx(3)
    assert other["accuracy"] is None
    assert (alone["group"], "mb_a_step" in alone) == ("One process", False)
    (target,) = result.targets
    assert (target.name, target.value, target.met) == ("times_less_100_Mbit_s", 100, True)
    assert (tmp_path / "horovod.png").exists()


@pytest.mark.jobs
def test_a_job_on_this_machine_gives_its_outcome() -> None:
    outcome = Place.loopback().run(ALONE, Training(steps=11, judged=False))
    assert outcome.steps == 1
    assert outcome.step_seconds > 0
    assert outcome.step_bytes >= 0
    assert outcome.accuracy is None


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


def test_a_process_that_fails_ends_the_wait_for_the_others() -> None:
    with contextlib.ExitStack() as stack:
        running = []
        for words in ("read _", "echo 'no such line'; exit 3"):
            log = stack.enter_context(tempfile.TemporaryFile("w+"))
            pipes = {"stdin": subprocess.PIPE, "stdout": log}
            process = stack.enter_context(subprocess.Popen(["sh", "-c", words], **pipes))
            stack.callback(process.kill)
            running.append((process, log))
        with pytest.raises(RuntimeError, match=r"Horovod ended with 3:\nno such line"):
            wait_for(HOROVOD, running, 60)
