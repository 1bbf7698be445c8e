"""The soak: a short one passes, and what must never happen would be seen."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import relay_job, report, soak
from tests.support.native_programs import folder_of

PROGRAMS = folder_of("relay_node", "simulator")


@pytest.mark.jobs
@pytest.mark.skipif(PROGRAMS is None, reason="relay_node is not built")
def test_a_quick_soak_survives_a_stopped_and_a_killed_worker(tmp_path: Path) -> None:
    places = ["--programs", str(PROGRAMS), "--output", str(tmp_path)]
    soak.main(["--quick", "--simulator-seeds", "0", *places])
    rows = json.loads((tmp_path / "soak-quick.json").read_text())["rows"]
    delivered = [row for row in rows if "mistakes" in row]
    assert [row["name"] for row in delivered] == [one.name for one in soak.QUICK_SCENARIOS]
    assert all(row["updates"] > 0 and row["mistakes"] == 0 for row in delivered)
    assert (tmp_path / "soak-quick.png").exists()


def test_the_simulator_runs_every_kind_of_job_for_so_long(tmp_path: Path) -> None:
    program = tmp_path / "simulator"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    result = report.Report("soak", "The relay under torment", tmp_path)
    soak.Soak(result, tmp_path, 1.0).simulate(20, 30)
    (row,) = result.rows
    assert row["result"] == "--seeds 1000-1019 --jobs all --seconds 30"


@pytest.mark.skipif(PROGRAMS is None, reason="simulator is not built")
def test_a_seed_is_run_as_every_kind_of_job(tmp_path: Path) -> None:
    """Twelve kinds, on two kinds of links."""
    assert PROGRAMS is not None
    result = report.Report("soak", "The relay under torment", tmp_path)
    one = soak.Soak(result, PROGRAMS, 1.0)
    one.simulate(1, 60)
    assert result.rows[-1]["result"].startswith("24 runs, 0 broken, ")
    assert not one.mistakes


def _sound() -> tuple[list[dict[str, Any]], relay_job.MasterSample]:
    """Two workers and a master that agree."""
    received = {"1": 5, "2": 4}
    workers = [
        {
            "rank": rank,
            "failure": "",
            "origin": rank + 1,
            "submitted": received[str(rank + 1)],
            "received": dict(received),
            "out_of_order": 0,
            "difference": 0.0,
            "hash": 99,
        }
        for rank in range(2)
    ]
    status = {"node": {"received": dict(received)}}
    return workers, relay_job.MasterSample(0, status, 0, 0, 0)


def test_replicas_that_agree_are_no_mistake() -> None:
    assert relay_job.check(*_sound()) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"failure": "the master is gone"}, "worker 1 failed: the master is gone"),
        ({"out_of_order": 1}, "out of their order"),
        ({"difference": 0.25}, "differs from the master's"),
        ({"received": {"1": 5, "2": 3}}, "other updates than the master"),
        ({"submitted": 5}, "others are counted"),
        ({"hash": 98}, "replicas differ"),
    ],
)
def test_what_must_never_happen_is_seen(change: dict[str, Any], words: str) -> None:
    workers, master = _sound()
    workers[1].update(change)
    assert any(words in mistake for mistake in relay_job.check(workers, master))


def test_a_lost_worker_may_fail_but_the_others_may_not() -> None:
    workers, master = _sound()
    workers[1].update(failure="training went on without worker 1", received={}, hash=0)
    assert relay_job.check(workers, master, lost=[1]) == []
    assert relay_job.check([workers[0], None], master, lost=[1]) == []
    assert relay_job.check([workers[0], None], master) != []
    assert relay_job.check([None, None], master, lost=[0, 1]) == ["nobody came to the end"]


def test_a_master_that_holds_less_is_seen() -> None:
    workers, master = _sound()
    less = dataclasses.replace(master, status={"node": {"received": {"1": 5}}})
    assert relay_job.check(workers, less) != []


def test_rates_are_of_whole_tenths_inside_the_time() -> None:
    result = {"first_tenth": 100, "received_by_tenth": [1, 2, 4, 8, 16]}
    assert relay_job.received_between(result, 10.05, 10.45) == pytest.approx((2 + 4 + 8) / 0.3)
    assert relay_job.received_between(result, 11.0, 11.5) == 0


@pytest.mark.parametrize("seconds", ["0", "-5", "nan"])
def test_a_time_that_would_be_no_limit_is_refused(
    seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        soak.main(["--simulator-seconds", seconds])
    assert "--simulator-seconds=" in capsys.readouterr().err
