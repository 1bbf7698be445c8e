"""`keras-strom run`: output, the first failure, Ctrl+C, bad input, and that nothing is left."""

from __future__ import annotations

import errno
import functools
import io
import itertools
import os
import pickle
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keras_strom import cli, errors
from keras_strom.job.network import NetworkConfig
from keras_strom.runner.console import Console
from keras_strom.runner.fleet import Fleet
from keras_strom.runner.launcher import Job, launch
from keras_strom.runner.master_options import MasterOptions
from keras_strom.runner.output import WithoutInterrupt
from keras_strom.runner.places import Place, Slots, ThisMachine
from keras_strom.runner.work import Function, Script
from tests.support.silent_master import SilentMaster

DEADLINE = 60.0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(work: Script | Function, workers: int, **options: Any) -> str:
    stream = io.StringIO()
    launch(Job(work=work, workers=workers, **options), Console(workers, stream), SilentMaster)
    return stream.getvalue()


def script(tmp_path: Path, text: str) -> Script:
    path = tmp_path / "work.py"
    path.write_text(text)
    return Script(str(path))


def test_whom_a_job_waits_for_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that stands still keeps its job from ending."""
    monkeypatch.setattr("keras_strom.runner.launcher._LATE_SECONDS", 0.1)
    told = tmp_path / "told"

    class Output(io.StringIO):
        def write(self, text: str) -> int:
            if "the job waits for" in text:
                told.touch()
            return super().write(text)

    waits = (
        "import os, time, keras_strom\n"
        f"while keras_strom.rank() and not os.path.exists({str(told)!r}): time.sleep(0.01)\n"
    )
    output = Output()
    launch(Job(work=script(tmp_path, waits), workers=3), Console(3, output), SilentMaster)
    assert output.getvalue().count("the job waits for") == 1
    words = "the job waits for workers 1 and 2: the last of the others has ended 0.1 s ago\n"
    assert words in output.getvalue()


def test_more_workers_than_memory_can_hold_are_refused_before_any_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keras_strom.runner.fleet.available_memory", lambda: 2 << 26)
    started = tmp_path / "started"
    path = script(tmp_path, f"open({str(started)!r}, 'w')").path
    assert cli.main(["run", "-np", "3", path]) == 2
    shown = capsys.readouterr()
    assert "3 workers on" in shown.err
    assert "0.12 GiB are free there, which hold 2 at most: ask for fewer (-np," in shown.err
    assert not started.exists()


def test_every_line_has_its_rank(tmp_path: Path) -> None:
    work = script(tmp_path, "import keras_strom as k\nprint('I am', k.rank(), 'of', k.size())\n")
    assert sorted(run(work, 3).splitlines()) == [f"[{r}] I am {r} of 3" for r in range(3)]


def test_scripts_that_train_nothing_together_are_told_so(tmp_path: Path) -> None:
    stream = io.StringIO()
    work = script(tmp_path, "import keras_strom as k\nprint('I am', k.rank())\n")
    launch(Job(work=work, workers=2), Console(2, stream))
    *lines, last = stream.getvalue().splitlines()
    assert sorted(lines) == ["[0] I am 0", "[1] I am 1"]
    assert last.startswith("keras-strom: no worker has made a StromStrategy")


def test_who_has_ended_well_and_not_said_goodbye_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ("lost: silent", "left", "lost: worker 2 failed: SystemExit: 0")
    events = [
        {"rank": rank, "type": text[:4], "text": f"worker {rank} was {text}"}
        for rank, text in enumerate(texts)
    ]
    status = {"events_total": 4, "events": [{**events[1], "type": "lost"}, *events]}
    monkeypatch.setattr(SilentMaster, "status", lambda _: status)
    stream = io.StringIO()
    job = Job(work=script(tmp_path, "pass"), workers=3)
    launch(job, Console(3, stream), SilentMaster)
    said = re.findall(r"worker (\d) has ended with exit code 0 and without a", stream.getvalue())
    assert said == ["0"]


def test_each_worker_of_a_machine_sees_one_gpu(tmp_path: Path) -> None:
    text = "import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['KERAS_STROM_GPUS'])\n"
    task = {"CUDA_VISIBLE_DEVICES": "2,5,7", "SLURM_GPUS_PER_TASK": "3"}  # All of one of Slurm's.
    shown = run(script(tmp_path, text), 2, env=task)
    assert sorted(shown.splitlines()) == ["[0] 2 own", "[1] 5 own"]
    shown = run(script(tmp_path, text), 3, env={"CUDA_VISIBLE_DEVICES": "2,5"})
    assert sorted(shown.splitlines()) == ["[0] 2 shared", "[1] 5 shared", "[2] 2 shared"]


def test_one_worker_needs_no_prefix_and_no_master(tmp_path: Path) -> None:
    work = script(tmp_path, "import keras_strom as k\nprint(k.size())\n")
    stream = io.StringIO()

    def never(*_: Any) -> SilentMaster:
        raise AssertionError

    launch(Job(work=work, workers=1), Console(1, stream), never)
    assert stream.getvalue() == "1\n"


def test_the_master_is_local_unless_a_mask_says_otherwise_and_is_closed() -> None:
    started: list[SilentMaster] = []

    def start(options: MasterOptions) -> SilentMaster:
        started.append(SilentMaster(options))
        return started[-1]

    launch(Job(work=Function.of(int), workers=2), Console(2, io.StringIO()), start)
    assert started[0].options.workers == 2
    assert started[0].options.network.network_mask == "127.0.0.1/32"
    assert started[0].closed


def test_the_first_failure_ends_the_others(tmp_path: Path) -> None:
    work = script(
        tmp_path,
        "import keras_strom as k, signal\n"
        "print('ready')\n"
        "if k.rank() == 1:\n"
        "    raise ValueError('bad data')\n"
        "signal.pause()\n",
    )
    with pytest.raises(errors.WorkerFailed) as raised:
        run(work, 3)
    assert raised.value.rank == 1
    assert raised.value.host == socket.gethostname()
    assert raised.value.traceback.endswith("ValueError: bad data")
    assert raised.value.log_tail[0] == "ready"


def test_the_cause_is_reported_and_not_its_consequence(tmp_path: Path) -> None:
    # Rank 0 ends first, but only because rank 1 is failing.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    work = script(
        tmp_path,
        "import os, keras_strom as k\n"
        "from keras_strom import errors\n"
        f"pipe = {str(pipe)!r}\n"
        "if k.rank() == 0:\n"
        "    failing = open(pipe, 'w')  # Closes when this process has ended.\n"
        "    raise errors.MasterLost('worker 1 has failed')\n"
        "open(pipe).read()\n"
        "raise RuntimeError('the cause')\n",
    )
    with pytest.raises(errors.WorkerFailed, match="the cause") as raised:
        run(work, 2)
    assert raised.value.rank == 1


def test_a_consequence_alone_is_still_a_failure(tmp_path: Path) -> None:
    work = script(tmp_path, "from keras_strom import errors\nraise errors.MasterLost('gone')\n")
    with pytest.raises(errors.WorkerFailed, match="gone"):
        run(work, 2)


def test_on_a_terminal_the_bar_stays_below_the_lines() -> None:
    stream = Terminal()
    console = Console(2, stream)
    console.progress(0, "\x1b[1m1/2\x1b[0m")
    console.progress(1, "hidden")
    console.line(1, "a line")
    console.line(0, "2/2")
    text = stream.getvalue()
    assert "hidden" not in text
    assert text.endswith("\r\x1b[K[0] 1/2\r\x1b[K[0] 2/2\n")
    assert "\r\x1b[K[1] a line\n" in text


def test_in_a_notebook_the_bar_is_redrawn_without_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keras_strom.runner.console._NOTEBOOK_REDRAW_SECONDS", 0.0)
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    console = Console(2, stream)
    console.progress(0, "\x1b[1m1/3\x1b[0m")
    console.progress(0, "2/3 done")
    console.line(1, "a line")
    console.line(0, "3/3")
    lines = [[part.rstrip() for part in line.split("\r")] for line in stream.getvalue().split("\n")]
    assert lines == [
        ["[0] 1/3", "", "[0] 2/3 done", "", "[1] a line"],
        ["[0] 2/3 done", "", "[0] 3/3"],
        [""],
    ]


def test_off_a_terminal_there_are_no_escapes() -> None:
    stream = io.StringIO()
    console = Console(1, stream)
    console.progress(0, "1/2")
    console.line(0, "\x1b[1m2/2\x1b[0m")
    assert stream.getvalue() == "2/2\n"


def test_output_that_cannot_be_written_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    class Full(io.StringIO):
        room = True

        def write(self, text: str) -> int:
            if not self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(text)

    stream = Full()
    console = Console(1, stream)
    for text in ("first", "lost", "lost, too", "last"):
        stream.room = not text.startswith("lost")
        console.line(0, text)
    assert stream.getvalue() == "first\nlast\n"
    assert [record.message for record in caplog.records] == [
        "output is left out, for it cannot be written: [Errno 28] No space left on device"
    ]
    stream.close()
    console.line(0, "nobody reads")


@pytest.mark.parametrize("code", [0, 3])
def test_output_that_nobody_reads_changes_no_exit_code(code: int, tmp_path: Path) -> None:
    """As of `keras-strom run ... 2>&1 | head`."""
    work = script(tmp_path, f"print('line')\nraise SystemExit({code})\n")
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "keras_strom", "run", "-np", "1", work.path]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    for stderr in (subprocess.PIPE, writing):
        done = subprocess.run(command, env=buffered, stdout=writing, stderr=stderr, text=True)
        assert done.returncode == (1 if code else 0), done.stderr
        assert "Exception ignored" not in (done.stderr or "")
    os.close(writing)


def test_a_program_without_an_output_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of `keras-strom run ... >&-`."""
    monkeypatch.setattr(sys, "stdout", None)
    console = Console(2)
    console.line(0, "a line")
    console.progress(0, "1/2")
    console.message("a word")


def test_characters_that_the_stream_lacks_are_escaped() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    Console(1, stream).line(0, "caf\u00e9 \ud800")
    stream.seek(0)
    assert stream.read() == "caf\\xe9 \\ud800\n"


@pytest.mark.parametrize("workers", [0, -1, True, 1.5])
def test_a_bad_number_of_workers_is_refused(workers: Any) -> None:
    with pytest.raises(errors.InvalidOption, match="workers"):
        Job(work=Function.of(int), workers=workers)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-np", "0", "train.py"], "-np 0"),
        (["-np", "2", "no_such_script.py"], "no such script: no_such_script.py"),
        (["-np", "2", ""], "the script's name is empty"),
        (["-np", "2", "tests"], "tests is a folder; give the script in it"),
        (["-np", "2", "python3", "train.py"], "python3 is a program, and no Python file"),
        (["-np", "2", "/bin/sh", "train.sh"], "/bin/sh is a program, and no Python file"),
        (["-np", "2", "/proc/self/mem"], "the script cannot be read"),
        (["-np", "2", "--network-mask", "203.0.113.0/24", __file__], "matches no address"),
        (["-np", "2", "--network-mask", "everywhere", __file__], "no CIDR mask"),
        (["-np", "2", "--topology", "ring", __file__], "topology='ring'"),
        (["-np", "2", "--max-children", "1", __file__], "max_children=1 must be"),
        (["-np", "2", "--merging", "always", __file__], "merging='always' must be"),
        (["-np", "2", "--port", "65534", __file__], "port=65534 leaves no port"),
        (["-np", "2", "--start-timeout", "0", __file__], "start_timeout=0.0 must be"),
        (["-np", "2", "--start-timeout", "inf", __file__], "start_timeout=inf must be"),
    ],
)
def test_bad_input_is_a_clear_error(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "-np", "2", "--prot", "9", "a.py"], "unknown flag --prot; did you mean --port?"),
        (["run", "-np", "2", "--bogus"], "unknown flag --bogus\n"),
        (["run", "-np", "2", "-m", "a.b"], "unknown flag -m; a script is given by its file"),
        (["run", "-np", "2", "--no-same-host"], "arguments are required: script\n"),
        (["run", "-np", "two", "a.py"], "invalid int value: 'two'"),
        (["scalability", "--parameter=9"], "unknown flag --parameter; did you mean --parameters?"),
        (["status", "--job", "7"], "--job; it is given without a flag: keras-strom status JOB"),
    ],
)
def test_an_unknown_flag_is_refused_with_the_usage_of_its_command(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        cli.main(arguments)
    assert raised.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"usage: keras-strom {arguments[0]} ")
    assert f"keras-strom {arguments[0]}: error: " in said
    assert words in said


@pytest.mark.parametrize("command", ["run", "master", "worker", "prepare", "doctor", "scalability"])
def test_help_tells_only_the_defaults_that_there_are(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        cli.main([command, "--help"])
    assert raised.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert ("(default: " in said) == (command != "prepare")  # Which has none.
    assert "None" not in said


def test_a_port_in_use_is_a_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert cli.main(["run", "-np", "2", "--port", str(port), __file__]) == 2
    assert str(port) in capsys.readouterr().err


def test_a_workers_port_in_use_is_found_before_any_process_starts(tmp_path: Path) -> None:
    mark = tmp_path / "started"
    work = script(tmp_path, f"open({str(mark)!r}, 'w')\n")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        for rank in (0, 1):
            job = Job(work=work, workers=2, network=NetworkConfig(port=port - 1 - rank))
            with pytest.raises(
                errors.AddressError, match=rf"port {port}, which worker {rank} would have with"
            ):
                launch(job, start=SilentMaster)
    assert not mark.exists()


def test_the_scripts_own_flags_are_left_alone(tmp_path: Path) -> None:
    work = script(tmp_path, "import sys\nprint(sys.argv[1:])\n")
    command = [sys.executable, "-m", "keras_strom", "run", "-np", "1", work.path, "--port", "-np"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode, done.stdout) == (0, "['--port', '-np']\n")


@pytest.mark.parametrize("own", [[], ["--"], ["--", "--x"], ["a", "--", "b"], ["--help"]])
@pytest.mark.parametrize("before", [[], ["--"], ["-np", "2"], ["--dashboard", "--"]])
def test_the_scripts_own_words_are_all_its_own(before: list[str], own: list[str]) -> None:
    options = cli._parser().parse_args(["run", *before, "a.py", *own])
    assert (options.script, options.arguments) == ("a.py", own)


def test_a_failing_script_gives_an_exit_code_and_its_traceback(tmp_path: Path) -> None:
    work = script(tmp_path, "print('working')\nraise KeyError('gone')\n")
    command = [sys.executable, "-m", "keras_strom", "run", "-np", "1", work.path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 1
    where = f"keras-strom: worker 0 on {socket.gethostname()} failed: KeyError: 'gone'"
    assert done.stderr == f"{where}\nIts output above has the traceback.\n"
    assert done.stdout.startswith("working\nTraceback")
    assert done.stdout.count("Traceback") == 1


def test_a_failure_says_everything_once() -> None:
    traceback = "Traceback (most recent call last):\n  File 1\nValueError: bad\n  data"
    printed = ("before", *traceback.split("\n"), "after")
    headline = "worker 2 on host failed: ValueError: bad"
    for tail, streamed, rest in (
        (printed, True, "\nIts output above has the traceback."),
        (("before",), True, f"\n{traceback}"),
        (("before",), False, f"\n{traceback}\nIts last 1 lines of output before that:\n  before"),
        (printed, False, f"\n{traceback}\nIts last 1 lines of output before that:\n  before"),
        ((), False, f"\n{traceback}"),
    ):
        error = errors.WorkerFailed(2, "host", traceback, tail, streamed)
        assert str(error) == headline + rest
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
    lost = errors.WorkerFailed(-1, "host", "it is lost", ("a",), streamed=True)
    assert str(lost) == "a worker without a rank on host failed: it is lost"


FAILS_TWICE = (
    "import os, signal, sys, keras_strom as k\n"
    "attempt = int(os.environ['KERAS_STROM_ATTEMPT'])\n"
    "print('attempt', attempt)\n"
    "if k.rank() == 1 and attempt == 0:\n"
    "    os.kill(os.getpid(), signal.SIGKILL)\n"
    "if k.rank() == 1 and attempt == 1:\n"
    "    sys.exit(3)\n"
    "if k.rank() == 1 and attempt == 2:\n"
    "    raise ValueError('bad data')\n"
)


def test_workers_that_fail_are_started_again_as_often_as_asked_for(tmp_path: Path) -> None:
    lines = run(script(tmp_path, FAILS_TWICE), 2, max_failures=3).splitlines()
    assert [line for line in lines if "started again" in line] == [
        "[1] worker 1 was killed by SIGKILL; it is started again (failure 1 of 3)",
        "[1] worker 1 ended with exit code 3; it is started again (failure 2 of 3)",
        "[1] worker 1 failed: ValueError: bad data; it is started again (failure 3 of 3)",
    ]
    attempts = [f"[1] attempt {n}" for n in range(4)]
    assert [line for line in lines if line in attempts] == attempts
    assert lines.count("[0] attempt 0") == 1


def test_a_failure_more_than_asked_for_ends_the_job(tmp_path: Path) -> None:
    with pytest.raises(errors.WorkerFailed) as raised:
        run(script(tmp_path, FAILS_TWICE), 2, max_failures=2)
    assert raised.value.rank == 1
    assert raised.value.traceback.endswith("ValueError: bad data")


LOSES_THE_STATE = (
    "import os, pathlib, time, keras_strom as k\n"
    "rank, attempt = k.rank(), int(os.environ['KERAS_STROM_ATTEMPT'])\n"
    "print('attempt', attempt, flush=True)\n"
    "there = [pathlib.Path(f'{__file__}-{other}') for other in range(k.size())]\n"
    "there[rank].with_suffix('.new').write_text(str(os.getpid()))\n"
    "there[rank].with_suffix('.new').rename(there[rank])\n"
    "if attempt == 0 and rank == 0:\n"
    "    while not all(path.exists() for path in there): time.sleep(0.01)\n"
    "    while k.size() > 2 and os.path.exists('/proc/' + there[2].read_text()):\n"
    "        time.sleep(0.01)\n"
    "    raise k.errors.StateLost('nobody')\n"
    "if attempt == 0 and rank == 1:\n"
    "    time.sleep(1000)\n"
)


def test_where_nobody_has_the_state_all_begin_again_under_another_master(tmp_path: Path) -> None:
    masters = []

    def start(options: MasterOptions) -> SilentMaster:
        masters.append(SilentMaster(options))
        return masters[-1]

    stream = io.StringIO()
    job = Job(work=script(tmp_path, LOSES_THE_STATE), workers=3, max_failures=1)
    outcomes = launch(job, Console(3, stream), start)
    lines = stream.getvalue().splitlines()
    assert (
        "[0] worker 0 failed: keras_strom.errors.StateLost: nobody; all workers begin again, from "
        "their start (failure 1 of 1)"
    ) in lines
    # Worker 2, too, which had ended well by then.
    assert all(f"[{rank}] attempt {n}" in lines for rank in range(3) for n in range(2))
    assert not any("worker 1" in line for line in lines)
    assert [outcome.exit_code for outcome in outcomes] == [0, 0, 0]
    first, second = masters
    assert first.closed
    assert first.credentials != second.credentials


class CutAsAllBeginAgain(Slots):
    """Two machines, of which the second is lost when its worker is to start a second time."""

    def __init__(self) -> None:
        self.there = [self._machine(name) for name in "ab"]
        super().__init__([(machine, 1) for machine in self.there], 2)
        self.asked = 0

    @staticmethod
    def _machine(name: str) -> ThisMachine:
        machine = ThisMachine()
        machine.name = name
        return machine

    def of(self, rank: int) -> Place | None:
        self.asked += rank
        if rank == 0 or self.asked != 2:
            return super().of(rank)
        self.there[1].lost = True
        place = super().of(rank)
        answers_again = functools.partial(self.answers_again, self._machine("b"))
        threading.Thread(target=answers_again).start()
        return place


def test_who_has_no_place_when_all_begin_again_is_waited_for(tmp_path: Path) -> None:
    class Hosts(Fleet):
        def __enter__(self) -> Fleet:
            super().__enter__()
            self.places = CutAsAllBeginAgain()
            return self

    stream = io.StringIO()
    job = Job(work=script(tmp_path, LOSES_THE_STATE), workers=2, max_failures=1)
    launch(job, Console(2, stream), SilentMaster, Hosts((), 2))
    lines = stream.getvalue().splitlines()
    assert (
        "[0] worker 0 failed: keras_strom.errors.StateLost: nobody; all workers begin again, from "
        "their start; for worker 1 no host has a slot free (failure 1 of 1)"
    ) in lines
    assert "[1] worker 1 is started again on b" in lines
    assert "[1] attempt 1" in lines


def test_a_worker_that_cannot_be_started_is_a_failure_as_another_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a limit permits no more processes: the others and the next attempt are not lost."""
    start, starts = ThisMachine.start, itertools.count()

    def start_now_and_then(*arguments: Any) -> Any:
        if next(starts) in (1, 2):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return start(*arguments)

    monkeypatch.setattr(ThisMachine, "start", start_now_and_then)
    work = script(tmp_path, "import keras_strom as k\nprint('here')\n")
    said = run(work, 2, max_failures=2)
    words = "[1] worker 1 could not be started: [Errno 11] Resource temporarily unavailable"
    assert f"{words}; it is started again (failure 1 of 2)\n" in said
    assert "[1] here\n" in said
    starts = itertools.count()
    with pytest.raises(errors.WorkerFailed, match=r"could not be started: .* unavailable"):
        run(work, 2)


@pytest.mark.parametrize("count", [-1, True, 1.5])
def test_a_number_of_failures_that_makes_no_sense_is_refused(count: Any) -> None:
    with pytest.raises(errors.InvalidOption, match="max_failures="):
        Job(work=Function.of(int), workers=2, max_failures=count)


@pytest.fixture
def launched(
    tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A job of one launcher and its two workers, which have said their process ids.

    The parameter is what workers do.
    """
    does = getattr(request, "param", "print('pid', os.getpid())\nsignal.pause()\n")
    work = script(tmp_path, "import os, signal\n" + does)
    code = (
        "import sys\n"
        "from keras_strom import cli\n"
        "from keras_strom.runner import launcher\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from tests.support.silent_master import SilentMaster\n"
        "launcher.launch.__defaults__ = (None, SilentMaster, None)\n"
        "sys.exit(cli.main(['run', '-np', '2', sys.argv[2]]))\n"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent), work.path]

    # A shell that starts the tests in the background has them ignore Ctrl+C, and so their children;
    # nohup the end of a terminal.
    def as_in_a_terminal() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=as_in_a_terminal,
    )
    assert process.stdout is not None
    pids = [int(process.stdout.readline().split()[-1]) for _ in range(2)]
    yield process, pids
    process.kill()
    process.communicate()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)],
)
def test_nothing_outlives_the_launcher(
    launched: tuple[subprocess.Popen[str], list[int]], number: signal.Signals, code: int
) -> None:
    process, pids = launched
    watched = [os.pidfd_open(pid) for pid in pids]
    process.send_signal(number)
    assert process.wait(DEADLINE) == code
    for fd in watched:
        assert select.select([fd], [], [], DEADLINE)[0]
        os.close(fd)
    complaint = process.communicate(timeout=DEADLINE)[1]
    assert complaint.endswith("keras-strom: ended by SIGTERM\n") is (number is signal.SIGTERM)


_SAVES = (
    "try:\n"
    "    print('pid', os.getpid())\n"
    "    signal.pause()\n"
    "except KeyboardInterrupt:\n"
    "    print('saved', os.getpid())\n"
    "raise KeyboardInterrupt\n"
)
_HANGS = (
    "signal.signal(signal.SIGINT, lambda *_: print('hangs'))\n"
    "print('pid', os.getpid())\n"
    "while True: signal.pause()\n"
)


@pytest.mark.parametrize("launched", [_SAVES], indirect=True)
def test_a_script_may_catch_ctrl_c(launched: tuple[subprocess.Popen[str], list[int]]) -> None:
    process, pids = launched
    process.send_signal(signal.SIGINT)
    output, complaint = process.communicate(timeout=DEADLINE)
    saved = {int(line.split()[-1]) for line in output.splitlines() if " saved " in line}
    assert saved == set(pids)
    assert "Traceback" not in output + complaint
    assert complaint.endswith("keras-strom: interrupted\n")
    assert process.returncode == 130


@pytest.mark.parametrize("launched", [_HANGS], indirect=True)
def test_ctrl_c_a_second_time_ends_workers_that_do_not_end(
    launched: tuple[subprocess.Popen[str], list[int]],
) -> None:
    process, pids = launched
    watched = [os.pidfd_open(pid) for pid in pids]
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    for _ in pids:
        assert "hangs" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE) == 130
    for fd in watched:
        assert select.select([fd], [], [], DEADLINE)[0]
        os.close(fd)


def test_only_tracebacks_of_ctrl_c_are_left_out() -> None:
    quiet = WithoutInterrupt()
    start, frame = "Traceback (most recent call last):", '  File "train.py", line 1'
    lines = ["a", start, frame, "KeyboardInterrupt", "b", start, frame, "ValueError: c", start]
    shown = [line for text in lines for line in quiet.feed(text)]
    assert shown + quiet.close() == ["a", "b", start, frame, "ValueError: c", start]
