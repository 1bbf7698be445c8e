"""What a runner asks of a job's master, and what every master can do.

There are two: on a thread of the runner's process (`keras_strom.relay.training_relay`), and in a
process of its own (`keras_strom.runner.master_supervisor`). `keras_strom.runner.start_master` picks
one of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from keras_strom.job.credentials import Credentials
from keras_strom.job.network import HostPort, NetworkConfig


class Master(Protocol):
    """Serves the workers of one job: through it they share their updates."""

    @property
    def address(self) -> HostPort:
        """Where workers reach it: what they find in KERAS_STROM_MASTER."""

    @property
    def credentials(self) -> Credentials:
        """What workers need to be let in."""

    def status(self) -> Mapping[str, Any]:
        """State and counters, for the result's metrics."""

    def worker_has_ended(self, rank: int) -> None:
        """That this worker's process has ended well, which may never have come: who waits is told.

        Harmless when repeated, and once closed.
        """

    def close(self, reason: str = "") -> None:
        """Ends it; with a reason, workers that are still there are told."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MasterOptions:
    """What a runner asks of the master that it starts.

    Attributes:
        workers: the ranks are 0 to `workers` - 1.
        network: the job's options.
        host: the literal address to bind to; None = what `network` picks.
        min_workers: so many are enough to start, and with fewer of them training waits; None = it
            starts with all and goes on with those that are left.
        credentials: the job's; None = fresh ones.
        epoch: of the master; a job that goes on from a checkpoint has a higher one than before.
    """

    workers: int
    network: NetworkConfig
    host: str | None = None
    min_workers: int | None = None
    credentials: Credentials | None = None
    epoch: int = 1


#: What starts the master of a job.
StartMaster = Callable[[MasterOptions], Master]
