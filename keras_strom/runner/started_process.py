"""How a worker's process comes to be: as a fresh interpreter, or as its runner wants it.

A `StartProcess` is told all that the process is to be. What it gives, a `StartedProcess`, is read
and reaped alike, whatever it is a child of.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import BinaryIO, Protocol

from keras_strom.job.linux import create_memory_file


@dataclasses.dataclass(frozen=True, kw_only=True)
class NewProcess:
    """What a process is to be.

    Attributes:
        arguments: of `keras_strom.runner.worker_main`, after the parent's id.
        variables: its whole environment.
        fds: file descriptors that it inherits, under the same numbers.
    """

    arguments: tuple[str, ...]
    variables: Mapping[str, str]
    fds: tuple[int, ...] = ()


class StartedProcess(Protocol):
    """A process that leads a process group and a session of its own."""

    @property
    def pid(self) -> int:
        """Its id, and its group's; nobody else has it before `reap` has returned."""

    @property
    def output(self) -> BinaryIO:
        """The reading end of a pipe that is its stdout and stderr, unbuffered."""

    def reap(self) -> int:
        """Waits for its end, gives its id away and returns its exit code; -N for signal N."""


#: Raises OSError where there can be no such process.
StartProcess = Callable[[NewProcess], StartedProcess]


def fresh_interpreter(new: NewProcess) -> StartedProcess:
    """Runs `python -m keras_strom.runner.worker_main` as a child of this process.

    The kernel kills it when the thread that calls this ends.
    """
    return _Child(new)


def memory_file(name: str, content: bytes) -> int:
    """A descriptor of a file in memory that holds `content`, to be read from its start.

    Args:
        name: for people who look at /proc; several may have the same.
        content: of any length.
    """
    fd = create_memory_file(name)
    with open(os.dup(fd), "wb") as file:
        file.write(content)
        file.flush()
        file.seek(0)
    return fd


def module_command(module: str) -> list[str]:
    """A command line that runs a module as `python -P -m` does from Python 3.11 on.

    What lies in the folder at hand, a user's `queue.py` say, is not imported in place of Python's
    own. More arguments may follow.
    """
    script = (
        "import sys; sys.path = list(filter(None, sys.path)); import runpy; "
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-c", script]


class _Child:
    def __init__(self, new: NewProcess) -> None:
        main = "keras_strom.runner.worker_main"
        # A function's own modules may lie in the folder at hand; a script is found by its path.
        is_script = new.arguments[:1] == ("script",)
        command = module_command(main) if is_script else [sys.executable, "-m", main]
        self._process = subprocess.Popen(
            [*command, str(os.getpid()), *new.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            env=new.variables,
            pass_fds=new.fds,
            start_new_session=True,
        )
        self.pid = self._process.pid

    @property
    def output(self) -> BinaryIO:
        assert self._process.stdout is not None
        return self._process.stdout  # type: ignore[return-value]

    def reap(self) -> int:
        return self._process.wait()
