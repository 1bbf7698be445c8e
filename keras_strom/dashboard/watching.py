"""What a runner tells whoever watches its job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from keras_strom.job.worker_record import WorkerRecord

#: The present `status()` of the job's master.
MasterStatus = Callable[[], Mapping[str, Any]]


class Watching:
    """Hears of a job and does nothing with it; `Dashboard` shows it. Any thread may call it.

    Attributes:
        wants_records: whether workers are to tell of themselves.
    """

    wants_records = False

    def started(self, rank: int, host: str, attempt: int) -> None:
        """A worker's process starts on `host`, for the `attempt`-th time, from 0."""

    def heard(self, rank: int, record: WorkerRecord) -> None:
        """A worker tells of itself."""

    def away(self, rank: int, words: str) -> None:
        """A worker's process has ended, and another may take its place."""

    def ended(self, rank: int, words: str, *, failed: bool = False) -> None:
        """A worker's process has ended for good."""

    def event(self, text: str, rank: int = -1) -> None:
        """Something has happened to the job, or to one of its workers."""

    def checkpoint(self, path: str) -> None:
        """A checkpoint of the job is whole."""

    def follow(self, status: MasterStatus) -> None:
        """The master runs; `status` is asked about once a second."""
