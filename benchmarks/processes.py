"""Processes of benchmarks: those of one job, which end by themselves, and one that is asked."""

from __future__ import annotations

import multiprocessing
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import IO, Any

_POLL_SECONDS = 0.1
_LAST_WORDS = 3000

#: Processes of one job, and what each has said.
Running = Sequence[tuple[subprocess.Popen[Any], IO[str]]]


class Asked:
    """A new process that answers whenever it is asked, and ends once nobody can ask any more.

    Args:
        serve: what it runs, a function of a module: it gets the other end of a pipe, on which it
            answers each message until there is no more (EOFError).
        arguments: its others.
    """

    def __init__(self, serve: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, *arguments))
        self._process.start()
        theirs.close()

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self) -> Any:
        """Its answer; EOFError or ConnectionError where it has ended."""
        self._pipe.send(True)
        return self._pipe.recv()

    def close(self) -> None:
        """Nobody asks any more; returns once it has ended."""
        self._pipe.close()
        self._process.join()

    def end_code(self) -> int | None:
        """How it has ended, once it has: negative, by which signal."""
        self._process.join()
        return self._process.exitcode


def wait_for(way: str, running: Running, seconds: float) -> None:
    """Until all processes have ended.

    Args:
        way: what the job is called in errors.
        running: its processes.
        seconds: that it may take.

    Raises:
        RuntimeError: one has failed, which the others may wait for in vain, or time is up.
    """
    deadline = time.monotonic() + seconds
    while any(process.poll() is None for process, _ in running):
        for process, log in running:
            if process.poll():
                raise _failed(way, f"ended with {process.returncode}", log)
        if time.monotonic() > deadline:
            raise _failed(way, f"has not ended after {seconds:g} s", running[0][1])
        time.sleep(_POLL_SECONDS)
    for process, log in running:
        if process.returncode:
            raise _failed(way, f"ended with {process.returncode}", log)


def last_line(way: str, log: IO[str]) -> str:
    """The last one that is JSON: the program's outcome, whatever else its libraries have said.

    Raises:
        RuntimeError: there is none.
    """
    words = _words(log)
    lines = [line for line in words.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"{way} has told no outcome:\n{words[-_LAST_WORDS:]}")
    return lines[-1]


def stop(process: subprocess.Popen[Any]) -> None:
    """Kills it, if it still runs."""
    if process.poll() is None:
        process.kill()
        process.wait()


def _failed(way: str, how: str, log: IO[str]) -> RuntimeError:
    return RuntimeError(f"{way} {how}:\n{_words(log)[-_LAST_WORDS:]}")


def _words(log: IO[str]) -> str:
    log.seek(0)
    return log.read()
