"""Fork servers: who shares one, how long it lives, and what workers of it do not share.

That a forked worker is as one of a fresh interpreter is checked in test_process.py.
"""

from __future__ import annotations

import atexit
import errno
import os
import pickle
import random
import selectors
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keras_strom import errors
from keras_strom.job import drain
from keras_strom.job.drain import DRAINED_EXIT_CODE
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.runner import fork_server, fork_server_main
from keras_strom.runner.fork_server import ForkServers
from keras_strom.runner.outcome import Outcome
from keras_strom.runner.process import WorkerProcess
from keras_strom.runner.work import Function, Script
from tests.support.processes import wait_until_gone

pytestmark = pytest.mark.jobs
DEADLINE = 100.0


def run(work: Script | Function, **options: Any) -> Outcome:
    start = ForkServers(os.getpid())
    with WorkerProcess(work, ClusterEnvironment(), start=start, **options) as process:
        return process.wait(DEADLINE)


def call(function: Any, *args: Any, **options: Any) -> Any:
    outcome = run(Function.of(function, *args), **options)
    assert outcome.result is not None, outcome.traceback
    return pickle.loads(outcome.result)


def imported() -> tuple[int, bool]:
    """The server's id, and whether TensorFlow was there before the function asked for it."""
    return os.getppid(), "tensorflow" in sys.modules


def test_workers_with_the_same_variables_share_one_import() -> None:
    server, there = call(imported)
    assert there
    assert call(imported) == (server, True)
    assert call(imported, env={"CUDA_VISIBLE_DEVICES": "-1"}) == (server, True)


def test_workers_with_other_variables_have_a_server_of_their_own() -> None:
    server, _ = call(imported)
    other, _ = call(imported, env={"TF_ENABLE_ONEDNN_OPTS": "0"})
    assert other not in (server, os.getpid())


def test_random_numbers_of_two_workers_differ() -> None:
    def draw() -> list[float]:
        import keras
        import numpy as np
        import tensorflow as tf

        drawn = [random.random(), np.random.rand(), np.random.default_rng().random()]
        return [float(x) for x in (*drawn, tf.random.uniform([]), keras.random.uniform([]))]

    assert all(a != b for a, b in zip(call(draw), call(draw), strict=True))


def test_nothing_of_a_worker_is_left_for_the_next() -> None:
    def leave() -> None:
        import keras

        keras.backend.set_floatx("float16")
        os.environ["LEFT"] = "1"
        os.chdir("/")

    def look() -> tuple[str, str | None, str]:
        import keras

        return keras.backend.floatx(), os.environ.get("LEFT"), os.getcwd()

    call(leave)
    assert call(look) == ("float32", None, os.getcwd())


def test_a_script_has_the_path_that_it_would_have_by_itself(tmp_path: Path) -> None:
    """Where Python is told to leave out the script's folder, it leaves out no other."""
    folder = tmp_path / "libraries"
    folder.mkdir()
    (folder / "only_there.py").touch()
    (tmp_path / "beside.py").touch()
    path = tmp_path / "work.py"
    path.write_text(
        "import importlib.util as util\n"
        "print([util.find_spec(name) is not None for name in ('only_there', 'beside')])\n"
    )
    for safe in ("", "1"):
        env = {"PYTHONPATH": f"{folder}:{os.environ['PYTHONPATH']}", "PYTHONSAFEPATH": safe}
        outcome = run(Script(str(path)), env=env)
        command = [sys.executable, str(path)]
        alone = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True)
        assert outcome.log_tail[-1:] == tuple(alone.stdout.splitlines())


def test_a_script_is_the_main_module(tmp_path: Path) -> None:
    path = tmp_path / "work.py"
    path.write_text(
        "import pickle, sys\n"
        "class Mine: number: int\n"
        "def f(): raise KeyError('gone')\n"
        "assert isinstance(pickle.loads(pickle.dumps(Mine())), Mine)\n"
        "import __main__; assert __main__.Mine is Mine\n"
        "assert Mine.__annotations__ == {'number': int}\n"
        "if sys.argv[1] == 'exit': sys.exit(3)\n"
        "f()\n"
    )
    assert run(Script(str(path), ("exit",))).exit_code == 3
    failed = run(Script(str(path), ("raise",)))
    assert (failed.exit_code, failed.raised) == (1, False)
    assert failed.traceback.splitlines()[1].strip().startswith(f'File "{path}", line 8')
    assert failed.traceback.endswith("KeyError: 'gone'")


@pytest.mark.parametrize("drained", [True, False])
def test_a_worker_that_has_drained_unwinds_and_ends_without_taking_tensorflow_apart(
    drained: bool,
) -> None:
    class TakenApart:
        def __del__(self, write: Any = os.write) -> None:
            write(1, b"taken apart\n")

    def leave() -> None:
        atexit.register(print, "at exit")
        sys.modules["left to the end"] = TakenApart()  # type: ignore[assignment]
        if drained:
            drain.request.has_left(stepped=False)
        try:
            raise SystemExit(DRAINED_EXIT_CODE)
        finally:
            sys.stdout.write("unwound, ")  # In a buffer, since it is no terminal.

    outcome = run(Function.of(leave), env={"PYTHONUNBUFFERED": ""})
    assert outcome.exit_code == DRAINED_EXIT_CODE
    assert "unwound, at exit" in "\n".join(outcome.log_tail)
    assert ("taken apart" in "\n".join(outcome.log_tail)) is not drained


def test_a_worker_ends_with_its_server() -> None:
    start = ForkServers(os.getpid())
    work = Function.of(signal.pause)
    # A server of its own: the other tests' must live.
    with WorkerProcess(work, ClusterEnvironment(), env={"MINE": "1"}, start=start) as process:
        stat = Path(f"/proc/{process.pid}/stat").read_text()
        os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
        assert process.wait(DEADLINE).exit_code == -signal.SIGKILL


def test_a_server_that_is_asked_to_leave_with_its_workers_stays_for_them() -> None:
    mine = {"MINE": "3"}
    server, _ = call(imported, env=mine)
    os.kill(server, signal.SIGTERM)
    assert call(imported, env=mine) == (server, True)
    assert call(signal.getsignal, signal.SIGTERM, env=mine) == signal.SIG_DFL


def test_a_server_ends_with_its_owner() -> None:
    owner = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        start = ForkServers(owner.pid)
        with WorkerProcess(Function.of(os.getppid), ClusterEnvironment(), start=start) as process:
            result = process.wait(DEADLINE).result
    finally:
        owner.kill()
        owner.wait()
    assert result is not None
    wait_until_gone(pickle.loads(result))


def test_a_server_that_nobody_asks_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "IDLE_SECONDS", 0.01)
    wait_until_gone(call(imported, env={"MINE": "2"})[0])


def test_where_the_import_fails_a_fresh_interpreter_says_why(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("raise ImportError('half an installation')\n")

    def use() -> None:
        import tensorflow  # noqa: F401

    outcome = run(Function.of(use), env={"PYTHONPATH": str(tmp_path)})
    assert outcome.traceback.endswith("ImportError: half an installation\n")


def test_another_user_is_not_spoken_with(monkeypatch: pytest.MonkeyPatch) -> None:
    here, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fork_server.check_peer(here)
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    with pytest.raises(PermissionError, match=f"user {me}"):
        fork_server.check_peer(here)


def test_a_number_in_use_is_not_taken_away() -> None:
    reading, writing = os.pipe()
    with pytest.raises(RuntimeError, match=f"descriptor {writing} is in use"):
        fork_server_main._renumber([os.dup(reading)], [writing])
    os.close(reading)
    os.close(writing)


def test_a_server_that_cannot_fork_once_more_keeps_the_workers_that_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a container that may have so many processes: who asks hears it, and nobody else."""

    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = fork_server_main._Server(listener, os.getpid(), 1.0)
    with listener:
        ends = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        for connection, _ in ends:
            server._workers[connection] = 0
            server._selector.register(connection, selectors.EVENT_READ)
        monkeypatch.setattr(os, "fork", refuse)
        reading, writing = os.pipe()
        socket.send_fds(ends[0][1], [b"fork"], [writing])
        os.close(writing)
        assert server._hear(ends[0][0]) is None
        assert ends[0][1].recv(8) == b""
        assert list(server._workers) == [ends[1][0]]
        assert os.read(reading, 1) == b""  # Nothing that came with the request is left open.
        os.close(reading)
        for end in (*ends[0], *ends[1]):
            end.close()
        server._leave()


def test_a_misuse_is_refused_before_anything_starts() -> None:
    with pytest.raises(errors.InvalidOption, match="KERAS_STROM_RANK"):
        run(Function.of(int), env={"KERAS_STROM_RANK": "1"})
