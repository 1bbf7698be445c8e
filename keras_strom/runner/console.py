"""What a runner shows: every worker's lines with its rank, and the chief's progress bar."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterable
from typing import TextIO

from keras_strom.runner.output import plain

_logger = logging.getLogger("keras_strom")

_REDRAW_SECONDS = 0.1
_NOTEBOOK_REDRAW_SECONDS = 0.5  # Each is a message to its page.
_CLEAR_LINE = "\r\x1b[K"


class Console:
    """Writes lines of several workers to one stream, whole lines at a time.

    On a terminal and in a notebook the lowest rank's progress bar is redrawn below the lines;
    elsewhere only its finished state is written. Terminal escapes are for terminals alone. Safe to
    use from any thread.

    Characters that the stream's encoding lacks are escaped, and what cannot be written (a full
    disk, a pipe that nobody reads) is left out, which is logged once: training goes on.

    Args:
        workers: with more than one, lines start with "[rank] ".
        stream: None = whatever sys.stdout is when a line is written.
        lines: whether what workers write is shown.
        messages: whether what the runner says is.

    Attributes:
        shows_lines: `lines`.
    """

    def __init__(
        self,
        workers: int,
        stream: TextIO | None = None,
        *,
        lines: bool = True,
        messages: bool = True,
    ) -> None:
        self.shows_lines = lines
        self._shows_messages = messages
        self._prefixed = workers > 1
        self._stream = stream
        self._lock = threading.Lock()
        self._bar: tuple[int, str] | None = None
        self._bar_time = 0.0
        self._drawn = 0  # Characters of the bar as it stands there.
        self._fails = False

    def line(self, rank: int, text: str) -> None:
        """Shows one finished line of a worker."""
        if not self.shows_lines:
            return
        with self._lock:
            if self._bar is not None and self._bar[0] == rank:
                self._erase()
                self._bar = None
            self._write(self._label(rank) + text)

    def message(self, text: str) -> None:
        """Shows a line of the runner itself."""
        if not self._shows_messages:
            return
        with self._lock:
            self._write(f"keras-strom: {text}")

    def progress(self, rank: int, text: str) -> None:
        """Shows the present state of a line that a worker keeps redrawing."""
        if not self.shows_lines:
            return
        with self._lock:
            if not self.redraws or (self._bar is not None and self._bar[0] < rank):
                return
            self._bar = (rank, self._label(rank) + plain(text))
            seconds = _REDRAW_SECONDS if self._is_terminal() else _NOTEBOOK_REDRAW_SECONDS
            if time.monotonic() - self._bar_time >= seconds:
                self._draw_bar()

    def _write(self, text: str) -> None:
        if self._bar is not None:
            self._erase()
        self._put((text if self._is_terminal() else plain(text)) + "\n")
        if self._bar is not None:
            self._draw_bar()

    def _draw_bar(self) -> None:
        if self._bar is not None:
            self._erase()
            text = self._bar[1]
            if self._is_terminal():
                text = text[: shutil.get_terminal_size().columns - 1]
            self._put(text)
            self._drawn = len(text)
            self._bar_time = time.monotonic()

    def _erase(self) -> None:
        if self._is_terminal():
            self._put(_CLEAR_LINE)
        elif self._drawn:
            self._put("\r" + " " * self._drawn + "\r")
        self._drawn = 0

    def _put(self, text: str) -> None:
        out = self._out
        if out is None:
            return  # It was closed before the program began.
        encoding = getattr(out, "encoding", None) or "utf-8"
        try:
            out.write(text.encode(encoding, "backslashreplace").decode(encoding))
            out.flush()
            self._fails = False
        except (OSError, ValueError) as error:  # ValueError: the stream is closed.
            if not self._fails:
                _logger.warning("output is left out, for it cannot be written: %s", error)
            self._fails = True

    @property
    def _out(self) -> TextIO | None:
        return sys.stdout if self._stream is None else self._stream

    @property
    def redraws(self) -> bool:
        """Whether what is written takes a line that is drawn again and again."""
        return self._is_terminal() or type(self._out).__module__.startswith("ipykernel.")

    def _is_terminal(self) -> bool:
        out = self._out  # A stand-in for a stream may not say whether it is closed.
        return out is not None and not getattr(out, "closed", False) and out.isatty()

    def _label(self, rank: int) -> str:
        return f"[{rank}] " if self._prefixed else ""


def workers_in_words(ranks: Iterable[int]) -> str:
    """Names them.

    Example:
        >>> workers_in_words([0, 2, 3])
        'workers 0, 2 and 3'
    """
    *others, last = map(str, ranks)
    return f"workers {', '.join(others)} and {last}" if others else f"worker {last}"


def let_go_of_output() -> None:
    """At a program's end: drops what cannot be written to a pipe that nobody reads, or a full disk.

    Python would try it once more, and end with exit code 120.
    """
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None where it was closed beforehand.
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nothing:
                os.dup2(nothing.fileno(), stream.fileno())
