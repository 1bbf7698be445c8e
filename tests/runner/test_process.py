"""A worker's output, its outcome, and that nothing of it is left behind."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keras_strom import errors
from keras_strom.job import linux
from keras_strom.job.credentials import Credentials
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.job.network import NetworkConfig
from keras_strom.runner import process as process_module
from keras_strom.runner.fork_server import ForkServers
from keras_strom.runner.master_options import MasterOptions
from keras_strom.runner.master_supervisor import SupervisedMaster
from keras_strom.runner.outcome import Outcome
from keras_strom.runner.output import (
    MAX_LINE,
    TAIL_LINES,
    LineSplitter,
    OutputRecord,
    is_startup_note,
    plain,
)
from keras_strom.runner.process import WorkerProcess
from keras_strom.runner.started_process import StartProcess, fresh_interpreter
from keras_strom.runner.work import Function, Script
from keras_strom.tracebacks import TRACEBACK_HEADER, exception_line, first_words
from tests.support.processes import is_alive, wait_until_gone
from tests.support.recorded_worker import DEADLINE, Recorder, script

PLACE = ClusterEnvironment()


def call(function: Callable[..., Any], *args: Any, **options: Any) -> Outcome:
    with WorkerProcess(Function.of(function, *args), PLACE, **options) as process:
        return process.wait(DEADLINE)


@pytest.fixture(params=["fresh", pytest.param("forked", marks=pytest.mark.jobs)])
def start(request: pytest.FixtureRequest) -> StartProcess:
    """Both ways of starting a worker's process, which tests that take it hold for."""
    return fresh_interpreter if request.param == "fresh" else ForkServers(os.getpid())


def test_lines_are_what_a_terminal_would_show() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"a\nb") == ["a"]
    assert splitter.feed(b"c\r\n\n") == ["bc", ""]
    assert splitter.feed(b"\b\b\r 1/2") == []
    assert splitter.redrawn == " 1/2"
    assert splitter.feed("\b\b\b\b\r 2/2 é".encode()[:-1]) == []
    assert splitter.feed("é".encode()[-1:] + b"\nrest") == [" 2/2 é"]
    assert splitter.redrawn == ""
    assert splitter.close() == ["rest"]


def test_lines_are_bounded() -> None:
    splitter = LineSplitter()
    pieces = splitter.feed(b"x" * (2 * MAX_LINE + 1)) + splitter.feed(b"\n")
    assert [len(piece) for piece in pieces] == [MAX_LINE, MAX_LINE, 1]
    for _ in range(100):
        splitter.feed(b"\r" + b"y" * 1000)
    assert splitter.feed(b"\n") == ["y" * 1000]


def test_escapes_are_removed() -> None:
    assert plain("\x1b[1m2/2\x1b[0m \x1b[32m━━\x1b[0m") == "2/2 ━━"


def test_the_last_traceback_is_kept_with_what_led_to_it() -> None:
    record = OutputRecord()
    text = """\
Traceback (most recent call last):
  File "a.py", line 1
OSError: caught and logged
all is well
Traceback (most recent call last):
  File "b.py", line 2
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "c.py", line 3
ValueError: no
good bye"""
    for line in text.splitlines():
        record.add(line)
    assert record.traceback.startswith('Traceback (most recent call last):\n  File "b.py"')
    assert record.traceback.endswith("ValueError: no")
    assert "During handling" in record.traceback
    for i in range(TAIL_LINES):
        record.add(str(i))
    assert record.tail == tuple(map(str, range(TAIL_LINES)))


def test_a_traceback_goes_on_after_carets_that_are_not_indented() -> None:
    record = OutputRecord()
    text = """\
Traceback (most recent call last):
  File "train.py", line 7, in train_step
    return step(iterator)
^^^^^^^^^^^^~~~~~^^^^^^^^^
AttributeError: no such loss"""
    for line in [*text.splitlines(), "good bye"]:
        record.add(line)
    assert record.traceback == text
    assert exception_line(text) == "AttributeError: no such loss"


def test_a_traceback_may_begin_after_a_progress_bar() -> None:
    record = OutputRecord()
    for line in [f" 1/16 - loss: 1.36{TRACEBACK_HEADER}", '  File "a.py", line 1', "OSError: no"]:
        record.add(line)
    assert record.traceback == f'{TRACEBACK_HEADER}\n  File "a.py", line 1\nOSError: no'


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            "InvalidArgumentError: Graph execution error:\n\nDetected at node a/b defined at (most "
            'recent call last):\n  File "train.py", line 3, in <module>\n\nReceived a label value '
            "of 7. Label values: 0 7\n\t [[{{node a/b}}]] [Op:__inference_1]",
            "InvalidArgumentError: Received a label value of 7. Label values: 0 7",
        ),
        (
            "InvalidArgumentError: Graph execution error:\n\nDetected at node a defined at (most "
            "recent call last):\n<stack traces unavailable>\n2 root error(s) found.\n  (0) INVALID_"
            "ARGUMENT:  required broadcastable shapes\n\t [[{{node a}}]]",
            "InvalidArgumentError: (0) INVALID_ARGUMENT:  required broadcastable shapes",
        ),
        (
            'ValueError: in user code:\n\n    File "train.py", line 22, in f  *\n        reshape(a)'
            "\n\n    ValueError: Cannot reshape a tensor with 6 elements\n",
            "ValueError: Cannot reshape a tensor with 6 elements",
        ),
        (
            "ValueError: Exception encountered when calling Net.call().\n\n\x1b[1mNo such shape."
            "\x1b[0m\n\nArguments received by Net.call():\n  x",
            "ValueError: Exception encountered when calling Net.call(). No such shape.",
        ),
        ("OSError: no\nsuch file", "OSError: no"),
    ],
)
def test_an_exceptions_first_words_say_what_is_wrong(message: str, words: str) -> None:
    assert first_words(message.splitlines()) == words
    record = OutputRecord()
    for line in f'{TRACEBACK_HEADER}\n  File "a.py", line 1\n{message}\ngood bye'.splitlines():
        record.add(line)
    assert exception_line(record.traceback) == words
    assert "good bye" not in record.traceback


def test_a_function_returns_its_result(start: StartProcess) -> None:
    def add(a: int, b: int) -> dict[str, int]:
        return {"sum": a + b}

    outcome = call(add, 2, 3, start=start)
    assert (outcome.exit_code, outcome.failed) == (0, False)
    assert outcome.result is not None
    assert pickle.loads(outcome.result) == {"sum": 5}


def test_a_result_that_cannot_be_pickled_is_named_as_that(start: StartProcess) -> None:
    def lock() -> Any:
        return threading.Lock()

    words = exception_line(call(lock, start=start).traceback)
    assert words.startswith("TypeError: what the function has returned, of type lock, cannot be ")


def test_a_large_argument_and_result_pass(start: StartProcess) -> None:
    outcome = call(lambda data: data + b"!", b"x" * 3_000_000, start=start)
    assert outcome.result is not None
    assert pickle.loads(outcome.result) == b"x" * 3_000_000 + b"!"


def test_a_function_that_raises_gives_its_own_traceback(start: StartProcess) -> None:
    def fail() -> None:
        sys.stdout.write("about to fail\n")
        raise ValueError("no such thing")

    outcome = call(fail, start=start)
    assert outcome.failed
    assert outcome.exit_code == 1
    assert outcome.traceback.endswith("ValueError: no such thing\n")
    assert "in fail" in outcome.traceback
    assert "keras_strom/runner/worker_main.py" not in outcome.traceback
    assert outcome.log_tail == ("about to fail",)


def test_a_result_that_cannot_be_pickled_is_a_failure(start: StartProcess) -> None:
    outcome = call(threading.Lock, start=start)
    assert outcome.failed
    assert "pickle" in outcome.traceback


@pytest.mark.parametrize(("code", "words"), [(0, "without returning"), (7, "exit code 7")])
def test_a_function_that_ends_its_process_is_a_failure(
    code: int, words: str, start: StartProcess
) -> None:
    outcome = call(lambda: os._exit(code), start=start)
    assert outcome.failed
    assert words in outcome.traceback


def test_a_crash_names_the_signal(start: StartProcess) -> None:
    outcome = call(lambda: os.kill(os.getpid(), signal.SIGSEGV), start=start)
    assert "SIGSEGV" in outcome.traceback
    assert any("Fatal Python error" in line for line in outcome.log_tail)


def test_a_consequence_is_told_from_a_cause(start: StartProcess) -> None:
    def lose() -> None:
        raise errors.MasterLost("worker 1 failed")

    assert call(lose, start=start).is_consequence
    assert not call(lambda: 1 / 0, start=start).is_consequence


def test_only_tensorflows_start_up_notes_are_left_out() -> None:
    notes = (
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "I0000 00:00:1795239534.527512    9816 port.cc:153] oneDNN custom operations are on. You",
    )
    assert all(is_startup_note(note) for note in notes)
    assert not is_startup_note("W0000 00:00:1795239534.5 9816 port.cc:153] something else")
    assert not is_startup_note("my own WARNING: All log messages before absl::InitializeLog()")


def test_a_script_gets_its_arguments_and_its_output_is_read(
    tmp_path: Path, start: StartProcess
) -> None:
    work = script(
        tmp_path,
        "import sys\n"
        "print(sys.argv[1:], __name__, sys.path[0] == __file__.rpartition('/')[0])\n"
        "print('to stderr', file=sys.stderr)\n",
    )
    recorder = Recorder()
    with WorkerProcess(Script(work.path, ("--a", "b")), PLACE, recorder, start=start) as process:
        assert process.wait(DEADLINE).exit_code == 0
    assert recorder.lines == ["['--a', 'b'] __main__ True", "to stderr"]
    assert [outcome.failed for outcome in recorder.outcomes] == [False]


def test_what_lies_in_the_folder_at_hand_is_no_module_of_the_runners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for `python elsewhere/work.py`, whose own folder alone Python looks into."""
    work = script(tmp_path, "import pickle\nprint('loads', hasattr(pickle, 'loads'))\n")
    (tmp_path / "here").mkdir()
    for name in ("pickle", "ctypes", "secrets", "socket"):
        (tmp_path / "here" / f"{name}.py").write_text("raise SystemExit('shadowed')\n")
    monkeypatch.chdir(tmp_path / "here")
    recorder = Recorder()
    with WorkerProcess(work, PLACE, recorder) as process:
        outcome = process.wait(DEADLINE)
    assert (outcome.exit_code, recorder.lines) == (0, ["loads True"])
    master = SupervisedMaster(MasterOptions(workers=2, network=NetworkConfig(), host="127.0.0.1"))
    assert master.status()
    master.close()


def test_a_scripts_traceback_is_found_in_its_output(tmp_path: Path, start: StartProcess) -> None:
    work = script(tmp_path, "def f():\n    raise KeyError('gone')\n\nf()\n")
    with WorkerProcess(work, PLACE, start=start) as process:
        outcome = process.wait(DEADLINE)
    assert (outcome.exit_code, outcome.failed) == (1, True)
    assert outcome.traceback.startswith("Traceback")
    assert outcome.traceback.endswith("KeyError: 'gone'")


@pytest.mark.parametrize(
    ("number", "lines", "words"),
    [
        (signal.SIGKILL, 0, "it was ended by SIGKILL; was it out of memory?"),
        (signal.SIGSEGV, TAIL_LINES, "it was ended by SIGSEGV"),
        (signal.SIGSEGV, 0, "KeyError: 'caught'"),  # As where threads crash that are left.
    ],
)
def test_an_exception_that_a_process_has_outlived_is_not_why_it_was_killed(
    tmp_path: Path, number: int, lines: int, words: str
) -> None:
    text = (
        "import os, traceback\n"
        "try:\n    raise KeyError('caught')\nexcept KeyError:\n    traceback.print_exc()\n"
        f"print('and on\\n' * {lines}, end='', flush=True)\n"
        f"os.kill(os.getpid(), {int(number)})\n"
    )
    with WorkerProcess(script(tmp_path, text), PLACE) as process:
        outcome = process.wait(DEADLINE)
    assert outcome.exit_code == -number
    assert exception_line(outcome.traceback) == words


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("def f(:\n", "SyntaxError: invalid syntax"),
        ("def f():\npass\n", "IndentationError: expected an indented block"),
    ],
)
def test_a_script_that_python_cannot_read_is_named(
    tmp_path: Path, start: StartProcess, text: str, error: str
) -> None:
    with WorkerProcess(script(tmp_path, text), PLACE, start=start) as process:
        outcome = process.wait(DEADLINE)
    assert outcome.traceback.startswith(f"it ended with exit code 1: {error}")
    assert not outcome.may_be_started_again


@pytest.mark.parametrize(
    ("error", "may"),
    [("UnsupportedModel", False), ("UnsupportedOptimizer", False), ("DeadlinePassed", True)],
)
def test_a_model_that_cannot_be_shared_is_not_tried_again(
    tmp_path: Path, start: StartProcess, error: str, may: bool
) -> None:
    text = f"from keras_strom import errors\nraise errors.{error}('why')\n"
    with WorkerProcess(script(tmp_path, text), PLACE, start=start) as process:
        outcome = process.wait(DEADLINE)
    assert outcome.cause == f"failed: keras_strom.errors.{error}: why"
    assert outcome.may_be_started_again == may


def test_a_progress_bar_is_one_line(start: StartProcess) -> None:
    def bar() -> None:
        for i in range(5):
            sys.stdout.write(f"\b\b\b\r{i}/4")
            sys.stdout.flush()
        sys.stdout.write("\n")

    recorder = Recorder()
    call(bar, listener=recorder, start=start)
    assert recorder.lines == ["4/4"]
    assert set(recorder.bars) <= {f"{i}/4" for i in range(5)}


def test_a_worker_finds_its_place_and_its_credentials(start: StartProcess) -> None:
    def look() -> tuple[ClusterEnvironment, Credentials, dict[str, str]]:
        place = ClusterEnvironment.from_environ()
        wanted = ("MINE", "TF_CPP_MIN_LOG_LEVEL")
        return place, place.load_credentials(), {name: os.environ[name] for name in wanted}

    credentials = Credentials.new().with_master(b"k" * 32)
    place = ClusterEnvironment(rank=1, size=2, local_rank=1, local_size=2, master=("127.0.0.1", 9))
    work = Function.of(look)
    options = {"credentials": credentials, "env": {"MINE": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}}
    with WorkerProcess(work, place, **options, start=start) as process:  # type: ignore[arg-type]
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        outcome = process.wait(DEADLINE)
    assert outcome.result is not None, outcome.traceback
    seen, keys, variables = pickle.loads(outcome.result)
    assert (seen.rank, seen.size, seen.master) == (1, 2, ("127.0.0.1", 9))
    assert keys == credentials
    assert variables == {"MINE": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    assert credentials.secret.hex().encode() not in command


def test_a_worker_is_started_where_python_lacks_what_linux_has(
    start: StartProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Pythons of conda and uv, which were built against an older C library."""
    for module, beginnings in ((os, ("memfd_", "MFD_", "pidfd_")), (fcntl, ("F_ADD_", "F_SEAL_"))):
        for name in [name for name in vars(module) if name.startswith(beginnings)]:
            monkeypatch.delattr(module, name)
    place = ClusterEnvironment(rank=1, size=2, master=("127.0.0.1", 9))
    credentials = Credentials.new().with_master(b"k" * 32)
    work = Function.of(lambda: ClusterEnvironment.from_environ().load_credentials())
    with WorkerProcess(work, place, credentials=credentials, start=start) as process:
        outcome = process.wait(DEADLINE)
    assert outcome.result is not None, outcome.traceback
    assert pickle.loads(outcome.result) == credentials
    fd = credentials.open_memory_file()
    with pytest.raises(PermissionError):  # Sealed.
        os.write(fd, b"x")
    os.close(fd)


def test_the_end_of_a_worker_is_seen_where_the_kernel_shows_no_descriptors_of_processes(
    start: StartProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux before 5.3, and sandboxes that do not know the call."""
    for code in (errno.ENOSYS, errno.EPERM):

        def refuse(_: int, code: int = code) -> int:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(linux, "pidfd_open", refuse)
        before = sorted(os.listdir("/proc/self/fd"))
        assert call(os._exit, 3, start=start).exit_code == 3
        for thread in threading.enumerate():
            if thread.name == "keras-strom-end":  # It closes its end of a pipe last.
                thread.join(DEADLINE)
        assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_worker_whose_end_nobody_would_see_is_not_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[int] = []

    def refuse(pid: int) -> int:
        begun.append(pid)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(process_module, "process_end", refuse)
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Too many open files"):
        WorkerProcess(Function.of(signal.pause), PLACE)
    assert not is_alive(begun[0])
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("free", [0, 1])
def test_a_limit_of_open_files_that_is_too_low_for_a_worker_is_named(
    free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
    monkeypatch.setattr(process_module, "_FIRST_INHERITED_FD", 512 - free)
    words = r"^the limit of open files, 512, is too low: .* raise it \(ulimit -n\)$"
    try:
        with pytest.raises(OSError, match=words):
            WorkerProcess(Function.of(int), PLACE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_the_users_python_path_comes_first_for_a_function(
    tmp_path: Path, start: StartProcess
) -> None:
    (tmp_path / "only_here.py").write_text("value = 7\n")

    def use() -> int:
        import only_here  # type: ignore[import-not-found]

        return int(only_here.value)

    work = Function.of(use)
    with WorkerProcess(work, PLACE, env={"PYTHONPATH": str(tmp_path)}, start=start) as process:
        outcome = process.wait(DEADLINE)
    assert outcome.result is not None, outcome.traceback
    assert pickle.loads(outcome.result) == 7


def test_variables_that_are_the_users_own_reach_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """And none that says another process's place."""
    monkeypatch.setenv("KERAS_STROM_GPU_STEP", "off")
    monkeypatch.setenv("KERAS_STROM_NEEDS_GPU", "1")
    monkeypatch.setenv("KERAS_STROM_IP", "127.0.0.1")
    monkeypatch.setenv("KERAS_STROM_ATTEMPT", "7")

    def look() -> list[str | None]:
        names = ("GPU_STEP", "NEEDS_GPU", "IP", "ATTEMPT")
        return [os.environ.get(f"KERAS_STROM_{name}") for name in names]

    for env, expected in (({}, "off"), ({"KERAS_STROM_GPU_STEP": "on"}, "on")):
        outcome = call(look, env=env)
        assert outcome.result is not None, outcome.traceback
        assert pickle.loads(outcome.result) == [expected, "1", "127.0.0.1", "0"]


def test_the_users_variables_must_not_contradict_the_runner() -> None:
    with pytest.raises(errors.InvalidOption, match="KERAS_STROM_RANK"):
        WorkerProcess(Function.of(int), PLACE, env={"KERAS_STROM_RANK": "1"})


def test_closing_ends_a_worker_that_ignores_requests_and_its_children(start: StartProcess) -> None:
    def stay() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        sys.stdout.write(f"child {child.pid}\n")
        signal.pause()

    recorder = Recorder()
    process = WorkerProcess(Function.of(stay), PLACE, recorder, start=start)
    child = int(recorder.wait_for("child").split()[1])
    with pytest.raises(errors.DeadlinePassed):
        process.wait(0.0)
    outcome = process.close(grace=0.1)
    assert outcome.exit_code == -signal.SIGKILL
    assert outcome.terminated
    assert not outcome.failed
    wait_until_gone(child)
    assert not is_alive(process.pid)


def test_a_worker_that_ends_takes_its_children_along(start: StartProcess) -> None:
    def leave() -> int:
        return subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]).pid

    outcome = call(leave, start=start)
    assert outcome.result is not None
    wait_until_gone(pickle.loads(outcome.result))


STARTS = ["fresh_interpreter", pytest.param("ForkServers(os.getpid())", marks=pytest.mark.jobs)]


@pytest.mark.parametrize("start", STARTS)
def test_a_worker_dies_with_its_parent(start: str) -> None:
    code = f"""
import os, signal
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.runner.fork_server import ForkServers
from keras_strom.runner.process import WorkerProcess
from keras_strom.runner.work import Function
from keras_strom.runner.started_process import fresh_interpreter
process = WorkerProcess(Function.of(signal.pause), ClusterEnvironment(), start={start})
print(process.pid, flush=True)
signal.pause()
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
    finally:
        parent.kill()
        parent.communicate()
    wait_until_gone(worker)
