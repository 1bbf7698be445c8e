"""A launcher's end of the wire to an agent: a machine whose workers are started elsewhere."""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from keras_strom import __version__, errors
from keras_strom.job.credentials import Credentials
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.job.worker_record import WorkerRecord
from keras_strom.runner.agent import heartbeats, to_start
from keras_strom.runner.outcome import Outcome
from keras_strom.runner.process import WorkerListener, tell
from keras_strom.runner.wire import Preparation, Wire, bytes_of, parts_of
from keras_strom.runner.work import Function, Script

#: Of a worker whose machine is lost, where nobody knows how it has ended.
LOST_EXIT_CODE = 255

_ANSWER_SECONDS = 60.0

T = TypeVar("T")


class RemoteMachine:
    """A machine on which an agent starts workers; a `Machine`.

    Args:
        name: of the host, as the user knows it.
        wire: to the agent, which has said hello.
        why_lost: makes the words of why the wire has ended out of its error.

    Attributes:
        when_lost: is called when the wire to one that was prepared has ended, in any thread.

    Raises:
        ConnectionError: the agent is gone.
    """

    def __init__(
        self,
        name: str,
        wire: Wire,
        why_lost: Callable[[ConnectionError], str] = str,
    ) -> None:
        self.name = name
        self.lost = self.leaves = False
        self.when_lost: Callable[[], object] = lambda: None
        self._wire = wire
        self._why_lost = why_lost
        self._numbers = itertools.count()
        self._lock = threading.Lock()  # Guards `lost` and the workers.
        self._workers: dict[int, _RemoteWorker] = {}
        self._end = contextlib.ExitStack()
        self._receiver: threading.Thread | None = None

    def prepare(self, preparation: Preparation, payload: bytes = b"") -> None:
        """Returns when all is there that the job needs.

        Args:
            preparation: what that is.
            payload: the pickled call, where workers call a function.

        Raises:
            HostUnusable: something is not, or the agent has gone.
        """
        try:
            for message in (preparation.to_message(), *parts_of(payload)):
                self._wire.send(message)
            self._end.enter_context(heartbeats(self._wire, preparation.silence))
            answer = self._answer()
        except errors.HostUnusable:  # A ConnectionError, too, and has its words.
            raise
        except ConnectionError as error:
            raise errors.HostUnusable(f"{self.name}: {self._why_lost(error)}") from None
        if answer["type"] != "ready":
            raise errors.HostUnusable(f"{self.name}: {answer.get('words', answer)}")
        self._receiver = threading.Thread(
            target=self._receive,
            args=(preparation.silence,),
            name=f"keras-strom-{self.name}",
            daemon=True,
        )
        self._receiver.start()

    def _answer(self) -> dict[str, Any]:
        deadline = time.monotonic() + _ANSWER_SECONDS
        while (answer := self._wire.receive(_ANSWER_SECONDS)).get("type") == "heartbeat":
            if time.monotonic() > deadline:
                raise errors.HostUnusable(
                    f"{self.name}: it has not said within {_ANSWER_SECONDS:g} s whether it has the "
                    "job's script and folders: does a disk that they lie on hang there?"
                )
        return answer

    def start(
        self,
        work: Script | Function | None,
        place: ClusterEnvironment,
        listener: WorkerListener,
        credentials: Credentials | None,
        env: Mapping[str, str],
    ) -> _RemoteWorker:
        """See `Machine`; `work` and `env` are those of the preparation."""
        number = next(self._numbers)
        worker = _RemoteWorker(self._wire, number, listener)
        with self._lock:
            self._workers[number] = worker
            lost = self.lost
        if lost:  # Nobody receives any more, so nobody else tells.
            worker.end(self._lost_outcome("it was gone before"))
        else:
            with contextlib.suppress(ConnectionError):  # Whoever receives sees it, too.
                self._wire.send(to_start(number, place, credentials))
        return worker

    def close(self, reason: str = "") -> None:
        """The job is over: the agent ends whatever it has started, and itself.

        Args:
            reason: "" = it has ended well.
        """
        with contextlib.suppress(ConnectionError):
            self._wire.send({"type": "stop", "reason": reason})
        self._end.close()
        self._wire.close()
        if self._receiver is not None:
            self._receiver.join()

    def _receive(self, silence: float) -> None:
        try:
            while True:
                message = self._wire.receive(silence)
                if message["type"] == "leaving":
                    self.leaves = True
                worker = self._workers.get(message.get("worker", -1))
                if worker is not None:
                    worker.hear(message)
        except ConnectionError as error:
            self._lose(self._why_lost(error))
        except (KeyError, TypeError, ValueError, errors.CorruptMessage) as error:
            self._lose(f"its agent says what makes no sense ({error!r})")

    def _lose(self, why: str) -> None:
        with self._lock:
            self.lost = True
            workers = list(self._workers.values())
        for worker in workers:
            worker.end(self._lost_outcome(why))
        self._wire.close()  # An agent that is there after all ends its workers now.
        self.when_lost()

    def _lost_outcome(self, why: str) -> Outcome:
        return Outcome(LOST_EXIT_CODE, None, f"it was lost with its host {self.name}: {why}", ())


class _RemoteWorker:
    """See `RunningWorker`."""

    def __init__(self, wire: Wire, number: int, listener: WorkerListener) -> None:
        self._wire = wire
        self._number = number
        self._listener = listener
        self._result: list[bytes] = []
        self._outcome: Outcome | None = None
        self._done = threading.Event()

    def hear(self, message: Mapping[str, Any]) -> None:
        """What the agent says of it."""
        kind = message["type"]
        if kind == "line":
            self._tell(self._listener.line, str(message["text"]))
        elif kind == "progress":
            self._tell(self._listener.progress, str(message["text"]))
        elif kind == "status":
            with contextlib.suppress(errors.CorruptMessage):
                self._tell(self._listener.status, WorkerRecord.parse(str(message["record"])))
        elif kind == "part":
            self._result.append(bytes_of(message))
        elif kind == "ended":
            self.end(
                Outcome(
                    exit_code=int(message["exit_code"]),
                    result=b"".join(self._result) or None,
                    traceback=str(message["traceback"]),
                    log_tail=tuple(map(str, message["log_tail"])),
                    terminated=bool(message["terminated"]),
                    raised=bool(message["raised"]),
                    left=str(message["left"]),
                )
            )

    def end(self, outcome: Outcome) -> None:
        """Only the first end counts."""
        if self._outcome is None:
            self._outcome = outcome
            self._done.set()
            self._tell(self._listener.ended, outcome)

    def _tell(self, method: Callable[[T], None], value: T) -> None:
        tell(method, value, "a worker on another machine")

    def wait(self, timeout: float | None = None) -> Outcome:
        """See `RunningWorker`."""
        self._done.wait(timeout)
        if self._outcome is None:
            raise errors.DeadlinePassed(f"a remote worker still runs after {timeout} s")
        return self._outcome

    def drain(self) -> None:
        """See `RunningWorker`."""
        if self._outcome is None:
            with contextlib.suppress(ConnectionError):
                self._wire.send({"type": "drain", "worker": self._number})

    def interrupt(self) -> None:
        """See `RunningWorker`."""
        self._signal(signal.SIGINT)

    def terminate(self) -> None:
        """See `RunningWorker`."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """See `RunningWorker`."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._outcome is None:
            with contextlib.suppress(ConnectionError):
                self._wire.send({"type": "signal", "worker": self._number, "signal": int(number)})


def check_version(name: str, hello: Mapping[str, Any]) -> None:
    """Refuses an agent of another release, which may speak another language.

    Raises:
        HostUnusable: it is one.
    """
    if hello.get("version") != __version__:
        raise errors.HostUnusable(
            f"{name}: it has keras-strom {hello.get('version')}, and this machine {__version__}; "
            "install the same release on every machine"
        )
