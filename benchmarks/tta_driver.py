"""What a job of `make bench-time-to-accuracy` needs beside its workers, on a machine of its own.

For keras-strom that is the master, through which updates travel; for Horovod the server where its
processes look for each other at the start, as `horovodrun` runs one. The program prints one line of
JSON, the variables of every worker, and ends when its standard input does.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence

from benchmarks.tta_training import EXACT_DTYPES, HOROVOD, HOROVOD_FP16, METHODS, STROM

#: For each worker.
Variables = Sequence[Mapping[str, str]]


@dataclasses.dataclass(frozen=True)
class Driven:
    """The job.

    Attributes:
        way: the method.
        address: of the driver's machine.
        workers: the addresses of theirs, by rank.
        interface: of each, to the others.
        network_mask: of all.
        folder: for the credentials.
    """

    way: str
    address: str
    workers: tuple[str, ...]
    interface: str
    network_mask: str
    folder: str

    def arguments(self) -> list[str]:
        """What follows the name of a Python to run the driver."""
        return ["-m", "benchmarks.tta_driver", json.dumps(dataclasses.asdict(self))]


def drive_strom(job: Driven) -> None:
    """Runs the master."""
    from keras_strom.job.environment import ClusterEnvironment
    from keras_strom.job.network import NetworkConfig
    from keras_strom.relay.training_relay import TrainingMaster

    # Workers of one machine would use shared memory; here each stands for a machine.
    same_host = job.address in job.workers
    network = NetworkConfig(network_mask=job.network_mask, same_host=same_host)
    size = len(job.workers)
    with TrainingMaster(workers=size, network=network, host=job.address) as master:
        credentials = pathlib.Path(job.folder) / "credentials"
        credentials.touch(mode=0o600)
        credentials.write_text(master.credentials.to_json(), encoding="ascii")
        _tell(
            [
                ClusterEnvironment(
                    rank=rank,
                    size=size,
                    master=master.address,
                    credentials_path=os.fspath(credentials),
                    network=network,
                ).to_environ()
                for rank in range(size)
            ]
        )


def drive_horovod(job: Driven) -> None:
    """Runs the server of Gloo's rendezvous."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    size = len(job.workers)
    hosts = parse_hosts(",".join(f"{address}:1" for address in job.workers))
    server = RendezvousServer()
    port = server.start()
    server.init(get_host_assignments(hosts, size))
    common = {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": job.address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": job.interface,
        "HOROVOD_SIZE": str(size),
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "1",
        "HOROVOD_CROSS_SIZE": str(size),
    }
    own = ("HOROVOD_RANK", "HOROVOD_CROSS_RANK")
    _tell(
        [
            {**common, **dict.fromkeys(own, str(rank)), "HOROVOD_HOSTNAME": address}
            for rank, address in enumerate(job.workers)
        ]
    )
    server.stop()


#: The others' workers need nobody beside them.
DRIVERS = {
    STROM: drive_strom,
    **dict.fromkeys((*METHODS, *EXACT_DTYPES), drive_strom),
    HOROVOD: drive_horovod,
    HOROVOD_FP16: drive_horovod,
}


def _tell(variables: Variables) -> None:
    sys.stdout.write(json.dumps(variables) + "\n")
    sys.stdout.flush()
    sys.stdin.read()


def main(text: str) -> None:
    """Runs one."""
    values = json.loads(text)
    job = Driven(**{**values, "workers": tuple(values["workers"])})
    DRIVERS[job.way](job)


if __name__ == "__main__":
    main(sys.argv[1])
