"""The frame in which every runner runs a job: its master, and what becomes of its checkpoints.

`keras-strom run` and `keras_strom.spark.run` differ in how they start workers and wait for them.
What stands around that is the same, and is this file's.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from keras_strom import errors
from keras_strom.job.checkpoint_plan import CheckpointPlan
from keras_strom.job.credentials import Credentials
from keras_strom.job.joining import verdict
from keras_strom.job.network import HostPort
from keras_strom.runner.job_checkpoints import JobCheckpoints
from keras_strom.runner.master_options import Master, MasterOptions, StartMaster

_SHARED_NOTHING = (
    "no worker has made a StromStrategy, so each has run by itself and nothing was shared: make "
    "one, and the model in its scope"
)


class JobMaster:
    """The master of a job and the collector of its checkpoints, from entry to exit.

    A lone worker has no master, and nothing is started for it.

    Args:
        options: of the master; the epoch is set here.
        start: starts it.
        checkpoint: is told the path of each checkpoint that is whole.

    Attributes:
        plan: what the workers are told of checkpoints, once entered; None = none are made.

    Raises:
        AddressError: on entry, a port in use or a mask that matches nothing.
        InvalidOption: on entry, checkpoints of a lone worker.
        StoreUnavailable: on entry, the folder for checkpoints cannot be written.

    Example:
        >>> options = MasterOptions(workers=1, network=NetworkConfig())  # doctest: +SKIP
        >>> with JobMaster(options, start_master) as master:  # doctest: +SKIP
        ...     run_workers(master.address, master.credentials, master.plan)
        ...     master.end_well()
    """

    def __init__(
        self,
        options: MasterOptions,
        start: StartMaster,
        checkpoint: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._options = options
        self._checkpoint = checkpoint
        self._start = start
        self._master: Master | None = None
        self._end = contextlib.ExitStack()
        self.plan: CheckpointPlan | None = None

    def __enter__(self) -> JobMaster:
        options = self._options
        with contextlib.ExitStack() as stack:
            self._checkpoints = stack.enter_context(
                JobCheckpoints.of(options.network, options.workers)
            )
            self.plan = self._checkpoints.plan
            if options.workers > 1:
                options = dataclasses.replace(options, epoch=self._checkpoints.epoch)
                self._master = self._start(options)
                stack.callback(self._master.close, "the job has ended")
                self._checkpoints.collect(self._master.close, self._checkpoint)
            self._end = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()

    def begin_again(self) -> None:
        """Ends the master and starts another; the plan goes on from the newest checkpoint.

        Raises:
            AddressError: the port is in use.
            StoreUnavailable: the folder for checkpoints cannot be written.
        """
        self._end.close()
        self.__enter__()

    @property
    def address(self) -> HostPort | None:
        """Where workers reach the master; None = there is none."""
        return None if self._master is None else self._master.address

    @property
    def credentials(self) -> Credentials | None:
        """What workers need to be let in; None = there is no master."""
        return None if self._master is None else self._master.credentials

    def status(self) -> Mapping[str, Any]:
        """The master's state and counters; nothing without one."""
        return {} if self._master is None else self._master.status()

    def worker_has_ended(self, rank: int) -> None:
        """That a worker's process has ended well: who waits for it is told where it never came."""
        if self._master is not None:
            self._master.worker_has_ended(rank)

    def judged(self, failure: errors.WorkerFailed) -> errors.WorkerFailed:
        """A worker's failure with what the master has seen of it."""
        if self._master is None:
            return failure
        return failure.with_verdict(verdict(failure.traceback, self._master.status()))

    def lost_at_last(self) -> set[int]:
        """The ranks whose processes the master has lost without a word, and not seen again."""
        latest = {one["rank"]: one for one in self.status().get("events", ())}
        return {
            int(rank)
            for rank, event in latest.items()
            if event["type"] == "lost" and " failed: " not in event["text"]
        }

    def of_nothing_shared(self) -> str:
        """What to say of a job in which no worker has looked for the master; "" = some has."""
        return "" if self.status().get("events_total", 1) else _SHARED_NOTHING

    def end_well(self) -> None:
        """All workers have ended well: the next run of the job begins anew.

        Raises:
            StoreUnavailable: the folder for checkpoints cannot be written.
            Refused: a later run uses it.
        """
        self._checkpoints.clear()
