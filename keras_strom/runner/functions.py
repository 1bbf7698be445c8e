"""`keras_strom.run`: a function on several workers, of this machine or of others, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_strom import errors
from keras_strom.checks import check_least, check_verbose, flag, whole_number
from keras_strom.dashboard.page_address import PageAddress
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.job.network import NetworkConfig, check_network
from keras_strom.runner.calls import call_of, returned
from keras_strom.runner.console import Console
from keras_strom.runner.hosts import parse_hosts
from keras_strom.runner.launcher import Job, launch
from keras_strom.runner.process import check_env
from keras_strom.runner.ssh import split_options


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    num_proc: int | None = None,
    hosts: str | None = None,
    network: NetworkConfig | None = None,
    start_timeout: float = ClusterEnvironment.join_timeout,
    max_failures: int = 3,
    min_workers: int | None = None,
    drain_seconds: float = ClusterEnvironment.drain_seconds,
    env: Mapping[str, str] | None = None,
    ssh_args: str | None = None,
    warm_start: bool = True,
    stream_logs: bool = True,
    verbose: int = 1,
    dashboard: bool | int | str = False,
) -> list[Any]:
    """Calls `fn(*args, **kwargs)` on every worker at the same time, from a program or a notebook.

    Inside, `StromStrategy()`, `keras_strom.rank()` and the like find their place. What `fn` needs
    from elsewhere it makes or reads itself: a model belongs into the scope of its strategy, and
    data that are arguments travel to every worker. `keras-strom run` does the same for a script,
    `keras_strom.spark.run` on Spark.

    Args:
        fn: pickled with cloudpickle; so are `args`, `kwargs` and what it returns. A function of a
            module is imported on the workers, which look for modules where this process does.
        args: positional arguments.
        kwargs: keyword arguments.
        num_proc: the number of workers; None = all slots of `hosts`.
        hosts: machines to which `ssh` leads, with their slots, as `keras-strom run --hosts` takes
            them: "a:4,b:4"; None = this machine. Workers elsewhere run in a folder of the name of
            this process's.
        network: options of the relay; without a mask or hosts the job stays on the loopback
            interface.
        start_timeout: seconds that workers wait for each other at the start.
        max_failures: so many workers whose process dies, or whose host is lost, are started again
            and train on with the others; 0 = none. An exception of `fn` ends the job.
        min_workers: so many, worker 0 among them, are enough to start, and the others join when
            they are there; with fewer of them training waits. None = training starts with all and
            goes on with those that are left.
        drain_seconds: how long a worker that is asked to leave (SIGTERM to its process, or
            `keras_strom.drain`) may take to hand over what it has learnt; then it is killed.
        env: variables for the workers, on top of this process's own, elsewhere of those that `ssh`
            gives.
        ssh_args: options for ssh, as one would write them: "-p 2222 -i key".
        warm_start: workers are forked from a process that has imported TensorFlow, which waits for
            the next `run` (`keras_strom.runner.fork_server`); it takes about 600 MB and ends with
            this process, or when idle for ten minutes. False = each is a fresh interpreter.
        stream_logs: show their output here, with "[rank] " before every line.
        verbose: 1 = also say what the runner does; 0 = do not.
        dashboard: True = serve a live page of the job at any free port of the loopback interface,
            and say where; a port, or "HOST:PORT", says which (docs/dashboard.md).

    Returns:
        What `fn` has returned, in rank order; None for a worker whose host was lost where no other
        had a slot free, so that the others went on without it.

    Raises:
        WorkerFailed: an exception of `fn`, or the first failure beyond `max_failures`; the other
            workers have been ended.
        HostUnusable: some hosts cannot run workers; nothing has been started.
        NotEnoughSlots: there are fewer slots than workers, or this machine's memory cannot hold
            its own.
        StoreUnavailable: the folder for checkpoints (`network.checkpoint_dir`) cannot be written.
        AddressError: a port in use, or a network mask that matches nothing.
        InvalidOption: an argument that makes no sense, or `fn` cannot be pickled.
        KeyboardInterrupt: by Ctrl+C, where this is called in the main thread; workers have had it,
            too, and have ended.

    Example:
        >>> histories = run(train, args=(5,), num_proc=2)  # doctest: +SKIP
    """
    check_verbose(verbose)
    flag("warm_start", warm_start)
    flag("stream_logs", stream_logs)
    for name, text in (("hosts", hosts), ("ssh_args", ssh_args)):
        if text is not None and not isinstance(text, str):
            raise errors.InvalidOption(f"{name}={text!r} must be a text")
    machines = () if hosts is None else parse_hosts(hosts, "hosts=")
    if num_proc is None:
        if not machines:
            raise errors.InvalidOption(
                'say how many workers there are (num_proc=4) or where (hosts="a:4,b:4")'
            )
        num_proc = sum(host.slots for host in machines)
    whole_number("num_proc", num_proc, least=1)
    network = network or NetworkConfig()
    check_network(network)
    check_least("min_workers", min_workers, "num_proc", num_proc)
    job = Job(
        work=call_of(fn, args, kwargs),
        workers=num_proc,
        network=network,
        env=dict(check_env(env)),
        start_timeout=start_timeout,
        max_failures=max_failures,
        min_workers=min_workers,
        drain_seconds=drain_seconds,
        warm_start=warm_start,
        hosts=machines,
        ssh_args=split_options(ssh_args, "ssh_args="),
        dashboard=PageAddress.of(dashboard),
    )
    console = Console(num_proc, lines=stream_logs, messages=verbose == 1)
    return [
        None if outcome.result is None else returned(rank, outcome.result, "here")
        for rank, outcome in enumerate(launch(job, console))
    ]
