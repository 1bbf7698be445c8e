"""A master for workers that share nothing."""

from __future__ import annotations

from typing import Any

from keras_strom.job.credentials import Credentials
from keras_strom.job.network import HostPort
from keras_strom.runner.master_options import MasterOptions


class SilentMaster:
    """Stands where a job wants a master; its address leads nowhere.

    Attributes:
        last: the latest one.
        options: what it was started with.
        closed: the reasons that it was closed with.
    """

    address: HostPort = ("127.0.0.1", 9)
    last: SilentMaster

    def __init__(self, options: MasterOptions) -> None:
        self.options = options
        self.credentials = (options.credentials or Credentials.new()).with_master(b"k" * 32)
        self.closed: list[str] = []
        SilentMaster.last = self

    def status(self) -> dict[str, Any]:
        """Nothing has been sent."""
        return {"counters": {"bytes_sent": 0}}

    def worker_has_ended(self, rank: int) -> None:
        """Nobody waits for it."""

    def close(self, reason: str = "") -> None:
        """Notes the reason."""
        self.closed.append(reason)
