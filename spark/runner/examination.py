"""Looks at a Spark application before a run: on the driver, and in the tasks that it would have."""

from __future__ import annotations

import dataclasses
import functools
import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from keras_strom import __version__, errors
from keras_strom.doctor import Finding, Grade, Report, machine, network_path, software
from keras_strom.doctor.finding import of_errors
from keras_strom.job.joining import verdict
from keras_strom.job.network import NetworkConfig, check_network
from keras_strom.relay.bytes_relay import JoinInfo, Master, Worker, new_secret
from keras_strom.runner.job_checkpoints import refuse_without_others

from .application import is_on
from .executors import check_executors, check_version
from .runner import active_context, driver_address, is_guarded
from .slots import DYNAMIC_ALLOCATION, Waiting, WantedSize, choose_workers

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_SLOTS_SECONDS = 60.0
_SECONDS = 15.0
_MESSAGES = 64
# In what a task gives back, its time in place of a finding.
_CLOCK = "seconds since the epoch"


def doctor(
    spark: SparkSession | None = None,
    *,
    num_proc: int | None = None,
    network: NetworkConfig | None = None,
) -> Report:
    """Looks at what a `run` with the same options would find, and says what to do about it.

    On the driver: versions, slots, address, and whether others can read along. In `num_proc` tasks
    at the same time, as a run's: the executor's packages, processors, memory, and the relay's
    packets to the driver and back; with dynamic allocation only the packages. It takes some
    seconds, most of them for TensorFlow's import.

    Args:
        spark: the session; None = the active one.
        num_proc: so many workers; None = one for each slot.
        network: the run's options.

    Returns:
        The findings; `print` shows them as a table, and `would_fail` is in it.

    Raises:
        InvalidOption: an option out of range, or a session of Spark Connect.

    Example:
        >>> print(keras_strom.spark.doctor(spark, num_proc=8))  # doctest: +SKIP
    """
    network = NetworkConfig() if network is None else network
    check_network(network)
    WantedSize(num_proc=num_proc)  # Refuses what is no number.
    network.refuse_waiting("a run on Spark has its master in the driver")
    context = active_context(spark)
    report = Report(_at("driver", software.findings()))
    try:
        workers = choose_workers(context, num_proc, Waiting(_SLOTS_SECONDS))
        network.of_worker(workers - 1)
        refuse_without_others(network, workers)
        check_executors(context, workers)
    except (errors.NotEnoughSlots, errors.ExecutorMismatch) as error:
        check = "slots" if isinstance(error, errors.NotEnoughSlots) else "versions"
        report.append(Finding(check, Grade.BAD, str(error), node="driver"))
        return report
    report += _at("driver", [Finding("slots", Grade.GOOD, f"enough for {workers} workers")])
    report += _at("driver", [_rpc(context)])
    try:
        host = driver_address(context, network)
        report += _at("driver", [Finding("address", Grade.GOOD, host)])
        if is_on(context, DYNAMIC_ALLOCATION):
            report += _at("driver", [_OUT_OF_REACH])
        else:
            report += _in_tasks(context, workers, network, host)
    except errors.AddressError as error:
        report.append(Finding("address", Grade.BAD, str(error), node="driver"))
    return report


# Spark's barrier execution mode does not go together with it; a run needs none.
_OUT_OF_REACH = Finding(
    "executors",
    Grade.WARNING,
    f"only their packages were looked at: with {DYNAMIC_ALLOCATION} Spark starts no tasks that "
    "wait for each other",
    "look from an application without it",
)


def _rpc(context: SparkContext) -> Finding:
    if is_guarded(context):
        return Finding("secret", Grade.GOOD, "nobody reads along where it travels")
    return Finding(
        "secret",
        Grade.WARNING,
        "it travels over Spark's RPC, which is not encrypted",
        "spark.authenticate=true and spark.network.crypto.enabled=true on an untrusted network",
    )


@dataclasses.dataclass(frozen=True)
class _Task:
    """What a task is told."""

    join_info: JoinInfo
    secret: bytes
    network: NetworkConfig
    checkpoint_dir: str | None
    join_seconds: float = 15.0
    version: str = __version__


def _in_tasks(
    context: SparkContext, workers: int, network: NetworkConfig, host: str
) -> Iterator[Finding]:
    secret = new_secret()
    relay = network_path.for_trial(network)
    with Master(secret, workers=workers, network=relay, host=host) as master:
        task = _Task(master.join_info, secret, relay, network.checkpoint_dir)
        tasks = context.parallelize(range(workers), workers).barrier()
        before = time.time()
        found = tasks.mapPartitions(functools.partial(_look, task)).collect()
        after = time.time()
        status = master.status()
    for fields in found:
        if _CLOCK in fields:
            ahead = float(fields[_CLOCK]) - (before + after) / 2
            clock = machine.clock(ahead, (after - before) / 2, "the driver's")
            yield dataclasses.replace(clock, node=fields["node"])
            continue
        finding = Finding.from_json(fields)
        if finding.grade is Grade.BAD and (cause := verdict(finding.words, status)):
            finding = dataclasses.replace(finding, remedy=cause)
        yield finding


def _look(task: _Task, _: Iterator[Any]) -> Iterator[dict[str, str]]:
    """In a task: what there is, and the relay to the driver."""
    from pyspark import BarrierTaskContext

    check_version(task.version)
    here = BarrierTaskContext.get()
    rank, own = here.partitionId(), socket.gethostname()
    hosts = here.allGather(own)
    found: list[Finding] = []
    if (local_rank := hosts[:rank].count(own)) == 0:
        yield {"node": f"executors on {own}", _CLOCK: str(time.time())}
        found += _at(f"executors on {own}", software.findings())
        found += _at(f"executors on {own}", machine.findings(hosts.count(own), task.checkpoint_dir))
    here.barrier()  # All join at the same time.
    relay = of_errors("relay", lambda: _exchange(task, rank, local_rank))
    found += _at(f"worker {rank} on {own}", [relay])
    here.barrier()
    yield from (finding.to_json() for finding in found)


def _exchange(task: _Task, rank: int, local_rank: int) -> Finding:
    """Sends some megabytes to all others, and takes theirs."""
    started = time.monotonic()
    with Worker(
        task.join_info,
        task.secret,
        rank=rank,
        network=network_path.at_port_of(local_rank, rank, task.network),
        join_timeout=task.join_seconds,
    ) as worker:
        joined = time.monotonic() - started
        for _ in range(_MESSAGES):
            worker.submit(network_path.MESSAGE, timeout=_SECONDS)
        started = time.monotonic()
        wanted = _MESSAGES * (task.join_info.workers - 1)
        network_path.receive(worker, wanted, _SECONDS)
        seconds = max(time.monotonic() - started, 1e-3)
        rate = wanted * len(network_path.MESSAGE) / seconds
        return network_path.traffic(worker.status(), joined, rate)


def _at(node: str, found: Iterator[Finding] | list[Finding]) -> list[Finding]:
    return [dataclasses.replace(finding, node=node) for finding in found]
