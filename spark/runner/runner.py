"""`run`: a function on every worker of a Spark job, its results in rank order.

The job is a plain one, not a barrier job. The driver holds the master and a
`Controller`; each task starts its worker in a process of its own (`task.run_task`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
import socket
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keras_strom import __version__, errors
from keras_strom.checks import check_seconds, check_verbose, flag, whole_number
from keras_strom.dashboard.page_address import PageAddress
from keras_strom.dashboard.watch import watch
from keras_strom.job import environment
from keras_strom.job.credentials import Credentials
from keras_strom.job.interfaces import interface_addresses
from keras_strom.job.network import NetworkConfig, check_network, resolve_address
from keras_strom.runner.calls import call_of, returned
from keras_strom.runner.console import Console
from keras_strom.runner.job_master import JobMaster
from keras_strom.runner.master_options import MasterOptions, StartMaster
from keras_strom.runner.process import GRACE_SECONDS, check_env
from keras_strom.runner.start_master import start_master
from keras_strom.runner.work import Function

from ..data.connect import context_of
from ..data.spark_variables import refuse_spark_variables
from .application import is_local, is_on, is_one_machine
from .controller import Controller
from .decommission import Decommissions
from .event import Event
from .executors import UNKNOWN_HOST, refuse_mismatch
from .resources import UseGpu, check_gpus, check_use_gpu, shares_gpu
from .result import RunResult
from .result_room import ResultRoom
from .session import active_or_new
from .slots import MAX_FAILURES, START_TIMEOUT_SECONDS, Size, WantedSize
from .task import Report, Task, run_task

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import SparkSession

    from ..data.direct import Direct

_BROADCAST_BYTES = 256 * 1024
# Spark's default of spark.task.maxFailures.
_SPARK_TASK_FAILURES = 4

_logger = logging.getLogger(__name__)


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    num_proc: int | None = None,
    min_proc: int | None = None,
    max_proc: int | None = None,
    network: NetworkConfig | None = None,
    start_timeout: float = START_TIMEOUT_SECONDS,
    max_failures: int = MAX_FAILURES,
    drain_seconds: float = environment.ClusterEnvironment.drain_seconds,
    env: Mapping[str, str] | None = None,
    use_gpu: UseGpu = "auto",
    workers_per_node: int | None = None,
    warm_start: bool = True,
    stream_logs: bool = True,
    verbose: int = 1,
    secret: bytes | None = None,
    data: Direct | None = None,
    dashboard: bool | int | str = False,
    spark: SparkSession | None = None,
) -> RunResult:
    """Calls `fn(*args, **kwargs)` on every worker at the same time.

    Inside, `StromStrategy()`, `keras_strom.rank()` and the like find their place. Call it in the
    driver's main thread if Ctrl+C is to end it.

    Args:
        fn: pickled with cloudpickle; so are `args`, `kwargs` and what it returns.
        args: positional arguments.
        kwargs: keyword arguments.
        num_proc: the number of workers, one a task slot; None = all slots.
        min_proc: makes the run elastic: it starts with so many workers, others join in the middle
            of training as slots become free, and with fewer than that training waits until others
            have come. Not together with `num_proc`.
        max_proc: the most workers of an elastic run; None = the slots that there are now. It is
            `keras_strom.size()`: data are divided in so many parts and updates scaled for so many,
            however many are there.
        network: options of the relay; the control channel listens at TCP port `network.port`.
        start_timeout: seconds until all tasks (`min_proc` of them) must run, and all workers have
            joined; also how long an elastic run may have fewer than `min_proc`.
        max_failures: so many workers whose process dies, or whose executor is lost, are started
            again and train on with the others; 0 = none. Lost executors of an elastic run are not
            counted: they come and go. An exception of `fn` ends the job. Spark must be ready to
            run a task once more: `spark.task.maxFailures` > `max_failures`.
        drain_seconds: how long a worker whose executor is decommissioned, or that is asked to leave
            otherwise, may take to hand over what it has learnt; then it is killed.
        env: variables for the workers.
        use_gpu: True = each worker sees the GPUs that Spark has given its task
            (`spark.task.resource.gpu.amount`), and is to train on them; False = none; "auto" = its
            task's where Spark gives it some, else whatever the machine has.
        workers_per_node: no more than so many workers on one machine: each task asks for enough
            cores of its executor (Spark's stage-level scheduling); None = as many as it has slots.
        warm_start: each executor keeps a process that has imported TensorFlow, from which its
            workers, those of later runs too, are forked (`keras_strom.runner.fork_server`); it
            takes about 600 MB and ends with the executor, or when idle for ten minutes. False =
            every worker is a fresh interpreter.
        stream_logs: show their output here, with "[rank] " before every line.
        verbose: 1 = also say what the runner does; 0 = do not.
        secret: 32 random bytes by which workers prove that they belong to the job; None = fresh
            ones, which nobody has to keep.
        data: rows that each task lays down on its local disk for its worker (`direct`); they are
            divided for `num_proc` workers.
        dashboard: True = the driver serves a live page of the job at any free port of its loopback
            interface, and says where; a port, or "HOST:PORT", says which. docs/dashboard.md tells
            of it; it needs `keras-strom[dashboard]`.
        spark: the session; None = the active one, or a new one.

    Returns:
        The results in rank order, with `metrics` and `events`. Where an elastic run has ended
        without some of its workers, theirs are missing (`metrics["ranks"]`).

    Raises:
        WorkerFailed: an exception of `fn`, a result that Spark has no room for, or the first
            failure beyond `max_failures`; the other workers have been ended.
        StoreUnavailable: the folder for checkpoints (`network.checkpoint_dir`) cannot be written.
        NotEnoughSlots: Spark cannot run so many tasks at once.
        ExecutorMismatch: an executor has no keras-strom or TensorFlow, or another version of it or
            of Python than the driver.
        Unreachable: Spark cannot be started here, for example without Java.
        JoinTimeout: not all tasks (`min_proc` of them) ran within `start_timeout`.
        AddressError: a port in use, or a network mask that matches nothing.
        InvalidOption: an argument that makes no sense.
        KeyboardInterrupt: by Ctrl+C; all workers have been ended.

    Example:
        >>> results = run(train, args=(5,), num_proc=2)  # doctest: +SKIP
        >>> results[0], results.metrics["seconds"]  # doctest: +SKIP
    """
    options = _Options(
        wanted=WantedSize(
            num_proc=num_proc,
            min_proc=min_proc,
            max_proc=max_proc,
            workers_per_node=workers_per_node,
        ),
        network=network or NetworkConfig(),
        start_timeout=start_timeout,
        max_failures=max_failures,
        drain_seconds=drain_seconds,
        use_gpu=use_gpu,
        warm_start=warm_start,
        credentials=Credentials.new(secret),
        stream_logs=stream_logs,
        verbose=verbose,
        data=data,
        dashboard=PageAddress.of(dashboard),
    )
    work = call_of(fn, args, kwargs)
    refuse_spark_variables("fn, its arguments or what it refers to", work.payload)
    return _run(work, options, dict(check_env(env)), active_context(spark), start_master)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options:
    wanted: WantedSize
    network: NetworkConfig
    start_timeout: float
    max_failures: int
    drain_seconds: float
    use_gpu: UseGpu
    warm_start: bool
    credentials: Credentials
    stream_logs: bool
    verbose: int
    data: Direct | None
    dashboard: PageAddress | None

    def __post_init__(self) -> None:
        check_network(self.network)
        check_seconds("start_timeout", self.start_timeout)
        whole_number("max_failures", self.max_failures, least=0)
        check_seconds("drain_seconds", self.drain_seconds)
        check_use_gpu(self.use_gpu)
        flag("warm_start", self.warm_start)
        check_verbose(self.verbose)
        wanted = self.wanted
        name, workers = "num_proc", wanted.num_proc
        if wanted.is_elastic:
            name, workers = "max_proc", wanted.max_proc
        if self.data is not None and workers != self.data.workers:
            raise errors.InvalidOption(
                f"{name}={workers} but data was divided for {self.data.workers} workers"
            )


def _run(
    work: Function,
    options: _Options,
    env: Mapping[str, str],
    context: SparkContext,
    start: StartMaster,
) -> RunResult:
    begin = time.monotonic()
    if options.dashboard is not None:
        options.dashboard.check()
    check_gpus(context, options.use_gpu)
    size = options.wanted.choose(
        context, options.start_timeout, lambda text: _say(options, Console(1), text)
    )
    workers = size.workers
    options.network.refuse_waiting(
        "the master is in Spark's driver, whose loss ends the application; give a checkpoint_dir, "
        "and run it again"
    )
    options.network.of_worker(workers - 1)  # Refuses a port that leaves none for workers.
    _warn_of_open_rpc(context)
    _warn_of_few_task_failures(context, options.max_failures)
    console = Console(workers)
    room = ResultRoom.of(context)
    host = driver_address(context, options.network)
    asked = MasterOptions(
        workers=workers,
        network=options.network,
        host=host,
        min_workers=size.least,
        credentials=options.credentials,
    )
    with (
        watch(options.dashboard, work.name, workers, console.message) as watching,
        JobMaster(asked, start, watching.checkpoint) as master,
        contextlib.ExitStack() as stack,
    ):
        watching.follow(master.status)
        controller = Controller(
            size,
            master.credentials or options.credentials,
            (host, options.network.port),
            console if options.stream_logs else None,
            watching=watching,
            ended=master.worker_has_ended,
            room=room,
            max_failures=options.max_failures,
            speculation=is_on(context, "spark.speculation"),
            begin=begin,
        )
        stack.callback(controller.close)
        job = _Job(context, size, controller, options.data)
        stack.callback(job.end)
        task = _task(work, options, env, size, controller, console, master, host, room)
        job.submit(dataclasses.replace(task, shares_gpu=shares_gpu(context)))
        stack.enter_context(Decommissions(context, controller))
        _say(options, console, f"starting {_number_of_workers(size)}")
        controller.wait_for_start(options.start_timeout, with_rows=options.data is not None)
        start_seconds = time.monotonic() - begin
        controller.wait_for_end(options.start_timeout)
        failure = controller.first_failure()
        if failure is not None:
            controller.stop(f"worker {failure.rank} has failed")
            refuse_mismatch(failure.host, failure.traceback)
            raise master.judged(failure)
        if size.least is not None:
            controller.stop("the job has ended")  # Tasks that come now have nothing to do.
        results = _by_rank(job.result(), size)
        master.end_well()
        if words := master.of_nothing_shared():
            _say(options, console, words)
        status = master.status()
        metrics = {
            **status,
            "ranks": list(results),
            "start_seconds": start_seconds,
            "failures": controller.failures,
            "lost_tasks": controller.lost_tasks,
        }
        events = [*controller.events, *_events_of_master(status, begin)]
    metrics["seconds"] = time.monotonic() - begin
    _say(options, console, f"done in {metrics['seconds']:.1f} s")
    events.sort(key=lambda event: event.seconds)
    return RunResult(results.values(), metrics=metrics, events=tuple(events))


def _number_of_workers(size: Size) -> str:
    if size.least is None or size.least == size.workers:
        return f"{size.workers} worker{'s' if size.workers > 1 else ''}"
    return f"{size.least} to {size.workers} workers"


def _events_of_master(status: Mapping[str, Any], begin: float) -> list[Event]:
    """What the master has seen happen; its clock is that of `time.monotonic`."""
    return [
        Event(
            seconds=max(0.0, seen["time_ns"] * 1e-9 - begin),
            kind=f"master: {seen['type']}",
            rank=int(seen["rank"]),
            text=str(seen["text"]),
        )
        for seen in status.get("events", ())
    ]


def _task(
    work: Function,
    options: _Options,
    env: Mapping[str, str],
    size: Size,
    controller: Controller,
    console: Console,
    master: JobMaster,
    host: str,
    room: ResultRoom,
) -> Task:
    return Task(
        payload=work.payload,
        workers=size.workers,
        controller=(options.network.advertised_master((host, 1))[0], controller.port),
        controller_key=controller.public_key,
        credentials=master.credentials or options.credentials,
        master=master.address,
        network=options.network,
        env=env,
        use_gpu=options.use_gpu,
        start_timeout=options.start_timeout,
        drain_seconds=options.drain_seconds,
        stream_logs=options.stream_logs,
        show_progress=console.redraws,
        room=room,
        data=options.data.data if options.data is not None else None,
        version=__version__,
        checkpoints=master.plan,
        warm_start=options.warm_start,
        watched=options.dashboard is not None,
        may_grow=size.least is not None,
    )


class _Job:
    """The Spark job of one run, submitted from a thread of its own.

    The main thread stays free to act on time-outs, failures and Ctrl+C.
    """

    def __init__(
        self,
        context: SparkContext,
        size: Size,
        controller: Controller,
        data: Direct | None,
    ) -> None:
        self._context = context
        self._data = data
        self._size = size
        self._controller = controller
        self._tag = f"keras-strom-{uuid.uuid4().hex}"
        self._reports: list[Report] = []
        self._error: BaseException | None = None
        self._broadcast: Any = None
        self._thread: Any = None

    def submit(self, task: Task) -> None:
        """Starts the job and returns."""
        from pyspark import InheritableThread
        from pyspark.sql.utils import is_remote

        if len(task.payload) > _BROADCAST_BYTES:
            # A large closure goes through a file; the secret must not, so the payload goes alone.
            self._broadcast = self._context.broadcast(task.payload)
            task = dataclasses.replace(task, payload=self._broadcast)
        # In a client of Spark Connect that class passes on the client's tags, of a session.
        kind = threading.Thread if is_remote() else InheritableThread
        self._thread = kind(target=lambda: self._collect(task))
        self._thread.daemon = True
        self._thread.start()

    def result(self) -> list[Report]:
        """What the tasks returned.

        Raises:
            ConnectionClosed: Spark's session was stopped, or its job cancelled.
            ExecutorMismatch: an executor has no keras-strom, or another version.
            WorkerFailed: Spark itself could not run them.
        """
        self._thread.join()
        if self._error is not None:
            if words := ended_from_outside(str(self._error)):
                raise errors.ConnectionClosed(words) from None
            host, text = root_cause(str(self._error))
            refuse_mismatch(host, text)
            raise errors.WorkerFailed(-1, host, text) from None
        return self._reports

    def end(self) -> None:
        """Ends what still runs: politely first, then by cancelling the job."""
        if self._thread is None:
            return
        self._controller.stop("the job has been ended")
        self._thread.join(GRACE_SECONDS + 2)
        if self._thread.is_alive():
            self._context.cancelJobsWithTag(self._tag)
            self._thread.join(GRACE_SECONDS * 4)
        if self._broadcast is not None:
            self._broadcast.destroy()

    def _collect(self, task: Task) -> None:
        try:
            self._become_cancellable()
            rows: RDD[Any] = (
                self._context.parallelize(range(self._size.workers), self._size.workers)
                if self._data is None
                else self._data.partitions()
            )
            if self._size.profile is not None:
                rows = rows.withResources(self._size.profile)
            self._reports = rows.mapPartitions(lambda part: [run_task(task, part)]).collect()
        except BaseException as error:
            self._error = error
        finally:
            self._controller.job_ended(ended_from_outside(str(self._error or "")))

    def _become_cancellable(self) -> None:
        """Gives what this thread submits a name to cancel it by.

        In the job group of its caller, or of the stream whose batch it is, the job ends with that.
        """
        self._context.addJobTag(self._tag)
        if self._context.getLocalProperty("spark.jobGroup.id") is None:
            self._context.setJobGroup(self._tag, "keras_strom.spark.run")
        self._context.setInterruptOnCancel(True)


def ended_from_outside(message: str) -> str:
    """Who has ended the job, where Spark's message says that no task did; "" = it does not."""
    if "SparkContext was shut down" in message:
        return "Spark's session was stopped meanwhile: call its stop() when the training is over"
    cancelled = re.search(r"Job \d+ cancelled", message)
    return "Spark's job was cancelled meanwhile" if cancelled else ""


def root_cause(message: str) -> tuple[str, str]:
    """The host and the Python traceback in a message of Spark's scheduler."""
    where = re.search(r"\(TID \d+\) \(([^ )]+)", message)
    traceback = re.search(
        r"Traceback \(most recent call last\):.*?(?=\s*\n\tat |\s*\nDriver stacktrace|\Z)",
        message,
        re.S,
    )
    text = traceback.group(0) if traceback else message.partition("\n\tat ")[0]
    return where.group(1) if where else UNKNOWN_HOST, text


def _by_rank(reports: list[Report], size: Size) -> dict[int, Any]:
    """The workers' results by rank, in the order of ranks."""
    results = {rank: result for rank, result in reports if result is not None}
    ranks = sorted(results)
    if size.least is None and ranks != list(range(size.workers)):
        raise errors.InternalError(f"{size.workers} workers gave the results of ranks {ranks}")
    return {rank: returned(rank, results[rank], "on the driver") for rank in ranks}


def active_context(spark: SparkSession | None) -> SparkContext:
    """Of the given session, or the active one, or a new one as configured outside.

    Raises:
        Unreachable: Spark cannot be started.
        InvalidOption: a session of Spark Connect whose server is elsewhere.
    """
    return context_of(spark or active_or_new())


def driver_address(context: SparkContext, network: NetworkConfig) -> str:
    """Where master and controller bind: what the mask picks, or where Spark's driver is."""
    if network.network_mask is None:
        if is_one_machine(context.master):
            return "127.0.0.1"
        named = context.getConf().get("spark.driver.host")
        with contextlib.suppress(OSError):
            found = {str(info[4][0]) for info in socket.getaddrinfo(named, None)}
            for here in interface_addresses():
                if str(here.address) in found:
                    return str(here.address)
    return resolve_address(network, node_address=environment.node_address())


def is_guarded(context: SparkContext) -> bool:
    """Whether nobody reads along Spark's RPC: it is encrypted, or stays on one machine."""
    encrypting = ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled")
    encrypted = any(is_on(context, name) for name in encrypting)
    guarded = is_on(context, "spark.authenticate") and encrypted
    return guarded or is_one_machine(context.master)


def _warn_of_open_rpc(context: SparkContext) -> None:
    if not is_guarded(context):
        warnings.warn(
            "the job's secret travels over Spark's RPC, which is not encrypted: set "
            "spark.authenticate and spark.network.crypto.enabled on an untrusted network",
            RuntimeWarning,
            stacklevel=4,
        )


def _warn_of_few_task_failures(context: SparkContext, max_failures: int) -> None:
    """Spark itself must run the task of a lost executor again; its limit is fixed by now."""
    limit = int(context.getConf().get("spark.task.maxFailures") or _SPARK_TASK_FAILURES)
    if not is_local(context) and limit <= max_failures:
        warnings.warn(
            f"spark.task.maxFailures={limit} lets a task fail {limit - 1} times only: set it to "
            f"{max_failures + 1} or more for max_failures={max_failures}",
            RuntimeWarning,
            stacklevel=4,
        )


def _say(options: _Options, console: Console, text: str) -> None:
    if options.verbose:
        console.message(text)
