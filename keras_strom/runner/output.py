"""A worker's output as lines: bounded, without redrawn progress bars, and its last traceback.

Sans-IO: bytes go in, lines come out. `keras_strom.runner.process` feeds it from a child's pipe.
"""

from __future__ import annotations

import codecs
import collections
import re

from keras_strom.tracebacks import (
    TRACEBACK_HEADER,
    begins_traceback,
    goes_on,
    names_exception,
)

MAX_LINE = 8192
TAIL_LINES = 100

_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-Z\\-_])")
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_MAX_TRACEBACK_LINES = 200


# TensorFlow prints these while it is imported, before any of its log levels counts.
_STARTUP_NOTE = re.compile(
    r"WARNING: All log messages before absl::InitializeLog\(\) is called"
    r"|I0000 [0-9:.]+ +\d+ port\.cc:\d+\] oneDNN custom operations are on"
)


def is_startup_note(line: str) -> bool:
    """Whether `line` is one of TensorFlow's start-up notes, which tell a user nothing."""
    return _STARTUP_NOTE.match(line) is not None


def plain(text: str) -> str:
    """The text without terminal escape sequences (colours, cursor movements)."""
    return _ESCAPE.sub("", text)


class LineSplitter:
    r"""Cuts a byte stream into lines as a terminal would show them.

    A carriage return starts the line anew, so of a progress bar only its last state is a line.
    Lines longer than MAX_LINE characters are cut into several.

    Example:
        >>> LineSplitter().feed(b"1/2\r2/2\ndone\n")
        ['2/2', 'done']
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""

    @property
    def redrawn(self) -> str:
        """The unfinished line if it is being redrawn (a progress bar), else empty."""
        return _visible(self._pending) if "\r" in self._pending else ""

    def feed(self, chunk: bytes) -> list[str]:
        """Takes the next bytes and returns the lines that they complete."""
        *lines, self._pending = (self._pending + self._decoder.decode(chunk)).split("\n")
        self._forget_overwritten()
        done = [piece for line in lines for piece in _pieces(_visible(line))]
        while len(self._pending) > MAX_LINE:
            done.append(self._pending[:MAX_LINE].lstrip("\r"))
            self._pending = self._pending[MAX_LINE:]
        return done

    def close(self) -> list[str]:
        """Returns what is left: a last line without an end."""
        rest = self.feed(self._decoder.decode(b"", final=True).encode() + b"\n")
        return rest if rest != [""] else []

    def _forget_overwritten(self) -> None:
        head, carriage_return, tail = self._pending.rpartition("\r")
        if tail:
            self._pending = carriage_return + tail
        elif head:
            self._pending = _visible(head) + "\r"


def _visible(line: str) -> str:
    shown = [part for part in line.replace("\b", "").split("\r") if part]
    return shown[-1] if shown else ""


def _pieces(line: str) -> list[str]:
    return [line[i : i + MAX_LINE] for i in range(0, len(line), MAX_LINE)] or [""]


class OutputRecord:
    """The last lines of a worker's output and the last Python traceback among all of them."""

    def __init__(self) -> None:
        self._tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
        self._traceback: list[str] = []
        self._message: list[str] = []  # Of the exception that was named last.
        self._inside = False
        self._chained = False

    @property
    def tail(self) -> tuple[str, ...]:
        """The last TAIL_LINES lines without terminal escapes, oldest first."""
        return tuple(self._tail)

    @property
    def traceback(self) -> str:
        """The last traceback with the exceptions that led to it; empty when there was none."""
        return "\n".join(self._traceback)

    def add(self, line: str) -> None:
        """Takes one more line."""
        line = plain(line)
        self._tail.append(line)
        if begins_traceback(line) and not self._goes_on(line):
            if not self._chained:
                self._traceback = []
            self._inside, self._chained = True, False
            self._message = []
            self._keep(TRACEBACK_HEADER)
        elif self._inside:
            self._keep(line)
            if names_exception(line):
                self._inside, self._message = False, [line]
        elif self._goes_on(line):
            self._message.append(line)
            self._keep(line)
        elif line.strip() in _CHAINED:
            self._chained = True
            self._keep("")
            self._keep(line)
            self._keep("")
        elif line.strip():
            self._chained, self._message = False, []

    def _goes_on(self, line: str) -> bool:
        """Whether the exception that was named last says more in this line."""
        return bool(self._message) and goes_on(self._message, line)

    def _keep(self, line: str) -> None:
        if len(self._traceback) < _MAX_TRACEBACK_LINES:
            self._traceback.append(line)


class WithoutInterrupt:
    """Leaves out of a worker's lines the traceback with which Ctrl+C ends its script.

    Who has pressed it knows, and each worker would say so.
    """

    def __init__(self) -> None:
        self._held: list[str] = []  # Of a traceback whose end has not come.

    def feed(self, line: str) -> list[str]:
        """The lines that are to be shown now."""
        if begins_traceback(line):
            return self._exchange([line])
        if not self._held or line == "KeyboardInterrupt":
            shown = [] if self._held else [line]
            self._held = []
            return shown
        self._held.append(line)
        return self._exchange([]) if names_exception(line) else []

    def close(self) -> list[str]:
        """What it has kept back; nothing follows."""
        return self._exchange([])

    def _exchange(self, held: list[str]) -> list[str]:
        before, self._held = self._held, held
        return before
