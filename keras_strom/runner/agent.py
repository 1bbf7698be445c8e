"""A launcher's hand on another machine: starts workers there and says what becomes of them.

`keras-strom run --hosts` starts an agent through ssh (`keras_strom.runner.agent_main`); the one of
`keras-strom worker` comes to its master by itself. When the launcher says so, says nothing any more
or is gone, the agent ends its workers: none is left behind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from keras_strom import __version__, errors
from keras_strom.job import environment
from keras_strom.job.credentials import Credentials
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.job.network import HostPort, NetworkConfig, resolve_address
from keras_strom.job.worker_record import WorkerRecord
from keras_strom.runner.drain_triggers import check_triggers, drain_triggers
from keras_strom.runner.outcome import Outcome
from keras_strom.runner.places import ThisMachine
from keras_strom.runner.ports import check_ports
from keras_strom.runner.process import GRACE_SECONDS, WorkerListener, WorkerProcess
from keras_strom.runner.wire import (
    Message,
    Preparation,
    Wire,
    bytes_of,
    parts_of,
    shortened,
)
from keras_strom.runner.work import Function, Script

_PREPARE_SECONDS = 60.0
_HEARTBEATS_IN_A_SILENCE = 5
_PROGRESS_SECONDS = 0.1
# Whoever gives a worker its place says with it where the credentials are; here they come along.
_GIVEN = "given by the launcher"


def hello(**more: Any) -> Message:
    """An agent's first message."""
    return {"type": "hello", "version": __version__, "host": socket.gethostname(), **more}


@contextlib.contextmanager
def heartbeats(wire: Wire, silence: float) -> Iterator[None]:
    """Lets the other end know that this one is there.

    Args:
        wire: to the other end.
        silence: seconds after which it takes this one for gone.
    """
    over = threading.Event()

    def beat() -> None:
        with contextlib.suppress(ConnectionError):  # Whoever receives sees it, too.
            while not over.wait(silence / _HEARTBEATS_IN_A_SILENCE):
                wire.send({"type": "heartbeat"})

    thread = threading.Thread(target=beat, name="keras-strom-heartbeats", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


class Agent:
    """Serves one launcher, in the thread that makes it: workers end with that thread.

    Args:
        wire: to the launcher.
        work: what workers do; None = what the launcher says.
        own: is told of the workers' output here, which the launcher then does not get; None = the
            launcher gets it.
        patience: seconds that the launcher may take for its first word.
        has_own_gpus: whether the GPUs that this process sees are those of its one worker.
        reach: makes the address by which this machine reaches the job's master out of the one that
            the launcher knows; None = it is that.

    Attributes:
        outcome: of the worker that ended last; None = none has.
        reason: of the end, in the launcher's words; None = it has given none.
        leaves: whether this machine is about to be taken away.
    """

    def __init__(
        self,
        wire: Wire,
        work: Script | None = None,
        own: WorkerListener | None = None,
        patience: float = _PREPARE_SECONDS,
        *,
        has_own_gpus: bool = False,
        reach: Callable[[HostPort], HostPort] | None = None,
    ) -> None:
        self._wire = wire
        self._patience = patience
        self._work: Script | Function | None = work
        self._own = own
        self._has_own_gpus = has_own_gpus
        self._reach = reach or (lambda address: address)
        self._env: Mapping[str, str] = {}
        self._machine = ThisMachine()
        self._workers: dict[int, WorkerProcess] = {}
        self._told_to_end: set[int] = set()  # By the launcher.
        self._lock = threading.Lock()  # Guards those that run.
        self._running: set[int] = set()
        self.outcome: Outcome | None = None
        self.reason: str | None = None
        self.leaves = False

    def serve(self) -> None:
        """Does what the launcher says until it is over; all workers have ended then.

        Raises:
            ConnectionError: the launcher is gone, or says nothing any more.
            CorruptMessage: it says something that makes no sense.
            InvalidOption, AddressError: this machine lacks what the job needs.
            Refused: the launcher does not want this agent; in its words.
        """
        first = self._next(self._patience)
        if first["type"] == "stop":
            raise errors.Refused(f"the job's master refuses this worker: {first.get('reason')}")
        preparation = Preparation.parse(first)
        with heartbeats(self._wire, preparation.silence), self._ending():
            try:
                self._prepare(preparation)
            except errors.StromError as error:
                self._wire.send({"type": "unfit", "words": str(error)})
                raise
            self._wire.send({"type": "ready"})
            with drain_triggers(None, preparation.drain_file or None, lambda _: self.drain()):
                while (message := self._next(preparation.silence))["type"] != "stop":
                    self._do(message)
            self.reason = str(message.get("reason", ""))

    def drain(self) -> None:
        """This machine is about to be taken away: its workers leave, and then the agent; once."""
        with contextlib.suppress(ConnectionError):
            self._wire.send({"type": "leaving"})
        with self._lock:
            self.leaves = True
            workers = [self._workers[number] for number in self._running if number in self._workers]
        for worker in workers:
            worker.drain()
        self._close_if_left()

    def has_ended(self, number: int) -> None:
        """The launcher knows that this worker has ended."""
        with self._lock:
            self._running.discard(number)
        self._close_if_left()

    def _close_if_left(self) -> None:
        with self._lock:
            left = self.leaves and not self._running
        if left:
            self._wire.close()  # By which `serve` ends.

    def was_told_to_end(self, number: int) -> bool:
        """Whether the launcher has told this worker to end."""
        return number in self._told_to_end

    def _next(self, silence: float) -> dict[str, Any]:
        while (message := self._wire.receive(silence)).get("type") == "heartbeat":
            pass
        return message

    def _prepare(self, job: Preparation) -> None:
        if job.folders:
            folder = next(filter(os.path.isdir, job.folders), job.folders[-1])
            try:
                os.chdir(folder)
            except OSError as error:
                raise errors.InvalidOption(
                    f"it has no folder {folder}, in which the job runs ({error.strerror}); "
                    "copy it there, or run the job in a folder that all hosts share"
                ) from error
        if self._work is None:
            self._work = (
                Function(self._payload(job)) if job.function else Script(job.script, job.arguments)
            )
        if isinstance(self._work, Script) and not os.path.isfile(self._work.path):
            raise errors.InvalidOption(
                f"it has no script {os.path.abspath(self._work.path)}; copy it there, or run the "
                "job in a folder that all hosts share"
            )
        if job.parts_folder and not os.path.isdir(job.parts_folder):
            raise errors.InvalidOption(
                f"it does not reach the checkpoint folder {os.path.dirname(job.parts_folder)}; "
                "choose one that all hosts share under the same name"
            )
        network = NetworkConfig.from_json(job.network)
        if network.network_mask is not None:
            resolve_address(network, node_address=environment.node_address())
        if job.size > 1:
            check_ports(network, job.slots)
        check_triggers(1.0, None, job.drain_file or None)
        self._env = job.env
        self._machine = ThisMachine(warm_start=job.warm_start)

    def _payload(self, job: Preparation) -> bytes:
        """The pickled call that follows the preparation."""
        payload = bytearray()
        while len(payload) < job.function:
            payload += bytes_of(self._next(job.silence))
        return bytes(payload)

    def _do(self, message: Message) -> None:
        try:
            number = int(message["worker"])
            if message["type"] == "start":
                place = ClusterEnvironment.from_environ(message["place"])
                credentials = message["credentials"] and Credentials.from_json(
                    message["credentials"]
                )
                clock = float(message["clock"])
            elif message["type"] == "signal":
                sent = signal.Signals(message["signal"])
            elif message["type"] != "drain":
                raise ValueError(message["type"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise errors.CorruptMessage(f"a message that makes no sense: {error!r}") from None
        if message["type"] == "start":
            self._start(number, place, credentials or None, clock)
        elif message["type"] == "drain":
            if number in self._workers:
                self._workers[number].drain()
        elif number in self._workers:
            worker = self._workers[number]
            self._told_to_end.add(number)
            if sent == signal.SIGINT:
                worker.interrupt()
            else:
                worker.kill() if sent == signal.SIGKILL else worker.terminate()

    def _start(
        self, number: int, place: ClusterEnvironment, credentials: Credentials | None, clock: float
    ) -> None:
        assert self._work is not None
        place = dataclasses.replace(
            place,
            credentials_path=None,
            master=place.master and self._reach(place.master),
            gpus="own" if self._has_own_gpus else place.gpus,
            checkpoints=place.checkpoints and place.checkpoints.as_here(clock),
        )
        listener = _Listener(self, number, self._wire, self._own)
        with self._lock:
            self._running.add(number)
        try:
            worker = self._machine.start(self._work, place, listener, credentials, self._env)
        except (OSError, errors.StromError) as error:
            listener.ended(Outcome(1, None, f"it could not be started: {error}", ()))
            return
        with self._lock:
            self._workers[number] = worker
            leaves = self.leaves
        if leaves:  # `drain` did not see it.
            worker.drain()

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """At the end all workers end: politely first, all at the same time, then by force."""
        try:
            yield
        except ConnectionError:
            self._wire.close()  # No end of a worker is to wait until somebody reads its output.
            raise
        finally:
            workers = self._workers.values()
            for worker in workers:
                worker.terminate()
            deadline = time.monotonic() + GRACE_SECONDS
            for worker in workers:
                worker.close(max(0.0, deadline - time.monotonic()))


class _Listener(WorkerListener):
    """Says what a worker does; a launcher that is gone needs not to know."""

    def __init__(self, agent: Agent, number: int, wire: Wire, own: WorkerListener | None) -> None:
        self._agent = agent
        self._number = number
        self._wire = wire
        self._own = own
        self._progress_time = 0.0

    def line(self, text: str) -> None:
        if self._own is not None:
            self._own.line(text)
        else:
            self._send({"type": "line", "text": text})

    def progress(self, text: str) -> None:
        if self._own is not None:
            self._own.progress(text)
        elif time.monotonic() - self._progress_time >= _PROGRESS_SECONDS:
            self._progress_time = time.monotonic()
            self._send({"type": "progress", "text": text})

    def status(self, record: WorkerRecord) -> None:
        self._send({"type": "status", "record": record.to_json()})

    def ended(self, outcome: Outcome) -> None:
        self._agent.outcome = outcome
        if outcome.terminated and not self._agent.was_told_to_end(self._number):
            return  # The agent itself ends, and the launcher will see that.
        for part in parts_of(outcome.result or b""):
            self._send(part)
        self._send(
            {
                "type": "ended",
                "exit_code": outcome.exit_code,
                "terminated": outcome.terminated,
                "raised": outcome.raised,
                "left": outcome.left,
                **shortened(outcome.traceback, outcome.log_tail),
            }
        )
        self._agent.has_ended(self._number)

    def _send(self, message: Message) -> None:
        with contextlib.suppress(ConnectionError):
            self._wire.send({**message, "worker": self._number})


def to_start(number: int, place: ClusterEnvironment, credentials: Credentials | None) -> Message:
    """The message that has an agent start a worker."""
    if credentials is not None:
        place = dataclasses.replace(place, credentials_path=_GIVEN)
    return {
        "type": "start",
        "worker": number,
        "place": place.to_environ(),
        "credentials": None if credentials is None else credentials.to_json(),
        "clock": time.monotonic(),
    }
