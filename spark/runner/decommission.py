"""Has workers leave the executors that Spark is about to take away, and their tasks run elsewhere.

Of a decommission Spark tells its scheduler and the executor's JVM, not the processes beside that.
So the driver asks its scheduler, once a second, whether an executor with a worker is one of those;
only where `spark.decommission.enabled` is set, since there are none otherwise. A worker there is
asked to leave. Once it has, its task is killed, which for Spark is no failure of the task: Spark
runs it again, on an executor that stays.
"""

from __future__ import annotations

import logging
import queue
import threading
from types import TracebackType
from typing import TYPE_CHECKING

from .application import is_on
from .controller import Controller

if TYPE_CHECKING:
    from pyspark import SparkContext

POLL_SECONDS = 1.0

_logger = logging.getLogger("keras_strom")


class Decommissions:
    """Looks at the executors of a job while the context lasts.

    Args:
        context: whose executors they are.
        controller: knows which of them have workers, and speaks to their tasks.
    """

    def __init__(self, context: SparkContext, controller: Controller) -> None:
        self._context = context
        self._controller = controller
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Decommissions:
        if is_on(self._context, "spark.decommission.enabled"):
            self._thread = threading.Thread(
                target=self._watch, name="keras-strom-decommission", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._controller.vacated.put(None)
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        try:
            while True:
                try:
                    task = self._controller.vacated.get(timeout=POLL_SECONDS)
                except queue.Empty:
                    self._look()
                else:
                    if task is None:
                        return
                    self._run_elsewhere(task)
        except Exception as error:  # Of a JVM that has ended, or has no such method any more.
            _logger.warning("decommissioned executors are not noticed any more: %s", error)

    def _look(self) -> None:
        for executor in sorted(self._controller.executors()):
            if self._leaves(executor):
                self._controller.drain(executor)

    def _leaves(self, executor: str) -> bool:
        scheduler = self._context._jsc.sc().taskScheduler()
        return bool(scheduler.getExecutorDecommissionState(executor).isDefined())

    def _run_elsewhere(self, task: int) -> None:
        words = "its executor is decommissioned, and its worker has left"
        self._context._jsc.sc().killTaskAttempt(task, True, words)
