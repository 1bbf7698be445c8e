"""A runner's side of checkpoints: what becomes of NetworkConfig.checkpoint_dir.

`JobMaster` opens them (`JobCheckpoints.of`) before the master, which gets their `epoch`, has them
collected while the job runs, and cleared when all workers have ended well. The runner tells its
workers their `plan` (`ClusterEnvironment.checkpoints`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable

from keras_strom import errors
from keras_strom.job.checkpoint_plan import CheckpointPlan
from keras_strom.job.network import NetworkConfig
from keras_strom.recovery.checkpoint_files import CheckpointFolder

_logger = logging.getLogger("keras_strom")

_LONGEST_POLL_SECONDS = 1.0


class JobCheckpoints:
    """The checkpoints of one run of a job; see `of`.

    Attributes:
        plan: for the workers; None = none are made.
        epoch: of this run's master.

    Example:
        >>> with JobCheckpoints.of(NetworkConfig(), workers=2) as checkpoints:
        ...     checkpoints.epoch, checkpoints.plan
        (1, None)
    """

    def __init__(self, folder: CheckpointFolder | None, plan: CheckpointPlan | None) -> None:
        self._folder = folder
        self._collecting: threading.Thread | None = None
        self._over = threading.Event()
        self.plan = plan
        self.epoch = 1 if folder is None else folder.epoch

    @classmethod
    def of(cls, network: NetworkConfig, workers: int) -> JobCheckpoints:
        """Opens the folder of `network`, and finds the checkpoint to go on from.

        Args:
            network: without a checkpoint_dir nothing of this does anything.
            workers: of the job.

        Raises:
            InvalidOption: a lone worker, which shares nothing, has no checkpoints of this kind.
            StoreUnavailable: the folder cannot be written.
            Refused: another version of keras-strom has written what is there.
        """
        if network.checkpoint_dir is None:
            return cls(None, None)
        refuse_without_others(network, workers)
        folder = CheckpointFolder(
            os.path.abspath(network.checkpoint_dir), kept=network.checkpoints_kept, workers=workers
        )
        plan = folder.plan(network.checkpoint_interval)
        if plan.restore is not None:
            _logger.info("the job goes on from %s", plan.restore)
        return cls(folder, plan)

    def collect(
        self, end_job: Callable[[str], object], made: Callable[[str], object] = lambda _: None
    ) -> None:
        """From now on parts become checkpoints, on a thread of their own.

        Args:
            end_job: is called with the reason where a later run uses the folder.
            made: is told the path of each checkpoint that is whole.
        """
        if self._folder is not None:
            self._collecting = threading.Thread(
                target=self._collect, args=(end_job, made), name="strom-checkpoints", daemon=True
            )
            self._collecting.start()

    def clear(self) -> None:
        """The job has ended well: the next run begins anew.

        Raises:
            StoreUnavailable: the folder cannot be written.
            Refused: a later run uses it.
        """
        self._stop()
        if self._folder is not None:
            self._folder.clear()

    def __enter__(self) -> JobCheckpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        if self._folder is not None:
            with contextlib.suppress(errors.StromError):  # The job's own failure says more.
                self._folder.collect()

    def _stop(self) -> None:
        self._over.set()
        if self._collecting is not None:
            self._collecting.join()

    def _collect(self, end_job: Callable[[str], object], made: Callable[[str], object]) -> None:
        assert self._folder is not None
        assert self.plan is not None
        pause = min(_LONGEST_POLL_SECONDS, self.plan.interval / 4)
        while not self._over.wait(pause):
            try:
                for path in self._folder.collect():
                    _logger.info("checkpoint %s", path)
                    made(str(path))
            except errors.Refused as error:
                end_job(str(error))
                return
            except errors.StoreUnavailable as error:
                _logger.warning("no checkpoint could be made: %s", error)


def refuse_without_others(network: NetworkConfig, workers: int) -> None:
    """A lone worker shares nothing, and has no checkpoints of this kind.

    Raises:
        InvalidOption: it is to have some.
    """
    if workers == 1 and network.checkpoint_dir is not None:
        raise errors.InvalidOption(
            "checkpoint_dir needs 2 workers or more; one alone is plain Keras: give its fit a "
            "keras.callbacks.BackupAndRestore"
        )
