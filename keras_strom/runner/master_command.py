"""A launcher whose workers others start: `keras-strom master`, and what it is prepared with."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable

from keras_strom import errors
from keras_strom.job import environment
from keras_strom.job.network import (
    HostPort,
    NetworkConfig,
    address_here,
    format_address,
    literal_addresses,
    parse_ip,
    resolve_address,
)
from keras_strom.runner.console import Console
from keras_strom.runner.door import Door
from keras_strom.runner.job_file import JobFile, remove
from keras_strom.runner.launcher import Job, launch
from keras_strom.runner.master_options import StartMaster
from keras_strom.runner.start_master import start_master

#: What `prepare` leaves in a folder: for the master alone, and for the workers.
MASTERS_FILE, WORKERS_FILE = "master.json", "worker.json"

#: What to do where the port is in use.
_OTHER_PORT = "choose another port, or 0 for any free one"
_PREPARED_PORT = "end what uses it, or prepare the job anew with another port"


def serve(
    job: Job, path: str, console: Console | None = None, start: StartMaster = start_master
) -> None:
    """Runs a job whose workers come by themselves (`keras-strom worker`) to its end.

    Args:
        job: without work, which the workers bring.
        path: of the job's file. Where there is none it is written for the workers, and removed at
            the end; where there is one, it is the master's file of a job that was prepared.
        console: shows what happens; None = on sys.stdout.
        start: starts the master.

    Raises:
        InvalidOption: a lone worker; or the file is there and no master's.
        JoinTimeout: too few workers have come in time.
        What `launch` raises.
    """
    if job.workers == 1:
        raise errors.InvalidOption("one worker needs no master: run python SCRIPT")
    console = console or Console(job.workers)
    prepared = _prepared(path)
    network = job.network if prepared is None else network_of(job.network, prepared)
    host = _listening_host(network, prepared, console.message)

    def job_file(port: int) -> JobFile:
        made = prepared or JobFile.new(network.advertised_master((host, port)))
        if prepared is None:
            made.for_workers().write(path)
        console.message(
            f"{job.workers} workers may come to {format_address(made.master)} (TCP, then UDP); "
            f"what they need is in {path if prepared is None else WORKERS_FILE}"
        )
        if not _is_at(made.master, (host, port)):
            console.message(
                f"the master itself listens at {format_address((host, port))}: what comes to "
                f"{format_address(made.master)} must be led there; --network-mask picks another "
                "of this machine's addresses"
            )
        return made

    door = Door(
        job.workers,
        job.min_workers,
        (host, network.port),
        job_file,
        timeout=job.start_timeout,
        tell=console.message,
        remedy=_OTHER_PORT if prepared is None else _PREPARED_PORT,
    )
    try:
        launch(dataclasses.replace(job, network=network), console, start, door)
    finally:
        if prepared is None:
            remove(path)


def prepare(folder: str, master: HostPort) -> None:
    """Makes the files of a job that has no master yet, for its master and for its workers.

    Args:
        folder: to leave them in; it is made where there is none.
        master: where workers will reach the master (TCP, and UDP at the same port).

    Raises:
        InvalidOption: they cannot be written, or are there already.
    """
    paths = [os.path.join(folder, name) for name in (MASTERS_FILE, WORKERS_FILE)]
    for path in paths:
        if os.path.exists(path):
            raise errors.InvalidOption(f"{path} is there already, of another job: remove it first")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise errors.InvalidOption(f"no folder {folder} can be made: {error.strerror}") from error
    job = JobFile.new(master)
    job.write(paths[0])
    job.for_workers().write(paths[1])


def network_of(network: NetworkConfig, prepared: JobFile) -> NetworkConfig:
    """The options of a job that was prepared: workers reach all of its master where its file says.

    Args:
        network: as given; what it says of the port and the master's address counts more.
        prepared: the job's file.
    """
    return dataclasses.replace(
        network,
        port=network.port or prepared.master[1],
        master_address=network.master_address or format_address(prepared.master),
    )


def _listening_host(
    network: NetworkConfig, prepared: JobFile | None, tell: Callable[[str], object]
) -> str:
    """Where workers are told to come, if that is this machine's and nothing else has been said."""
    node_address = environment.node_address()
    if network.network_mask is not None or node_address is not None:
        return resolve_address(network, node_address=node_address)
    if network.master_address is not None:
        told, _ = network.advertised_master(("", 0)) if prepared is None else prepared.master
        found = address_here(told)
        if found is not None:
            return found
    host = resolve_address(network)
    if parse_ip(host).is_loopback:
        tell(
            "this machine has no default route, and no address or several: the master listens at "
            f"{host}, where workers of other machines do not reach it; choose another address "
            "(--network-mask, --master-address)"
        )
    return host


def _is_at(told: HostPort, listening: HostPort) -> bool:
    """Whether an address that workers are told is the one listened at."""
    found = []
    with contextlib.suppress(errors.AddressError):
        found = literal_addresses(told[0])
    return told[1] == listening[1] and listening[0] in found


def _prepared(path: str) -> JobFile | None:
    if not os.path.exists(path):
        return None
    found = JobFile.read(path)
    if found.private_key is None:
        masters = os.path.join(os.path.dirname(path), MASTERS_FILE)
        if os.path.basename(path) == WORKERS_FILE or os.path.exists(masters):
            raise errors.InvalidOption(
                f"{path} is the workers' file of a job that was prepared: the master's is "
                f"{MASTERS_FILE}, which was made beside it; --job {masters}"
            )
        raise errors.InvalidOption(
            f"{path} is the workers' file of another job, whose master runs or was killed: remove "
            "it, or name another --job"
        )
    return found
