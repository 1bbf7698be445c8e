"""What a worker says when its script has ended: nothing, or the error that has ended it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keras_strom.job.environment import ClusterEnvironment
from keras_strom.runner.fork_server import ForkServers
from keras_strom.runner.process import WorkerProcess
from keras_strom.runner.work import Function
from keras_strom.strategy.fit_failure import warn_of_quiet_exit
from tests.support.recorded_worker import DEADLINE, Recorder, script

#: A script's first lines: the connection of its strategy prints why it was closed.
CONNECTED = """
import atexit, code, sys, types
from keras_strom.strategy.fit_failure import say_goodbye
worker = types.SimpleNamespace(close=lambda why: sys.stdout.write(f"goodbye: {why}\\n"))
atexit.register(say_goodbye, worker)
"""
SHOWN = "code.InteractiveInterpreter().runsource('1/0')\n"
FAILED = "goodbye: its script has failed: ValueError: bad data"

endings = pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("", "goodbye: "),
        ("raise ValueError('bad data')", FAILED),
        ("def main():\n    raise ValueError('bad data')\nmain()", FAILED),
        ("sys.exit(3)", "goodbye: "),
        (SHOWN, "goodbye: "),
        (SHOWN + "raise ValueError('bad data')", FAILED),
    ],
    ids=["well", "error", "in a function", "exit", "shown", "shown, then error"],
)


def python(*arguments: str, typed: str = "") -> list[str]:
    """The goodbyes of an interpreter with these arguments."""
    done = subprocess.run(
        [sys.executable, *arguments],
        input=typed,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    return [line for line in done.stdout.splitlines() if line.startswith("goodbye")]


@endings
@pytest.mark.parametrize("how", ["script", "module"])
def test_an_error_is_told_of_where_it_has_ended_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, lines: str, says: str
) -> None:
    path = script(tmp_path, CONNECTED + lines).path
    if how == "module":
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    assert python(*([path] if how == "script" else ["-m", "work"])) == [says]


def test_an_error_that_python_shows_and_goes_on_from_is_none_of_the_scripts(tmp_path: Path) -> None:
    path = script(tmp_path, CONNECTED + "raise ValueError('bad data')").path
    assert python("-i", path, typed="worker\n") == ["goodbye: "]
    assert python("-i", "-c", CONNECTED, typed="1/0\n") == ["goodbye: "]


@pytest.mark.jobs
@endings
def test_an_error_is_told_of_where_it_has_ended_a_forked_script(
    tmp_path: Path, lines: str, says: str
) -> None:
    recorder = Recorder()
    work = script(tmp_path, CONNECTED + lines)
    place, start = ClusterEnvironment(), ForkServers(os.getpid())
    with WorkerProcess(work, place, recorder, start=start) as process:
        process.wait(DEADLINE)
    assert [line for line in recorder.lines if line.startswith("goodbye")] == [says]


@endings
def test_an_error_is_told_of_where_it_has_ended_a_function(lines: str, says: str) -> None:
    def function(text: str) -> None:
        exec(text, {})

    recorder = Recorder()
    work = Function.of(function, CONNECTED + lines)
    with WorkerProcess(work, ClusterEnvironment(), recorder) as process:
        process.wait(DEADLINE)
    assert [line for line in recorder.lines if line.startswith("goodbye")] == [says]


@pytest.mark.parametrize(
    ("error", "warns"),
    [(SystemExit(0), True), (SystemExit(), True), (SystemExit(3), False), (OSError(), False)],
    ids=repr,
)
def test_a_script_that_exits_well_within_fit_is_warned_of(
    caplog: pytest.LogCaptureFixture, error: BaseException, warns: bool
) -> None:
    warn_of_quiet_exit("worker 1", error)
    assert caplog.messages[:1] == [words for words in caplog.messages if "status 0" in words]
    assert bool(caplog.messages) == warns
