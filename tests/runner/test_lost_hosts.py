"""Hosts that are lost in the middle of a job; a stand-in for ssh runs all on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from keras_strom import errors
from keras_strom.dashboard.watching import Watching
from keras_strom.job.network import NetworkConfig
from keras_strom.runner import fleet, launcher
from keras_strom.runner import ssh as remote_ssh
from keras_strom.runner.hosts import parse_hosts
from keras_strom.runner.lost_hosts import LostHosts
from keras_strom.runner.places import Slots, ThisMachine, may_come_back
from keras_strom.runner.remote_machine import RemoteMachine
from tests.support.stand_in_ssh import LOOPBACK, run, stand_in


@pytest.fixture(autouse=True)
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(fleet, "LostHosts", lambda enter, pause: LostHosts(enter, pause / 60))
    return stand_in(tmp_path, monkeypatch)


KILLS_ITS_AGENT = (
    "import os, signal, keras_strom as k\n"
    "attempt = int(os.environ['KERAS_STROM_ATTEMPT'])\n"
    "if k.rank() == {rank} and attempt == 0:\n"
    "    os.kill(os.getppid(), signal.SIGKILL)\n"
    "    signal.pause()\n"
    "print('attempt', attempt, 'local rank', k.local_rank())\n"
)

WAITS_FOR_ANOTHER = (
    "import pathlib, time\n"
    "came = pathlib.Path('came')\n"
    "came.touch() if attempt else None\n"
    "while not came.exists(): time.sleep(.05)\n"
)


@pytest.fixture
def others_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`WAITS_FOR_ANOTHER` ends, too, when it has been told what becomes of a lost worker."""
    check_number = launcher._Crew._check_number

    def then_come(crew: launcher._Crew, *arguments: Any) -> None:
        (tmp_path / "came").touch()
        check_number(crew, *arguments)

    monkeypatch.setattr(launcher._Crew, "_check_number", then_come)


@pytest.mark.usefixtures("others_wait")
def test_workers_of_a_lost_host_come_back_on_another(tmp_path: Path) -> None:
    text = KILLS_ITS_AGENT.format(rank=1) + WAITS_FOR_ANOTHER
    lines = run(tmp_path, text, "a,b,c:2", 3, max_failures=1)
    (lost,) = (line for line in lines if "lost" in line)
    assert lost.startswith("[1] worker 1 was lost with its host b: ssh ended with code ")
    assert lost.endswith("; it is started again on c (failure 1 of 1)")
    assert "[1] attempt 1 local rank 1" in lines


def test_a_worker_that_fails_is_started_again_where_it_was(tmp_path: Path) -> None:
    text = "import os\nif os.environ['KERAS_STROM_ATTEMPT'] == '0':\n    raise SystemExit(3)\n"
    lines = run(tmp_path, text, "a,b:4", 1, max_failures=1, network=NetworkConfig())
    assert "worker 0 ended with exit code 3; it is started again (failure 1 of 1)" in lines[-1]


@pytest.mark.usefixtures("others_wait")
def test_without_room_the_others_go_on(tmp_path: Path) -> None:
    text = KILLS_ITS_AGENT.format(rank=1) + WAITS_FOR_ANOTHER
    lines = run(tmp_path, text, "a,b", 2, max_failures=2)
    (lost,) = (line for line in lines if "lost" in line)
    assert lost.endswith(
        "; no other host has a slot free, so the others go on without it until b answers again "
        "(failure 1 of 2)"
    )
    assert "[0] attempt 0 local rank 0" in lines


@pytest.mark.parametrize("rank", [0, 1])
def test_a_host_that_is_back_has_its_workers_again(rank: int, tmp_path: Path, ssh: Path) -> None:
    text = KILLS_ITS_AGENT.format(rank=rank) + WAITS_FOR_ANOTHER
    lines = run(tmp_path, text, "a:2,b:2", 4, max_failures=2)
    name = "ab"[rank // 2]
    assert f"keras-strom: {name} answers again" in lines
    assert f"[{rank}] worker {rank} is started again on {name}" in lines
    assert f"[{rank}] attempt 1 local rank {rank % 2}" in lines
    again = (ssh / "calls").read_text().splitlines()[2:]
    assert again
    assert all("ConnectTimeout=" in call for call in again)


def test_what_a_host_lacks_that_is_back_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may come after the machine."""
    takes_the_script = (
        "import os, pathlib, time\n"
        "here = pathlib.Path('here')\n"
        "if os.environ['KERAS_STROM_RANK'] == '0':\n"
        "    here.touch()\n"
        "elif os.environ['KERAS_STROM_ATTEMPT'] == '0':\n"
        "    while not here.exists(): time.sleep(.05)\n"
        "    os.rename('work.py', 'gone')\n"
    )
    text = takes_the_script + KILLS_ITS_AGENT.format(rank=1) + WAITS_FOR_ANOTHER
    prepare = RemoteMachine.prepare
    refused: list[str] = []

    def prepare_late(machine: RemoteMachine, *given: Any) -> None:
        try:
            prepare(machine, *given)
        except errors.HostUnusable as error:
            refused.append(str(error))
            if len(refused) == 3:
                (tmp_path / "gone").rename(tmp_path / "work.py")
            raise

    monkeypatch.setattr(RemoteMachine, "prepare", prepare_late)
    lines = run(tmp_path, text, "a,b", 2, max_failures=1)
    told = [line for line in lines if line.endswith("; it is tried again")]
    assert told == [f"keras-strom: {refused[0]}; it is tried again"]
    assert len(refused) == 3
    assert "keras-strom: b answers again" in lines


def test_a_host_that_comes_after_the_end_is_left_again(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = fleet.Fleet(parse_hosts("a"), 1)
    back = Mock(lost=False)
    prepare = Mock(side_effect=lambda _: machines.close(""))  # It ends meanwhile.
    monkeypatch.setattr(machines, "_prepare", prepare, raising=False)
    monkeypatch.setattr(remote_ssh, "connect", lambda *_: (back, {}))
    machines._enter_again("a")
    back.close.assert_called_once_with("the job has ended")
    machines._lost.seek("a")
    assert not [one for one in threading.enumerate() if one.name == "keras-strom-seeks-a"]


NEVER = Mock(side_effect=errors.HostUnusable("a: it cannot be reached"))


@pytest.mark.usefixtures("others_wait")
def test_worker_0_has_the_slot_of_another_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet.Fleet, "_connect_again", NEVER)
    text = KILLS_ITS_AGENT.format(rank=0) + WAITS_FOR_ANOTHER
    lines = run(tmp_path, text, "a,b", 2, max_failures=1)
    assert "[0] worker 0 is started again on b" in lines
    assert "[0] attempt 1 local rank 0" in lines


def test_a_job_with_too_few_workers_waits_for_their_host_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet.Fleet, "_connect_again", NEVER)
    text = KILLS_ITS_AGENT.format(rank=1) + "signal.pause()\n"
    short = dataclasses.replace(LOOPBACK, failure_timeout=0.4)
    output = io.StringIO()
    with (
        contextlib.redirect_stdout(output),
        pytest.raises(errors.WorkerFailed, match="was lost with its host b") as raised,
    ):
        run(tmp_path, text, "a,b", 2, max_failures=2, min_workers=2, network=short)
    assert raised.value.rank == 1
    waits = "fewer than 2 workers are left: the job ends in 6 s unless b answers again"
    assert output.getvalue().count(waits) == 1
    assert "cannot be reached" not in output.getvalue()


def test_a_job_whose_hosts_are_all_lost_waits_for_them_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, lost = threading.Event(), []
    seek, enter = LostHosts.seek, fleet.Fleet._enter_again

    def seek_both(hosts: LostHosts, name: str) -> None:
        seek(hosts, name)
        lost.append(name)
        if len(lost) == 2:
            both.set()

    def enter_then(machines: fleet.Fleet, name: str) -> None:
        both.wait()
        enter(machines, name)

    monkeypatch.setattr(LostHosts, "seek", seek_both)
    monkeypatch.setattr(fleet.Fleet, "_enter_again", enter_then)
    text = "".join(KILLS_ITS_AGENT.format(rank=rank) for rank in (0, 1))
    lines = run(tmp_path, text, "a,b", 2, max_failures=2)
    assert {"[0] attempt 1 local rank 0", "[1] attempt 1 local rank 0"} <= set(lines)
    waits = [line for line in lines if "no worker runs: the job ends in 75 s unless " in line]
    assert len(waits) == 1


@pytest.mark.parametrize(("may_grow", "hosts"), [(False, ["b"]), (True, [])])
def test_where_machines_come_by_themselves_none_is_waited_for(
    may_grow: bool, hosts: list[str]
) -> None:
    job = launcher.Job(work=None, workers=2, min_workers=2)
    places = Mock(may_grow=may_grow)
    crew = launcher._Crew(job, job.network, Mock(), Mock(), places, Mock())
    machine = Mock(lost=True, leaves=False)
    machine.name = "b"
    crew._machines[1] = machine
    crew._homeless[1] = Mock()
    assert crew._lost_hosts() == hosts
    assert (crew._limit(1) is None) == may_grow


def test_a_host_that_leaves_as_announced_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machines, seek = fleet.Fleet(parse_hosts("a"), 1), Mock()
    monkeypatch.setattr(machines._lost, "seek", seek)
    machine = Mock(lost=True, leaves=False)
    monkeypatch.setattr(remote_ssh, "connect", lambda *_: (machine, {}))
    machines._connect("a")
    machine.when_lost()
    seek.assert_called_once_with("a")
    assert may_come_back(machine)
    machine.leaves = True
    machine.when_lost()
    seek.assert_called_once_with("a")
    assert not may_come_back(machine)


@pytest.mark.usefixtures("others_wait")
@pytest.mark.parametrize(("failures", "ends"), [(0, True), (2, False)])
def test_who_watches_hears_of_a_worker_that_has_no_place_or_ends_the_job(
    failures: int, ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[int, str, bool]] = []

    class Watches(Watching):
        def ended(self, rank: int, words: str, *, failed: bool = False) -> None:
            heard.append((rank, words, failed))

    monkeypatch.setattr(launcher, "watch", lambda *_: contextlib.nullcontext(Watches()))
    text = KILLS_ITS_AGENT.format(rank=1) + WAITS_FOR_ANOTHER
    monkeypatch.setattr(fleet.Fleet, "_connect_again", NEVER)
    if ends:
        with pytest.raises(errors.WorkerFailed):
            run(tmp_path, text, "a,b", 2, max_failures=failures)
    else:
        run(tmp_path, text, "a,b", 2, max_failures=failures)
    (words,) = (words for rank, words, failed in heard if (rank, failed) == (1, True))
    said = "worker 1 ends the job: it was lost with its host b: " if ends else "worker 1 is not st"
    assert words.startswith(said)


def test_a_lost_host_ends_a_job_that_allows_no_failure(tmp_path: Path) -> None:
    with pytest.raises(errors.WorkerFailed, match="it was lost with its host b: ssh ended with"):
        run(tmp_path, KILLS_ITS_AGENT.format(rank=1), "a,b,c", 2)


def test_a_worker_that_had_ended_has_a_place_again_where_its_machine_answers_again() -> None:
    """As where all begin again, and its machine is away at that moment."""
    one, other, again = ThisMachine(), ThisMachine(), ThisMachine()
    one.name, other.name, again.name = "a", "b", "b"
    slots = Slots([(one, 1), (other, 1)], workers=2)
    arrived: list[int] = []
    slots.arrived = arrived.append
    slots.has_ended(1)
    other.lost = True
    assert slots.of(1) is None
    slots.answers_again(again)
    assert arrived == [1]
    place = slots.of(1)
    assert place is not None
    assert place.machine is again
