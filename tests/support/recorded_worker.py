"""A worker's process whose lines and end a test waits for."""

from __future__ import annotations

import threading
from pathlib import Path

from keras_strom.runner.outcome import Outcome
from keras_strom.runner.process import WorkerListener
from keras_strom.runner.work import Script

DEADLINE = 60.0

# A worker that listens as one that has joined its job, and leaves as one that has handed over.
LISTENS = """
import sys, time
from keras_strom.job.drain import DRAINED_EXIT_CODE, request
from keras_strom.job.environment import ClusterEnvironment
request.listen(ClusterEnvironment.from_environ())
print("ready", flush=True)
while not request.why:
    time.sleep(0.01)
print("asked by", request.why, flush=True)
"""
LEAVES = LISTENS + "request.has_left(stepped=True)\nsys.exit(DRAINED_EXIT_CODE)\n"


class Recorder(WorkerListener):
    """Keeps what a worker says and lets a test wait for a line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.bars: list[str] = []
        self.outcomes: list[Outcome] = []
        self._changed = threading.Condition()

    def line(self, text: str) -> None:
        with self._changed:
            self.lines.append(text)
            self._changed.notify_all()

    def progress(self, text: str) -> None:
        self.bars.append(text)

    def ended(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def wait_for(self, start: str) -> str:
        def found() -> str | None:
            return next((line for line in self.lines if line.startswith(start)), None)

        with self._changed:
            line = self._changed.wait_for(found, DEADLINE)
        assert line is not None, self.lines
        return line


def script(tmp_path: Path, text: str) -> Script:
    path = tmp_path / "work.py"
    path.write_text(text)
    return Script(str(path))
