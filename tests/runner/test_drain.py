"""A worker that is asked to leave: who may ask, how its process hears of it, and how it ends."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from keras_strom import errors
from keras_strom.job.credentials import Credentials
from keras_strom.job.drain import DRAINED_EXIT_CODE, LEFT
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.job.worker_record import ASKED
from keras_strom.runner.agent import Agent, to_start
from keras_strom.runner.console import Console
from keras_strom.runner.drain_triggers import check_triggers, drain_triggers
from keras_strom.runner.fleet import Fleet
from keras_strom.runner.launcher import Job, launch
from keras_strom.runner.outcome import LATE_DRAIN, Outcome
from keras_strom.runner.places import Slots, ThisMachine
from keras_strom.runner.process import WorkerProcess
from keras_strom.runner.remote_machine import RemoteMachine
from keras_strom.runner.wire import PipeWire, Preparation
from keras_strom.runner.work import Function, Script
from tests.support.recorded_worker import DEADLINE, LEAVES, LISTENS, Recorder, script
from tests.support.silent_master import SilentMaster

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
def test_a_worker_that_does_not_leave_in_time_is_killed_which_is_no_failure(
    tmp_path: Path, by_signal: bool
) -> None:
    process, _ = started(tmp_path, STAYS, seconds=0.2)
    with process:
        os.kill(process.pid, signal.SIGTERM) if by_signal else process.drain()
        outcome = process.wait(DEADLINE)
    assert outcome.too_late
    assert outcome.gives_way
    assert not outcome.failed
    assert not outcome.drained


@pytest.mark.parametrize(
    ("passed", "seconds"),
    [(100.0, 60.0), (0.0, 2.0)],
    ids=["at once, as it cannot be in time", "when half of its time is over"],
)
def test_a_worker_that_will_be_late_says_what_keeps_it_and_what_helps(
    tmp_path: Path, passed: float, seconds: float
) -> None:
    looks = f"request.looks()\nrequest._looked_at -= {passed}\nrequest.looks()\n"
    text = LISTENS.replace("while not", f"{looks}while not") + "time.sleep(600)\n"
    process, recorder = started(tmp_path, text, seconds)
    with process:
        process.drain()
        said = recorder.wait_for("this worker was asked to leave by the runner")
    assert f"{passed:.1f} s passed between its last two batches" in said
    assert f"larger --drain-seconds, drain_seconds= of `run` (now {seconds:g})" in said
    assert "steps_per_execution" in said


def test_a_worker_that_has_not_joined_yet_is_killed_after_its_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keras_strom.runner.process.GRACE_SECONDS", 0.1)
    process, _ = started(tmp_path, "import time; print('ready', flush=True); time.sleep(600)", 0.2)
    with process:
        process.drain()
        assert process.wait(DEADLINE).too_late


def test_a_worker_that_has_handed_over_all_has_drained_however_it_unwinds(tmp_path: Path) -> None:
    unwinds = LISTENS + "request.has_left(stepped=False)\nprint('left', flush=True)\n"
    process, recorder = started(tmp_path, unwinds + "time.sleep(600)\n", seconds=0.5)
    with process:
        process.drain()
        recorder.wait_for("left")
        outcome = process.wait(DEADLINE)  # It ends by itself, later than its 0.5 s.
    assert outcome.exit_code == DRAINED_EXIT_CODE
    assert outcome.drained
    assert not outcome.stepped


def test_an_exit_code_of_a_scripts_own_is_no_drain(tmp_path: Path) -> None:
    with WorkerProcess(script(tmp_path, f"exit({DRAINED_EXIT_CODE})"), PLACE) as process:
        outcome = process.wait(DEADLINE)
    assert outcome.failed
    assert not outcome.gives_way
    assert outcome.cause == f"ended with exit code {DRAINED_EXIT_CODE}"


def test_a_forked_child_of_a_worker_ends_by_sigterm(tmp_path: Path) -> None:
    forks = LISTENS.replace(
        "while not",
        """
import multiprocessing
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
child.start()
child.terminate()
child.join(20)
print("child", child.exitcode, request.why or "nobody", flush=True)
while not""",
    )
    process, recorder = started(tmp_path, forks)
    with process:
        assert recorder.wait_for("child") == f"child {-signal.SIGTERM} nobody"


def test_a_worker_that_could_not_be_started_leaves_no_file_descriptor_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError("no memory")

    monkeypatch.setattr(os, "memfd_create", refuse)
    place = dataclasses.replace(PLACE, status_path=ASKED)
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="no memory"):
        WorkerProcess(Function(b""), place)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_machine_that_leaves_gets_no_more_workers_and_is_not_lost() -> None:
    here, other = ThisMachine(), RemoteMachine("b", PipeWire(*os.pipe()))
    slots = Slots([(here, 1), (other, 2)], workers=2)
    slots.leave_here()
    assert not here.lost
    place = slots.of(0)
    assert place is not None
    assert place.machine is other


def test_a_worker_that_an_agent_starts_as_its_machine_leaves_is_asked_to_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = [*os.pipe(), *os.pipe()]
    launcher, far = PipeWire(there[0], there[3]), PipeWire(there[2], there[1])
    serving = Agent(far, script(tmp_path, LEAVES))
    start = ThisMachine.start

    def start_as_it_leaves(self: ThisMachine, *arguments: Any) -> WorkerProcess:
        worker = start(self, *arguments)
        serving.drain()
        return worker

    monkeypatch.setattr(ThisMachine, "start", start_as_it_leaves)
    launcher.send(Preparation(silence=DEADLINE).to_message())
    place = dataclasses.replace(PLACE, credentials_path=None, drain_seconds=DEADLINE)
    launcher.send(to_start(0, place, Credentials.new()))

    def listen() -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                launcher.receive(DEADLINE)
        launcher.close()  # As a launcher does that sees its agent gone.

    threading.Thread(target=listen, daemon=True).start()
    with pytest.raises(ConnectionError, match="has ended"):
        serving.serve()
    assert serving.outcome is not None
    assert serving.outcome.drained


def test_a_worker_that_leaves_again_and_again_without_a_step_ends_the_job(tmp_path: Path) -> None:
    leaves = """
import os, signal
from keras_strom import rank
from keras_strom.job.drain import DRAINED_EXIT_CODE, request
from keras_strom.job.environment import ClusterEnvironment
here = ClusterEnvironment.from_environ()
if here.rank == 0:
    signal.pause()
request.listen(here)
request.ask("the program", 60)
request.has_left(stepped=here.attempt == 1)
raise SystemExit(DRAINED_EXIT_CODE)
"""
    output = io.StringIO()
    job = Job(work=script(tmp_path, leaves), workers=2)
    with pytest.raises(errors.WorkerFailed, match="asked to leave 3 times in a row"):
        launch(job, Console(2, output), SilentMaster)
    words = "[1] worker 1 has drained; it is started again\n"
    assert output.getvalue().count(words) == 4  # The second attempt had made a step.


def test_a_worker_that_is_killed_since_it_is_late_goes_on_and_counts_as_no_failure(
    tmp_path: Path,
) -> None:
    stays = """
import keras_strom, signal
from keras_strom.job.drain import request
from keras_strom.job.environment import ClusterEnvironment
here = ClusterEnvironment.from_environ()
if here.rank == 1 and here.attempt == 0:
    request.listen(here)
    keras_strom.drain()
    signal.pause()
"""
    output = io.StringIO()
    launch(
        Job(work=script(tmp_path, stays), workers=2, drain_seconds=0.2),
        Console(2, output),
        SilentMaster,
    )
    assert f"[1] worker 1 {LATE_DRAIN}; it is started again\n" in output.getvalue()


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
    left = LEFT.decode()
    assert Outcome(DRAINED_EXIT_CODE, None, "", (), left=left).drained
    assert not Outcome(DRAINED_EXIT_CODE, None, "", (), terminated=True, left=left).drained


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


def test_the_signal_is_heard_before_the_workers_are_there(tmp_path: Path) -> None:
    """By itself it would end the launcher."""
    handlers: list[object] = []

    class Looks(Fleet):
        def prepare(self, *arguments: Any) -> None:
            handlers.append(signal.getsignal(signal.SIGUSR1))
            super().prepare(*arguments)

    job = Job(work=script(tmp_path, ""), workers=2, drain_signal="SIGUSR1")
    launch(job, Console(2, io.StringIO()), SilentMaster, Looks((), 2))
    assert callable(handlers[0])
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_the_command_refuses_a_signal_that_is_none(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "keras_strom", "run", "-np", "2", "--drain-signal", "TERM"]
    done = subprocess.run([*command, __file__], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "drain_signal='TERM' is no signal" in done.stderr
