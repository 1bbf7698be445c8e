"""A worker that is asked to leave: who may ask, how its process hears of it, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from keras_strom import errors
from keras_strom.job.drain import DRAINED_EXIT_CODE
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.runner.drain_triggers import check_triggers, drain_triggers
from keras_strom.runner.launcher import Job
from keras_strom.runner.process import Outcome, Script, WorkerProcess
from tests.support.recorded_worker import DEADLINE, LEAVES, LISTENS, Recorder, script

PLACE = ClusterEnvironment(rank=1, size=2, master=("127.0.0.1", 1), credentials_path="none")

STAYS = LISTENS + "time.sleep(600)\n"


def started(tmp_path: Path, text: str, seconds: float = 60.0) -> tuple[WorkerProcess, Recorder]:
    recorder = Recorder()
    place = ClusterEnvironment(**{**vars(PLACE), "drain_seconds": seconds})
    process = WorkerProcess(script(tmp_path, text), place, recorder)
    recorder.wait_for("ready")
    return process, recorder


def test_the_runner_has_a_worker_leave_which_is_no_failure(tmp_path: Path) -> None:
    process, recorder = started(tmp_path, LEAVES)
    with process:
        process.drain()
        process.drain()  # Asked again it has no more to do.
        outcome = process.wait(DEADLINE)
    assert recorder.wait_for("asked") == "asked by the runner"
    assert outcome.drained
    assert not outcome.failed


def test_sigterm_to_its_process_has_a_worker_leave(tmp_path: Path) -> None:
    process, recorder = started(tmp_path, LEAVES)
    with process:
        os.kill(process.pid, signal.SIGTERM)
        outcome = process.wait(DEADLINE)
    assert recorder.wait_for("asked") == "asked by SIGTERM"
    assert outcome.drained


def test_a_runner_that_ends_a_worker_does_not_wait_for_it_to_leave(tmp_path: Path) -> None:
    process, _ = started(tmp_path, STAYS)
    process.terminate()
    outcome = process.wait(DEADLINE)  # Much less than it would have to leave.
    assert outcome.terminated
    assert not outcome.drained
    process.close()


@pytest.mark.parametrize("by_signal", [False, True])
def test_a_worker_that_does_not_leave_in_time_is_killed(tmp_path: Path, by_signal: bool) -> None:
    process, _ = started(tmp_path, STAYS, seconds=0.2)
    with process:
        os.kill(process.pid, signal.SIGTERM) if by_signal else process.drain()
        outcome = process.wait(DEADLINE)
    assert outcome.failed
    assert outcome.cause == "was killed by SIGKILL"


def test_a_worker_that_has_not_joined_yet_is_killed_after_its_grace(tmp_path: Path) -> None:
    process, _ = started(tmp_path, "import time; print('ready', flush=True); time.sleep(600)", 0.2)
    with process:
        process.drain()
        assert process.wait(DEADLINE).exit_code == -signal.SIGKILL


def test_a_program_keeps_its_own_handler_of_sigterm(tmp_path: Path) -> None:
    own = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: print('own', flush=True))\n"
    process, recorder = started(tmp_path, own + LEAVES)
    with process:
        os.kill(process.pid, signal.SIGTERM)
        recorder.wait_for("own")
        process.drain()  # What its runner says it hears all the same.
        assert process.wait(DEADLINE).drained


@pytest.mark.parametrize("first", [True, False])
def test_a_program_with_its_own_handler_of_sigterm_ends_by_that_one(
    tmp_path: Path, first: bool
) -> None:
    own = """
import signal, sys
def end(*_):
    print("own", flush=True)
    sys.exit(5)
"""
    sets = "signal.signal(signal.SIGTERM, end)\n"
    listens = LISTENS.replace('print("ready"', ("" if first else sets) + 'print("ready"')
    process, recorder = started(tmp_path, own + (sets if first else "") + listens)
    with process:
        process.terminate()
        assert process.wait(DEADLINE).exit_code == 5
    recorder.wait_for("own")


def test_an_exit_code_of_a_worker_that_was_ended_is_no_drain() -> None:
    assert not Outcome(DRAINED_EXIT_CODE, None, "", (), terminated=True).drained


def test_one_worker_alone_cannot_drain(tmp_path: Path) -> None:
    here = script(tmp_path, "")
    for option in ({"drain_signal": "SIGUSR1"}, {"drain_file": str(tmp_path / "gone")}):
        with pytest.raises(errors.InvalidOption, match="nobody would take over"):
            Job(work=here, workers=1, **option)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"drain_signal": "SIGNAL"}, "is no signal"),
        ({"drain_signal": "SIGTERM"}, "means something else"),
        ({"drain_signal": "SIGKILL"}, "means something else"),
        ({"drain_file": "/no/such/folder/file"}, "no such folder"),
        ({"drain_seconds": 0}, "positive"),
        ({"drain_seconds": float("inf")}, "positive"),
    ],
)
def test_what_could_never_be_noticed_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(errors.InvalidOption, match=words):
        Job(work=Script(__file__), workers=2, **options)  # type: ignore[arg-type]


def test_a_file_of_an_earlier_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gone").touch()
    with pytest.raises(errors.InvalidOption, match="there already"):
        check_triggers(30.0, None, str(tmp_path / "gone"))


def test_the_signal_and_the_file_say_that_the_machine_goes(tmp_path: Path) -> None:
    path, heard = tmp_path / "gone", []
    came = threading.Event()

    def drain(why: str) -> None:
        heard.append(why)
        if len(heard) == 2:
            came.set()

    with drain_triggers("SIGUSR1", str(path), drain):
        os.kill(os.getpid(), signal.SIGUSR1)
        path.touch()
        assert came.wait(DEADLINE)
    assert sorted(heard) == sorted(["SIGUSR1", f"{path} is there"])
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_the_command_refuses_a_signal_that_is_none(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "keras_strom", "run", "-np", "2", "--drain-signal", "TERM"]
    done = subprocess.run([*command, __file__], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "drain_signal='TERM' is no signal" in done.stderr
