"""Machines that come by themselves: the agents of `keras-strom worker`, one for each worker.

Whoever starts those decides where they run. An agent says which worker it is for; the launcher
starts it there, and again in the next agent that comes for it, where the first one is lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from keras_strom import errors
from keras_strom.job.checkpoint_plan import CheckpointPlan
from keras_strom.job.network import HostPort, NetworkConfig, format_address
from keras_strom.runner.channel import Channel
from keras_strom.runner.console import workers_in_words
from keras_strom.runner.fleet import parts_folder, silence_seconds
from keras_strom.runner.job_file import JobFile
from keras_strom.runner.places import Place, Places
from keras_strom.runner.remote_machine import RemoteMachine, check_version
from keras_strom.runner.wire import Preparation
from keras_strom.runner.work import Function, Script

_HELLO_SECONDS = 10.0
_MOST_STRANGERS = 64


@dataclasses.dataclass
class _Guest:
    """An agent that has come."""

    rank: int
    host: str
    local_rank: int
    machine: RemoteMachine


class Door:
    """Where agents come in, from entry to exit; gives a launcher what `Fleet` gives it.

    Args:
        workers: of the job.
        least: so many, worker 0 among them, are enough to begin with; None = all.
        listen: the address to bind to (TCP, and UDP for the master); port 0 = any free one.
        job: makes the job's file of the address that the door has.
        timeout: seconds until enough must have come.
        tell: shows a line.
        remedy: what to do where the port is in use.

    Raises:
        AddressError: on entry, the port is in use.
    """

    is_distant = True
    may_grow = True

    def __init__(
        self,
        workers: int,
        least: int | None,
        listen: HostPort,
        job: Callable[[int], JobFile],
        *,
        timeout: float,
        tell: Callable[[str], object],
        remedy: str,
    ) -> None:
        self._workers = workers
        self._least = least or workers
        self._listen = listen
        self._job_of = job
        self._timeout = timeout
        self._tell = tell
        self._remedy = remedy
        self._changed = threading.Condition()  # Guards everything below.
        self._guests: dict[int, _Guest] = {}
        self._coming: dict[int, str] = {}  # Where those are that are let in, by their rank.
        self._all: list[RemoteMachine] = []
        self._strangers: set[socket.socket] = set()
        self._preparation: Preparation | None = None
        self._closed = False
        #: Is told the ranks of agents that come once the job has begun.
        self.arrived: Callable[[int], object] = lambda _: None
        self.places: Places = self

    def __enter__(self) -> Door:
        family = socket.AF_INET6 if ":" in self._listen[0] else socket.AF_INET
        kind = "UDP"
        try:
            # The master's, once the workers are here: that would be late to hear of it.
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind(self._listen)
            kind = "TCP"
            self._listener = socket.create_server(self._listen, family=family, backlog=128)
        except OSError as error:
            # The error's own words are longer: Python adds the address to the system's.
            why = os.strerror(error.errno) if error.errno else error
            raise errors.AddressError(
                f"{kind} {format_address(self._listen)}, to which workers come, cannot be used: "
                f"{why}; {self._remedy}"
            ) from error
        self.port: int = self._listener.getsockname()[1]
        self._job = self._job_of(self.port)
        threading.Thread(target=self._accept, name="keras-strom-door", daemon=True).start()
        return self

    def __exit__(self, kind: object, error: object, _: object) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()  # Agents that wait for the job to begin.
            machines = list(self._all)
            strangers = list(self._strangers)
        # Closing alone does not wake a thread that waits in accept.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for stranger in strangers:
            with contextlib.suppress(OSError):
                stranger.shutdown(socket.SHUT_RDWR)
        reason = "" if kind is None else "ended, as its master was told to"
        if isinstance(error, errors.StromError):
            reason = f"failed: {str(error).partition(chr(10))[0]}"
        for machine in machines:
            machine.close(reason)

    @property
    def number_here(self) -> int:
        """Workers that this process starts as its children: none."""
        return 0

    def master_host(self, network: NetworkConfig) -> str | None:
        """The address that the door has is the master's too."""
        return self._listen[0]

    def prepare(
        self,
        work: Script | Function | None,
        env: Mapping[str, str],
        network: NetworkConfig,
        plan: Callable[[], CheckpointPlan | None],
    ) -> None:
        """Returns when enough agents have come.

        Raises:
            JoinTimeout: they have not; the message says whose.
        """
        with self._changed:
            self._preparation = Preparation(
                env=env,
                network=network.to_json(),
                size=self._workers,
                parts_folder=parts_folder(plan()),
                silence=silence_seconds(network),
            )
            self._changed.notify_all()
            if self._changed.wait_for(self._enough, self._timeout):
                self._number_local_ranks()
                return
            missing = sorted(set(range(self._workers)) - set(self._guests))
        raise errors.JoinTimeout(
            f"{workers_in_words(missing)} had not come after {self._timeout:g} s: has keras-strom "
            "worker been started for all, and do they reach TCP "
            f"{format_address(self._job.master)}?"
        )

    def of(self, rank: int) -> Place | None:
        """See `Places`."""
        with self._changed:
            guest = self._guests.get(rank)
            if guest is None or guest.machine.lost or guest.machine.leaves:
                return None
            there = [one for one in self._guests.values() if one.host == guest.host]
            size = max(len(there), 1 + max(one.local_rank for one in there))
            return Place(guest.machine, guest.local_rank, min(size, self._workers))

    def leave_here(self) -> None:
        """See `Places`: no worker has a place on this machine."""

    def has_ended(self, rank: int) -> None:
        """See `Places`: each machine has come for a worker of its own."""

    def describe(self, master: HostPort | None) -> str:
        """Who runs where, in a sentence."""
        with self._changed:
            hosts: dict[str, list[int]] = {}
            for rank, guest in sorted(self._guests.items()):
                hosts.setdefault(guest.host, []).append(rank)
        return ", ".join(f"{workers_in_words(ranks)} on {host}" for host, ranks in hosts.items())

    def _enough(self) -> bool:
        return len(self._guests) >= self._least and 0 in self._guests

    def _number_local_ranks(self) -> None:
        counts: dict[str, int] = {}
        for _, guest in sorted(self._guests.items()):
            guest.local_rank = counts.get(guest.host, 0)
            counts[guest.host] = guest.local_rank + 1

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(0.1)  # No file descriptor is left, say.
                continue
            with self._changed:
                if len(self._strangers) >= _MOST_STRANGERS or self._closed:
                    connection.close()
                    continue
                self._strangers.add(connection)
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        try:
            key = self._job.credentials.master_public_key
            assert key is not None
            try:
                channel = Channel(connection, self._job.credentials, key, self._job.private_key)
                hello = channel.receive(_HELLO_SECONDS)
            finally:
                with self._changed:
                    self._strangers.discard(connection)
        except (errors.StromError, OSError):
            connection.close()  # Strangers are told nothing.
            return
        try:
            self._admit(channel, hello)
        except (errors.StromError, ConnectionError) as error:
            self._tell(f"a worker on {hello.get('host')} is turned away: {error}")
            with contextlib.suppress(ConnectionError):
                channel.send({"type": "stop", "reason": str(error)})
            channel.close()

    def _admit(self, channel: Channel, hello: Mapping[str, Any]) -> None:
        rank, host = hello.get("rank"), str(hello.get("host"))
        if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < self._workers:
            raise errors.InvalidOption(
                f"rank {rank} is none of this job's, which are 0 to {self._workers - 1}"
            )
        check_version(host, hello)
        machine = RemoteMachine(host, channel)
        with self._changed:
            self._changed.wait_for(lambda: self._preparation is not None or self._closed)
            preparation = self._preparation
        if preparation is None:
            raise errors.ConnectionClosed("the job has ended before it began")
        self._let_in(rank, host, preparation.silence)
        try:
            machine.prepare(preparation)
            with self._changed:
                began = self._enough()
                self._guests.pop(rank, None)
                taken = {one.local_rank for one in self._guests.values() if one.host == host}
                free = next(number for number in range(len(taken) + 1) if number not in taken)
                self._guests[rank] = _Guest(rank, host, free, machine)
                self._all.append(machine)
                self._changed.notify_all()
        finally:
            with self._changed:
                self._coming.pop(rank)
        if began:
            self.arrived(rank)

    def _let_in(self, rank: int, host: str, silence: float) -> None:
        """Returns when no other agent is there for this rank, or is about to be.

        One that is gone is not known to be, for a while. One that leaves has its host's ports until
        it is gone, and ends by its own deadline.
        """
        deadline = time.monotonic() + 2 * silence
        while True:
            with self._changed:
                present = self._guests.get(rank)
                if present is not None and present.machine.lost:
                    present = None
                there = self._coming.get(rank) if present is None else present.host
                if there is None:
                    self._coming[rank] = host
                    return
            late = time.monotonic() > deadline and not (present and present.machine.leaves)
            if late or self._closed:
                raise errors.Refused(
                    f"worker {rank} runs on {there} already; give each its own rank"
                )
            time.sleep(0.05)
