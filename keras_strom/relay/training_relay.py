"""A training's two ends of the relay: its `TrainingMaster`, and a `TrainingWorker`'s connection.

The runners start a master in the driver or launcher; `StromStrategy` makes the worker. Neither
needs TensorFlow, and neither does any work in Python while training runs: see
docs/internals/update.md.
"""

from __future__ import annotations

import contextlib
from typing import Any

from keras_strom import errors
from keras_strom._native.master_node import MasterNode
from keras_strom._native.node import WorkerNode
from keras_strom.job import environment
from keras_strom.job.credentials import Credentials
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.job.joining import at_first_that_answers, explained
from keras_strom.job.network import (
    HostPort,
    NetworkConfig,
    bound_address,
    is_here,
    resolve_address,
    warn_of_receive_buffer,
)
from keras_strom.relay.counters import NodeCounters


class TrainingMaster:
    """Membership, relay, and the job's own copy of the parameters, on a thread of its own.

    Attributes:
        address: (host, port) where workers reach it.
        bound: (host, port) that it has itself.
        credentials: what a worker needs to join, its public key included.

    Example:
        >>> with TrainingMaster(workers=2, host="127.0.0.1") as master:
        ...     master.address[0]
        '127.0.0.1'
    """

    def __init__(
        self,
        *,
        workers: int,
        network: NetworkConfig | None = None,
        host: str | None = None,
        credentials: Credentials | None = None,
        epoch: int = 1,
        min_workers: int | None = None,
        private_key: bytes | None = None,
    ) -> None:
        """Starts listening.

        Args:
            workers: the ranks are 0 to `workers` - 1; training starts when all have joined.
            network: port, mask, advertised address and failure timeout.
            host: the literal address to bind to; None = what `network` picks on this machine.
            credentials: None = fresh ones.
            epoch: > 0; a master that is started again for the same job takes a higher one.
            min_workers: so many, the chief among them, are enough to start, and with fewer of them
                training waits; None = it starts with all and goes on with those that are left.
            private_key: 32 bytes of the X25519 key that the workers of an earlier master of this
                job trust; None = a fresh one.

        Raises:
            AddressError: the port is in use, or the mask picks no or several interfaces.
        """
        network = network or NetworkConfig()
        host = host or resolve_address(network, node_address=environment.node_address())
        credentials = credentials or Credentials.new()
        self._node = MasterNode(
            credentials,
            workers=workers,
            bind_address=host,
            port=network.port,
            failure_timeout=network.failure_timeout,
            epoch=epoch,
            topology=network.topology,
            max_children=network.max_children,
            max_depth=network.max_depth,
            merging=network.merging,
            same_host=network.same_host,
            min_workers=min_workers or 0,
            private_key=private_key,
        )
        self.bound: HostPort = (host, self._node.port)
        self.address: HostPort = network.advertised_master(self.bound)
        self.credentials = credentials.with_master(self._node.public_key)
        self._last_status: dict[str, Any] | None = None
        warn_of_receive_buffer(self._node.status()["counters"])

    def status(self) -> dict[str, Any]:
        """State, counters and the latest events; the last one once closed.

        docs/internals/native.md lists the keys.
        """
        return self._node.status() if self._last_status is None else self._last_status

    def counters(self) -> NodeCounters:
        """What has gone through its links so far."""
        return NodeCounters.from_status(self.status())

    def worker_has_ended(self, rank: int) -> None:
        """That this worker's process has ended well, which may never have come: who waits is told.

        Harmless when repeated, and once closed.
        """
        with contextlib.suppress(errors.ConnectionClosed):
            self._node.worker_has_ended(rank)

    def close(self, reason: str = "") -> None:
        """Tells every worker to end with `reason`. Harmless when repeated."""
        if self._last_status is None:
            self._last_status = self._node.status()
            self._node.close(reason)
            self.counters().log("the master")

    def __enter__(self) -> TrainingMaster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close("the master's work is done")


class TrainingWorker(WorkerNode):
    """One worker's connection, which `strategy` and the native step share.

    The blocking requests are those of `WorkerNode`: start, average, finish, result, verify.

    Attributes:
        outlives: whether it waits for another master where this one is lost.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        master: HostPort,
        rank: int,
        size: int,
        local_rank: int = 0,
        attempt: int = 0,
        max_staleness: int | None = None,
        network: NetworkConfig | None = None,
        ip: str | None = None,
        join_timeout: float = 30.0,
    ) -> None:
        """Joins the job; returns when the master has welcomed this worker.

        Args:
            credentials: the master's, its public key included.
            master: (host, port); a name is looked up.
            rank: 0 to size - 1.
            size: the number of workers.
            local_rank: among the workers of this machine; offsets a fixed port.
            attempt: how often this rank was started before.
            max_staleness: None = asynchronous, 0 = synchronous, k = bounded.
            network: this job's options.
            ip: this machine's address where the mask does not decide.
            join_timeout: seconds; where the network says "wait", a lost master may take as long to
                come back.

        Raises:
            InvalidOption: "wait", or merging="on", in a mode that has no such way.
            Unreachable: nothing answers at the master's address.
            SecretRejected: it answers but does not know this job's secret or id.
            Refused: the master says why.
            DeadlinePassed: none of these within `join_timeout`.
            AddressError: the local port is in use, or the mask picks no or several interfaces.
        """
        network = network or NetworkConfig()
        if max_staleness is not None:
            network.refuse_waiting(
                f"max_staleness={max_staleness} has all workers apply updates in the master's "
                "order, which is lost with it; use max_staleness=None, or a checkpoint_dir"
            )
        _refuse_merging_in_order(network, max_staleness)

        def join(host: str) -> str:
            bind = bound_address(network, node_address=ip, toward=host)
            with explained(f"worker {rank}", master, bind):
                super(TrainingWorker, self).__init__(
                    credentials,
                    master=(host, master[1]),
                    rank=rank,
                    size=size,
                    attempt=attempt,
                    max_staleness=max_staleness,
                    bind_address=bind,
                    port=network.of_worker(local_rank).port,
                    failure_timeout=network.failure_timeout,
                    join_timeout=join_timeout,
                    same_host=network.same_host,
                    master_wait=join_timeout if network.waits_for_master else 0.0,
                )
            return host

        master_host = at_first_that_answers(master[0], join)
        self.outlives = network.waits_for_master
        if not is_here(master_host):  # There the master has warned already.
            warn_of_receive_buffer(self.status()["counters"])

    def counters(self) -> NodeCounters:
        """What has gone through its link so far."""
        return NodeCounters.from_status(self.status())

    @classmethod
    def from_environment(
        cls,
        cluster: ClusterEnvironment,
        *,
        max_staleness: int | None = None,
        network: NetworkConfig | None = None,
    ) -> TrainingWorker:
        """Joins the job that the environment names; what `network` says wins over its own options.

        Raises:
            InvalidOption: `network` asks for what is the runner's to do.
        """
        network = cluster.network if network is None else network.of_script(cluster.network)
        _refuse_merging_in_order(network, max_staleness)
        if cluster.master is None:
            raise errors.EnvironmentInvalid(f"{environment.MASTER} is not set")
        return cls(
            cluster.load_credentials(),
            master=cluster.master,
            rank=cluster.rank,
            size=cluster.size,
            local_rank=cluster.local_rank,
            attempt=cluster.attempt,
            max_staleness=max_staleness,
            network=network,
            ip=cluster.ip,
            join_timeout=cluster.join_timeout,
        )


def _refuse_merging_in_order(network: NetworkConfig, max_staleness: int | None) -> None:
    if max_staleness is not None:
        network.refuse_merging(
            f"max_staleness={max_staleness} has all workers apply updates one by one, in the "
            'master\'s order; use max_staleness=None, or merging="auto"'
        )
