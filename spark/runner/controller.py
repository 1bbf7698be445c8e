"""The driver's end of a job: gives out ranks, shows output, and learns of the first failure.

Every task registers over a `Channel`. Once all have, or as many as an elastic job needs, they get
their ranks (workers of one host next to each other) and start; from then on the controller hears
their output and how they end. A task of an elastic job that registers later gets the next rank.

While the job allows for more failures, a worker whose process has died is started again by its
task, and one whose task is lost by the task that Spark runs in its place: that one registers for
the same partition with a higher attempt, and what is left of the old one is told to end. A second
copy of a task that lives (speculation) is kept waiting: were it to return, Spark would end the
first one.

A worker whose executor is about to be taken away (`drain`) is asked to leave. Its task is then
vacated: Spark is to run it elsewhere, which is no failure either.

Executors of an elastic job come and go, so that its lost tasks are no failures. It waits for them
while too few workers are left, and is over when those that are there have ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from keras_strom import errors
from keras_strom._native import sealing
from keras_strom.dashboard.watching import Watching
from keras_strom.job.credentials import KEY_BYTES, Credentials
from keras_strom.job.network import HostPort
from keras_strom.runner.channel import HEARTBEAT_SECONDS, Channel
from keras_strom.runner.console import Console
from keras_strom.runner.outcome import LATE_DRAIN, MOST_IDLE_DRAINS, TOO_MANY_DRAINS, first_cause
from keras_strom.runner.process import GRACE_SECONDS
from keras_strom.tracebacks import exception_line

from .event import Event
from .messages import (
    Drained,
    Ended,
    FromTask,
    Output,
    Progress,
    Registration,
    Said,
    parse_from_task,
)
from .registered_task import Failure, RegisteredTask
from .result_room import ResultRoom
from .slots import Size

# So many connections may wait to show the secret, each with a thread.
_MOST_STRANGERS = 64
_ACCEPT_AGAIN_SECONDS = 0.1

_SLOW_ROWS = " Rows that take longer to reach the workers need a larger start_timeout, or a store"

_logger = logging.getLogger(__name__)


class Controller:
    """Serves the tasks of one job until `close`.

    Args:
        size: how many tasks there will be, and how many of them are enough.
        credentials: the job's; a task without them is not heard.
        bind: (host, port) of the TCP listener; port 0 = any.
        console: shows the workers' output; None = nobody does.
        watching: is told what happens; None = nobody is.
        ended: called with the rank of a worker that has ended well; None = nobody wants to know.
        room: for what workers return; None = for any.
        max_failures: so many workers that die or are lost are started again; lost tasks of an
            elastic job do not count.
        speculation: whether Spark may run two copies of a task, so that one that registers with a
            higher attempt does not mean that the other one is lost.
        begin: from when on events count their seconds (`time.monotonic`); None = from now.

    Raises:
        AddressError: the port is in use, or the host no address of this machine.
    """

    def __init__(
        self,
        size: Size,
        credentials: Credentials,
        bind: HostPort,
        console: Console | None,
        *,
        watching: Watching | None = None,
        ended: Callable[[int], None] | None = None,
        room: ResultRoom | None = None,
        max_failures: int = 0,
        speculation: bool = False,
        begin: float | None = None,
    ) -> None:
        self._workers = size.workers
        self._elastic = size.least is not None
        self._least = size.least or size.workers
        self._credentials = credentials
        self._key = secrets.token_bytes(KEY_BYTES)
        self.public_key = sealing.public_key(self._key)
        self._console = console
        self._watching = watching or Watching()
        self._tell_end = ended
        self._room = room
        self._max_failures = max_failures
        self._speculation = speculation
        self._begin = time.monotonic() if begin is None else begin
        self._changed = threading.Condition()  # Guards everything below.
        self._tasks: dict[int, RegisteredTask] = {}
        self._waiting: list[RegisteredTask] = []
        self._repeated_from: int | None = None  # The first task of a stage that Spark repeats.
        self._started = False
        self._strangers: list[socket.socket] = []  # Have not shown the secret, the oldest first.
        self._closed = threading.Event()
        self._ranks = 0  # That have been given out.
        self._survived = 0  # Failures after which a worker was started again.
        self._lost_tasks = 0  # Of an elastic job.
        self._waits = False  # Too few are left, as `_look_at_number` has said.
        self._sizes: dict[int, int] = {}  # Of results, by partition.
        self._failures: list[Failure] = []
        self._stop_reason: str | None = None
        self._job_ended = False
        #: Tasks, by Spark's ids, that have nothing to do where they are; None = there will be none.
        self.vacated: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.events: list[Event] = []
        self._listener = _listen(bind)
        self.port: int = self._listener.getsockname()[1]
        for name, body in (("accept", self._accept), ("heartbeat", self._beat)):
            threading.Thread(target=body, name=f"keras-strom-{name}", daemon=True).start()

    @property
    def failures(self) -> int:
        """After so many failures a worker was started again."""
        return self._survived

    @property
    def lost_tasks(self) -> int:
        """So many tasks of an elastic job were lost, which is no failure of theirs."""
        return self._lost_tasks

    def wait_for_start(self, timeout: float, *, with_rows: bool = False) -> None:
        """Waits until enough tasks have registered and got their ranks.

        Args:
            timeout: seconds.
            with_rows: whether each lays its rows down before it registers.

        Raises:
            JoinTimeout: some have not; the message says how many.
            WorkerFailed: one has failed already.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._started or self._is_over, timeout)
            if self._failures or self._started or self._job_ended:
                return
            here = {t.partition: t for t in self._present()}
            missing = sorted(set(range(self._workers)) - set(here))
            hosts = ", ".join(sorted({t.host for t in here.values()})) or "none"
        needed = f"the {self._least} that are enough" if self._elastic else f"{self._workers}"
        raise errors.JoinTimeout(
            f"{len(here)} of {needed} workers had come after {timeout:g} s (hosts: {hosts}); "
            f"missing: Spark partitions {missing}; are there free slots, and can executors reach "
            f"TCP port {self.port} of the driver?"
            f"{_SLOW_ROWS if with_rows else ''}"
        )

    def wait_for_end(self, replace_timeout: float = math.inf) -> None:
        """Waits until the job has ended well, or a worker has failed.

        Args:
            replace_timeout: seconds that a lost task may stay away before it counts as failed; in
                an elastic job only while too few are left.
        """
        with self._changed:
            while not self._is_over:
                awaited = self._awaited()
                if awaited is None:
                    self._changed.wait()
                    continue
                left = (awaited.lost_at or 0.0) + replace_timeout - time.monotonic()
                if left <= 0:
                    why = f"and Spark ran it nowhere for {replace_timeout:g} s"
                    self._give_up(awaited, why + self._where_copies_run())
                else:
                    self._changed.wait(None if math.isinf(left) else left)

    def _where_copies_run(self) -> str:
        copies = 0
        for task in self._waiting:
            before = self._tasks.get(task.partition)
            copies += before is not None and self._is_copy(before, task)
        if not copies:
            return ""
        return (
            "; what was shuffled to it, its rows perhaps, was lost with an executor, so Spark "
            f"repeats the whole stage, and copies of workers that still train took {copies} of the "
            "free slots. Give an estimator a store, or the cluster an external shuffle service "
            "(spark.shuffle.service.enabled)"
        )

    def _awaited(self) -> RegisteredTask | None:
        """The lost task that the job cannot do without, if there is one."""
        lost = [t for t in self._tasks.values() if t.lost_at is not None]
        if not lost or (self._elastic and len(self._present()) >= self._least):
            return None
        # Of an elastic job the last one: with it too few were left.
        choose = max if self._elastic else min
        return choose(lost, key=lambda task: task.lost_at or 0.0)

    def _present(self) -> list[RegisteredTask]:
        return [t for t in self._tasks.values() if t.lost_at is None]

    def executors(self) -> set[str]:
        """The ids of the executors that have workers."""
        with self._changed:
            return {task.executor for task in self._with_workers() if task.executor}

    def drain(self, executor: str) -> None:
        """An executor is about to be taken away: its workers leave and go on elsewhere.

        Those that have not heard it yet hear it when this is called again. One worker by itself
        has nobody to hand over to: it trains on, for Spark lets tasks end while it can.
        """
        if self._workers == 1:
            return
        with self._changed:
            tasks = [task for task in self._with_workers() if task.executor == executor]
            for task in tasks:
                if not task.leaves:
                    task.leaves = True
                    text = f"executor {executor} on {task.host} is decommissioned"
                    self._record("leaves", task.rank, text)
                    self._say(task.rank, f"{text}: worker {task.rank} drains")
        for task in tasks:
            _try_to_send(task.channel, {"type": "drain"})

    def _with_workers(self) -> list[RegisteredTask]:
        return [task for task in self._present() if task.rank >= 0 and not task.ended]

    def job_ended(self, why: str = "") -> None:
        """Tells that Spark's job is over, one way or another.

        Args:
            why: what ended it from outside, in words; "" = nothing did.
        """
        with self._changed:
            self._job_ended = True
            for task in self._tasks.values():
                if task.lost_at is not None and self._stop_reason is None:
                    self._give_up(
                        task,
                        why
                        or "and Spark does not run it again: raise spark.task.maxFailures above "
                        f"max_failures={self._max_failures}",
                    )
            self._changed.notify_all()

    def first_failure(self) -> errors.WorkerFailed | None:
        """The failure that led to the others, or None.

        Where the others have reported first, the cause is waited for, for a few seconds.
        """
        with self._changed:
            if not self._failures:
                return None
            found = self._changed.wait_for(lambda: first_cause(self._failures), GRACE_SECONDS)
            return (found or self._failures[0]).error

    def stop(self, reason: str) -> None:
        """Tells every task to end its worker, those that have yet to register too."""
        with self._changed:
            if self._stop_reason is not None:
                return
            self._stop_reason = reason
            self._record("stopped", -1, reason)
            tasks = [*self._waiting, *self._tasks.values()]
        for task in tasks:
            _try_to_send(task.channel, {"type": "stop", "reason": reason})

    def close(self) -> None:
        """Ends all connections."""
        self.stop("the job has ended")
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # Wakes the accepting thread.
        self._listener.close()
        with self._changed:
            tasks = [*self._waiting, *self._tasks.values()]
        for task in tasks:
            task.channel.close()

    @property
    def _is_over(self) -> bool:
        return bool(self._failures) or self._job_ended or self._has_ended_without_the_lost

    @property
    def _has_ended_without_the_lost(self) -> bool:
        present = self._present()
        return self._elastic and self._started and bool(present) and all(t.ended for t in present)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # Closed, or out of file descriptors or memory, which may pass.
                if self._closed.wait(_ACCEPT_AGAIN_SECONDS):
                    return
                continue
            with self._changed:
                # Who holds no secret cannot take more of the driver than so many threads, and in
                # the way of a task, which shows its secret at once, it is the first to go.
                if len(self._strangers) >= _MOST_STRANGERS:
                    with contextlib.suppress(OSError):  # Wakes the thread that serves it.
                        self._strangers.pop(0).shutdown(socket.SHUT_RDWR)
                self._strangers.append(connection)
            threading.Thread(
                target=self._serve, args=(connection,), name="keras-strom-task", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        """Hears one connection to its end."""
        task = None
        try:
            try:
                channel = Channel(connection, self._credentials, self.public_key, self._key)
                hello = channel.receive()
            finally:
                with self._changed:
                    if connection in self._strangers:
                        self._strangers.remove(connection)
            task = self._register(channel, Registration.parse(hello))
            while True:
                message = parse_from_task(channel.receive())
                if task is not None and message is not None:
                    self._handle(task, message)
        except errors.CorruptMessage as error:
            # With the job's secret, so of another version, or of one that makes them up.
            words = f"it sent {error}"
            if task is None:
                _logger.warning("a control connection ended: %s", words)
            else:
                self._lose(task, words)
        except (ConnectionError, errors.StromError) as error:
            if task is None:
                _logger.debug("a control connection ended: %s", error)
            else:
                self._lose(task, str(error))
        finally:
            connection.close()

    def _register(self, channel: Channel, hello: Registration) -> RegisteredTask | None:
        """Takes a task in; None for one that comes after the end."""
        with self._changed:
            if self._stop_reason is not None:
                _try_to_send(channel, {"type": "stop", "reason": self._stop_reason})
                return None
            task = RegisteredTask(
                channel, hello.partition, hello.attempt, hello.host, hello.executor, hello.task
            )
            before = self._tasks.get(task.partition)
            if task.partition >= self._workers or (
                before is not None and not self._gives_way(before, task)
            ):
                self._waiting.append(task)
                self._changed.notify_all()
            else:
                self._admit(task)
            return task

    def _gives_way(self, before: RegisteredTask, task: RegisteredTask) -> bool:
        """Whether a task that registers takes the place of an earlier one of its partition."""
        if not task.is_newer_than(before):
            return False
        if not self._max_failures and not self._elastic and not before.leaves:
            # One that has ended is run anew where what it returned is lost, or it has failed.
            if before.ended and not self._speculation and not self._failures:
                why = "its executor was lost before Spark had what it returned"
                self._end_job(before, Failure.lost(before, why, self._streamed))
            return False
        if self._is_copy(before, task) or (before.lost_at is None and self._speculation):
            return False
        if before.lost_at is None and not before.ended:
            # Spark knows of its end before its connection does.
            self._fail(before, Failure.lost(before, "Spark runs it anew", self._streamed))
            return before.lost_at is not None
        return True

    def _is_copy(self, before: RegisteredTask, task: RegisteredTask) -> bool:
        """Whether Spark runs a task anew beside one that still runs.

        So it does with all of a stage that has lost what was shuffled to it, a worker's rows for
        example. It counts the tasks' attempts from 0 again then, and their ids go on.
        """
        if before.lost_at is not None or before.ended or not task.is_newer_than(before):
            return False
        if task.task_attempt <= before.task_attempt:
            self._repeated_from = min(self._repeated_from or task.task, task.task)
            return True
        return self._repeated_from is not None and before.task < self._repeated_from <= task.task

    def _admit(self, task: RegisteredTask) -> None:
        before = self._tasks.get(task.partition)
        self._tasks[task.partition] = task
        task.event = len(self.events)
        self._record("registered", -1, f"partition {task.partition} on {task.host}")
        if before is not None:
            _try_to_send(before.channel, {"type": "stop", "reason": "another task replaces it"})
            before.channel.close()
        if not self._started:
            if len(self._present()) == self._least:
                self._start_all()
            return
        used = {t.local_rank for t in self._neighbours(task) if t is not task}
        task.local_rank = next(n for n in range(self._workers) if n not in used)
        if before is not None and before.rank >= 0:
            task.rank, task.attempt = before.rank, before.attempt
            task.idle_drains = before.idle_drains
            away = "" if before.lost_at is None else f" after {_seconds_since(before.lost_at)} away"
            self._start_again(task, away)
        else:
            self._start_late(task)
        self._look_at_number()

    def _start_all(self) -> None:
        self._started = True
        first: dict[str, int] = {}  # Hosts in the order of their first partition.
        for task in sorted(self._present(), key=lambda t: t.partition):
            first.setdefault(task.host, task.partition)
        tasks = sorted(self._present(), key=lambda t: (first[t.host], t.partition))
        for rank, task in enumerate(tasks):
            task.rank = rank
        self._ranks = len(tasks)
        for task in tasks:
            task.local_rank = [t.rank for t in self._neighbours(task)].index(task.rank)
            self._record("started", task.rank, f"on {task.host}")
            self._start(task)

    def _start_late(self, task: RegisteredTask) -> None:
        """A task of an elastic job for which there is room only now."""
        task.rank = self._ranks
        self._ranks += 1
        self._record("started", task.rank, f"on {task.host}, while the others train")
        self._say(task.rank, f"worker {task.rank} on {task.host} comes while the others train")
        self._start(task)

    def _start_again(self, task: RegisteredTask, away: str = "") -> None:
        task.attempt += 1
        self._record("restarted", task.rank, f"attempt {task.attempt} on {task.host}{away}")
        self._start(task)

    def _start(self, task: RegisteredTask) -> None:
        self._watching.started(task.rank, task.host, task.attempt)
        registered = self.events[task.event]
        self.events[task.event] = dataclasses.replace(registered, rank=task.rank)
        place = {
            "rank": task.rank,
            "local_rank": task.local_rank,
            "local_size": max(len(self._neighbours(task)), task.local_rank + 1),
            "attempt": task.attempt,
            "clock": time.monotonic(),
        }
        _try_to_send(task.channel, {"type": "start", **place})

    def _neighbours(self, task: RegisteredTask) -> list[RegisteredTask]:
        """The tasks of its host, itself included, in the order of their ranks."""
        there = [t for t in self._present() if t.host == task.host]
        return sorted(there, key=lambda t: t.rank)

    def _handle(self, task: RegisteredTask, message: FromTask) -> None:
        if isinstance(message, Output):
            if self._console is not None:
                for line in message.lines:
                    self._console.line(task.rank, line)
            return
        if isinstance(message, Progress):
            if self._console is not None:
                self._console.progress(task.rank, message.text)
            return
        if isinstance(message, Said):
            self._watching.heard(task.rank, message.record)
            return
        with self._changed:
            if task.ended or task.lost_at is not None:
                return  # It says nothing new, however often.
            if task.rank < 0:
                raise errors.CorruptMessage("the end of a worker that was not started")
            if isinstance(message, Ended):
                self._take_end(task, message)
            elif isinstance(message, Drained):
                self._follow(task, message)
            else:
                error = errors.WorkerFailed(
                    task.rank, task.host, message.traceback, message.log_tail, self._streamed
                )
                failure = Failure(error, message.is_consequence, message.cause)
                self._fail(task, failure, may_start_again=message.may_start_again)
        if isinstance(message, Ended) and self._tell_end is not None:
            self._tell_end(task.rank)

    def _take_end(self, task: RegisteredTask, ended: Ended) -> None:
        """A worker has ended well, unless nobody can have what it has returned."""
        self._sizes[task.partition] = ended.size
        words = self._room.fault(ended.size, sum(self._sizes.values())) if self._room else ""
        if words:
            error = errors.WorkerFailed(task.rank, task.host, f"it {words}", (), self._streamed)
            self._fail(task, Failure(error, False, words), may_start_again=False)
            return
        task.ended = True
        self._record("ended", task.rank, f"on {task.host}")
        self._watching.ended(task.rank, f"worker {task.rank} has ended")

    def _follow(self, task: RegisteredTask, drained: Drained) -> None:
        """Starts another worker in the place of one that was asked to leave, while that gets on."""
        if self._stop_reason is not None:
            return
        task.idle_drains = 0 if drained.stepped else task.idle_drains + 1
        if task.idle_drains == MOST_IDLE_DRAINS:
            error = errors.WorkerFailed(task.rank, task.host, TOO_MANY_DRAINS, (), self._streamed)
            self._fail(task, Failure(error, False, TOO_MANY_DRAINS), may_start_again=False)
            return
        what = LATE_DRAIN if drained.too_late else "has drained"
        self._record("drained", task.rank, f"on {task.host}")
        self._watching.away(task.rank, f"worker {task.rank} {what}")
        if task.leaves:
            self._say(task.rank, f"worker {task.rank} {what}; Spark is to run its task elsewhere")
            gone = Failure.lost(task, "its executor was decommissioned", self._streamed)
            self._await_replacement(task, gone)
            self._look_at_number()
            self.vacated.put(task.task)
            return
        self._say(task.rank, f"worker {task.rank} {what}; it is started again")
        self._start_again(task)

    def _lose(self, task: RegisteredTask, reason: str) -> None:
        """A task's connection is gone."""
        with self._changed:
            if task in self._waiting:
                self._waiting.remove(task)
                self._changed.notify_all()
            elif self._tasks.get(task.partition) is task:
                self._fail(task, Failure.lost(task, reason, self._streamed))

    def _fail(
        self, task: RegisteredTask, failure: Failure, *, may_start_again: bool | None = None
    ) -> None:
        """A worker has failed.

        Args:
            task: the worker's.
            failure: how.
            may_start_again: whether its task, which is there, could start it again; None = the task
                itself is lost, and Spark will run another.
        """
        if task.ended or task.lost_at is not None or self._stop_reason is not None:
            return
        if self._elastic and may_start_again is None:
            self._lose_elastically(task, failure)
            return
        if may_start_again is False or self._survived >= self._max_failures:
            self._end_job(task, failure)
            return
        self._survived += 1
        self._record("lost", task.rank, f"on {task.host}: {failure.cause}")
        self._watching.away(task.rank, f"{failure.error.who} {failure.cause}")
        again = "it is started again" if may_start_again else "Spark is to run its task again"
        self._say(
            task.rank,
            f"{failure.error.who} {failure.cause}; {again} (failure {self._survived} of "
            f"{self._max_failures})",
        )
        if may_start_again:
            self._start_again(task)
            return
        self._await_replacement(task, failure)

    def _end_job(self, task: RegisteredTask, failure: Failure) -> None:
        """A worker has failed, and is not started again."""
        task.ended = True
        self._failures.append(failure)
        words = exception_line(failure.error.traceback)
        self._record("failed", task.rank, f"on {task.host}: {words}")
        self._watching.ended(task.rank, f"worker {task.rank} has failed: {words}", failed=True)

    def _lose_elastically(self, task: RegisteredTask, failure: Failure) -> None:
        self._lost_tasks += 1
        self._record("lost", task.rank, f"on {task.host}: {failure.cause}")
        if task.rank >= 0:
            self._watching.away(task.rank, f"{failure.error.who} {failure.cause}")
            self._say(task.rank, f"{failure.error.who} {failure.cause}; its place is free")
        self._await_replacement(task, failure)
        self._look_at_number()

    def _look_at_number(self) -> None:
        """Says that an elastic job has too few workers left; the master says when it goes on."""
        here = len(self._present())
        waits = self._elastic and self._started and here < self._least
        if waits and not self._waits:
            text = f"{here} of the {self._least} workers are left that are needed: training waits"
            self._say(-1, text)
            self._record("waits", -1, text)
        self._waits = waits

    def _await_replacement(self, task: RegisteredTask, failure: Failure) -> None:
        task.lost_at, task.failure = time.monotonic(), failure
        for other in self._waiting:
            if other.partition == task.partition and other.is_newer_than(task):
                self._waiting.remove(other)
                self._admit(other)
                return

    def _give_up(self, task: RegisteredTask, why: str) -> None:
        """A task that was lost does not come back."""
        assert task.failure is not None
        lost = task.failure.error
        task.ended, task.lost_at = True, None
        error = errors.WorkerFailed(
            lost.rank, lost.host, f"{lost.traceback} {why}", lost.log_tail, lost.streamed
        )
        self._failures.append(dataclasses.replace(task.failure, error=error))
        self._record("failed", task.rank, f"on {task.host}: {why}")

    @property
    def _streamed(self) -> bool:
        return self._console is not None

    def _say(self, rank: int, text: str) -> None:
        if rank < 0:
            self._watching.event(text)
        if self._console is None:
            _logger.warning("%s", text)
        elif rank < 0:
            self._console.message(text)
        else:
            self._console.line(rank, text)

    def _record(self, kind: str, rank: int, text: str) -> None:
        self.events.append(Event(time.monotonic() - self._begin, kind, rank, text))
        self._changed.notify_all()

    def _beat(self) -> None:
        """Lets the tasks know that the driver lives."""
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._stop_reason is not None, HEARTBEAT_SECONDS):
                    return
                tasks = [*self._waiting, *self._tasks.values()]
            for task in tasks:
                _try_to_send(task.channel, {"type": "heartbeat"})


def _seconds_since(moment: float) -> str:
    return f"{time.monotonic() - moment:.1f} s"


def _try_to_send(channel: Channel, message: dict[str, Any]) -> None:
    # A connection that is gone is noticed where it is read.
    with contextlib.suppress(ConnectionError):
        channel.send(message)


def _listen(bind: HostPort) -> socket.socket:
    family = socket.AF_INET6 if ":" in bind[0] else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(bind)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise errors.AddressError(
            f"cannot listen at TCP port {bind[1]} of {bind[0]}: {error.strerror}"
        ) from error
    return listener
