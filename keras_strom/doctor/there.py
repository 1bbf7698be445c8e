"""What `keras-strom doctor --hosts` starts on another machine, through ssh.

    python -m keras_strom.doctor.there

It answers the doctor at the other end of its standard input and output until that says "stop" or is
gone. Each question is a message of `keras_strom.runner.wire`, and so is its answer:

========  ========================================================================================
question  answer
========  ========================================================================================
clock     the time here
look      versions and findings of this machine by itself, and its address
join      findings of the ways on which workers have joined the doctor's master, from each port
talk      "joined" once a worker has joined the doctor's master, and "talked" once both have sent;
          then, when it may "leave", findings of the way
========  ========================================================================================
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from keras_strom import errors
from keras_strom.doctor import machine, network_path, software
from keras_strom.doctor.finding import Finding, Grade
from keras_strom.job import environment
from keras_strom.job.network import NetworkConfig, resolve_address
from keras_strom.relay.bytes_relay import JoinInfo, Worker
from keras_strom.runner.agent import hello
from keras_strom.runner.wire import Wire, standard_pipes

#: Messages that each end of a trial sends, at most, and seconds in which one has to come.
MESSAGES = 64
MESSAGE_SECONDS = 15.0
# After which a slow line has shown enough; a last lot, of as many as before, may follow.
_EXCHANGE_SECONDS = 10.0
_LAST = b"last"

# The doctor looks at other hosts between two questions.
_PATIENCE_SECONDS = 900.0


def main() -> int:
    """Answers until the doctor needs no more; the return value is the exit code."""
    wire = standard_pipes()
    with contextlib.suppress(ConnectionError):  # The doctor is gone.
        wire.send(hello(client=environment.ssh_client()))
        serve(wire)
    wire.close()
    return 0


def serve(wire: Wire) -> None:
    """Answers until the doctor says "stop".

    Raises:
        ConnectionError: it is gone.
    """
    while (question := wire.receive(_PATIENCE_SECONDS))["type"] != "stop":
        if question["type"] == "clock":
            wire.send({"type": "clock", "seconds": time.time()})
            continue
        network = NetworkConfig.from_json(question["network"])
        look = {"look": _look, "join": _join, "talk": _talk}[question["type"]]
        answer: dict[str, Any] = {
            "type": "found",
            "findings": [one.to_json() for one in look(wire, network, question)],
        }
        if look is _look:
            answer["versions"] = software.versions()
            with contextlib.suppress(errors.StromError):  # A finding says it.
                answer["address"] = _own_address(network, question["master"])
        wire.send(answer)


def _look(_: Wire, network: NetworkConfig, question: dict[str, Any]) -> Iterator[Finding]:
    """This machine by itself: `slots`, the `master`'s host, and a `marker` in a shared folder."""
    slots = int(question["slots"])
    yield from software.findings()
    yield from machine.findings(slots, network.checkpoint_dir)
    if question["marker"] is not None and not os.path.exists(question["marker"]):
        yield Finding(
            "checkpoints",
            Grade.BAD,
            f"{os.path.dirname(question['marker'])} is another folder here than where the doctor "
            "runs",
            "choose a --checkpoint-dir that all hosts share under the same name",
        )
    try:
        host = _own_address(network, question["master"])
    except errors.StromError as error:
        yield Finding("address", Grade.BAD, str(error))
        return
    why = (
        "from which packets leave for the master"
        if network.network_mask is None
        else f"the one in {network.network_mask}"
    )
    yield Finding("address", Grade.GOOD, f"{network_path.with_interface(host)}, {why}")
    yield network_path.ports(slots, network, host)
    yield network_path.packets(question["master"])


def _own_address(network: NetworkConfig, master: str) -> str:
    node_address = environment.node_address()
    return resolve_address(network, node_address=node_address, toward=master)


def _join(_: Wire, network: NetworkConfig, question: dict[str, Any]) -> Iterator[Finding]:
    """The way to the master, from the port of each worker that this machine would have.

    They join one after the other and leave: `workers` of them, from rank `first` on.
    """
    info, workers = JoinInfo.from_json(question["join"]), int(question["workers"])
    try:
        for local_rank in range(workers):
            with _joined(network, question, local_rank, int(question["first"]) + local_rank):
                pass
    except errors.StromError as error:
        yield Finding("relay", Grade.BAD, str(error))
        return
    if network.port:
        ports = " to ".join(str(network.of_worker(n).port) for n in sorted({0, workers - 1}))
        words = f"from UDP {ports} the master at UDP {info.address[1]} is reached and heard"
        yield Finding("relay ports", Grade.GOOD, words)


def _talk(wire: Wire, network: NetworkConfig, question: dict[str, Any]) -> Iterator[Finding]:
    """What a worker here and one at the doctor's end send each other."""
    try:
        started = time.monotonic()
        with _joined(network, question, 0, 1) as worker:
            joined = time.monotonic() - started
            wire.send({"type": "joined"})
            rate = exchange(worker)
            status = worker.status()
            wire.send({"type": "talked"})
            wire.receive(_PATIENCE_SECONDS)  # The doctor asks its master about this link.
            yield network_path.traffic(status, joined, rate)
            yield network_path.receive_buffer(status)
    except errors.StromError as error:
        yield Finding("relay", Grade.BAD, str(error))


def _joined(network: NetworkConfig, question: dict[str, Any], local_rank: int, rank: int) -> Worker:
    """A worker of a trial, at the port of a run's `local_rank`.

    Raises:
        StromError: it cannot join.
    """
    info = JoinInfo.from_json(question["join"])
    return Worker(
        info,
        bytes.fromhex(question["secret"]),
        rank=rank,
        network=network_path.at_port_of(local_rank, rank, network_path.for_trial(network)),
        ip=_own_address(network, info.address[0]),
        join_timeout=float(question["seconds"]),
    )


def exchange(worker: Worker) -> float:
    """Sends the other end of a trial some megabytes and takes its; bytes a second each way.

    On a slow line it is less: an end that sees that all would take too long sends some more each
    time that as many have come from the other one, whose last word is `_LAST`.

    Raises:
        StromError: they do not get through.
    """
    started = time.monotonic()
    sent, received, batch, is_over = 0, 0, 1, False

    def take(wanted: float) -> None:
        nonlocal received, is_over
        while received < wanted and not is_over:
            for message in network_path.some(worker, MESSAGE_SECONDS, received):
                is_over = message.data == _LAST
                received += not is_over

    while sent < MESSAGES and not is_over and time.monotonic() - started < _EXCHANGE_SECONDS:
        for _ in range(batch):
            worker.submit(network_path.MESSAGE, timeout=MESSAGE_SECONDS)
        sent += batch
        take(sent)
        whole = (time.monotonic() - started) / sent * MESSAGES
        batch = min(2 * batch if whole > _EXCHANGE_SECONDS else MESSAGES, MESSAGES - sent)
    worker.submit(_LAST, timeout=MESSAGE_SECONDS)
    take(math.inf)
    worker.flush(timeout=MESSAGE_SECONDS)
    return received * len(network_path.MESSAGE) / max(time.monotonic() - started, 1e-6)


def without_ports(network: NetworkConfig) -> NetworkConfig:
    """The options of a trial's worker that takes any free port."""
    return dataclasses.replace(network_path.for_trial(network), port=0)


if __name__ == "__main__":
    sys.exit(main())
