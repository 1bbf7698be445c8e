"""The dashboard of a job that runs: its state, kept up to date, behind its server."""

from __future__ import annotations

import contextlib
import math
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from keras_strom import errors
from keras_strom.dashboard import running_jobs
from keras_strom.dashboard.page_address import PageAddress
from keras_strom.dashboard.server import PageServer
from keras_strom.dashboard.watched_job import AWAY, ENDED, FAILED, WatchedJob
from keras_strom.dashboard.watching import MasterStatus, Watching
from keras_strom.job.worker_record import WorkerRecord

_SECONDS = 1.0
# Whoever has read the page so lately is given so long to read how the job has ended.
_LATELY_SECONDS = 5.0
_LAST_LOOK_SECONDS = 3.0
_TOKEN_BYTES = 18


class Dashboard(Watching):
    """Serves a job's page from entry to exit; see `watch`, whose arguments these are.

    Attributes:
        url: of the page, token included, once entered.
    """

    wants_records = True

    def __init__(
        self, address: PageAddress, name: str, workers: int, tell: Callable[[str], object]
    ) -> None:
        self._address = address
        self._name = name
        self._workers = workers
        self._tell = tell
        self._lock = threading.Lock()  # Guards the job.
        self._job = WatchedJob(name, workers, time.monotonic())
        self._status: MasterStatus = dict
        self._over = threading.Event()
        self._last_look = threading.Event()  # Somebody has read the page since the job's end.
        self._read = -math.inf  # When somebody last has.
        self._token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._poll = threading.Thread(target=self._run, name="keras-strom-dashboard", daemon=True)
        self._end = contextlib.ExitStack()
        self._say_that_it_runs: Callable[[], object] = lambda: None
        self.url = ""

    def __enter__(self) -> Dashboard:
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(
                PageServer(self._address, self._token, self.look, self.snapshot, self.series)
            )
            self.url = f"{self._address.url(server.port)}/{self._token}/"
            self._say_that_it_runs = stack.enter_context(
                running_jobs.announced(self.url, self._name)
            )
            self._poll.start()
            self._end = stack.pop_all()
        self._tell(f"the job's page is {self.url}")
        return self

    def __exit__(self, kind: object, error: object, _: object) -> None:
        words = "the job has ended well" if kind is None else "the job has ended"
        if isinstance(error, errors.StromError):
            words = f"the job has failed: {str(error).partition(chr(10))[0]}"
        try:
            with self._lock:
                self._job.end(words, time.monotonic())
                self._over.set()
            self._poll.join()
            hurries = isinstance(error, KeyboardInterrupt | SystemExit)
            if not hurries and time.monotonic() - self._read < _LATELY_SECONDS:
                self._last_look.wait(_LAST_LOOK_SECONDS)
        finally:  # Ctrl+C meanwhile comes here at once.
            self._end.close()

    def look(self, after_event: int = 0) -> dict[str, Any]:
        """`snapshot` for somebody who is to see the job's end, too."""
        with self._lock:
            self._read = time.monotonic()
            if self._over.is_set():
                self._last_look.set()
            return self._job.snapshot(time.monotonic(), after_event)

    def snapshot(self, after_event: int = 0) -> dict[str, Any]:
        """The job's present state; see `WatchedJob.snapshot`."""
        with self._lock:
            return self._job.snapshot(time.monotonic(), after_event)

    def series(self, metric: str, ranks: list[int] | None) -> dict[str, Any]:
        """A metric over time: of these workers, or its spread over all."""
        with self._lock:
            history = self._job.history
            if ranks is None:
                return history.spread(metric)
            return history.of(metric, [rank for rank in ranks if rank < self._workers])

    def started(self, rank: int, host: str, attempt: int) -> None:
        """See `Watching`."""
        with self._lock:
            self._job.started(rank, host, attempt, time.monotonic())

    def heard(self, rank: int, record: WorkerRecord) -> None:
        """See `Watching`."""
        with self._lock:
            self._job.heard(rank, record, time.monotonic())

    def away(self, rank: int, words: str) -> None:
        """See `Watching`."""
        with self._lock:
            self._job.left(rank, AWAY, words, time.monotonic())

    def ended(self, rank: int, words: str, *, failed: bool = False) -> None:
        """See `Watching`."""
        with self._lock:
            self._job.left(rank, FAILED if failed else ENDED, words, time.monotonic())

    def event(self, text: str, rank: int = -1) -> None:
        """See `Watching`."""
        with self._lock:
            self._job.event("runner", rank, text, time.monotonic())

    def checkpoint(self, path: str) -> None:
        """See `Watching`."""
        with self._lock:
            self._job.checkpoint(path, time.monotonic())

    def follow(self, status: MasterStatus) -> None:
        """See `Watching`."""
        self._status = status

    def _run(self) -> None:
        while not self._over.wait(_SECONDS):
            found: Any = {}
            with contextlib.suppress(errors.StromError):  # It has just ended.
                found = self._status()
            with self._lock:
                self._job.master(found, time.monotonic())
                self._job.tick(time.monotonic())
            self._say_that_it_runs()
