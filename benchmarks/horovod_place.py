"""Where the jobs of `make bench-horovod` run: nodes with a line between them, or this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence

from benchmarks import namespaces, report
from benchmarks.horovod_job import THREADS, Job
from benchmarks.horovod_training import (
    ALONE,
    HOROVOD,
    MIRRORED,
    STROM,
    Traffic,
    Trained,
    Training,
)
from benchmarks.processes import last_line, stop, wait_for
from benchmarks.spark_cluster import SparkCluster

WORKERS = 2
#: Made by .ci/horovod/set-up.
ENVIRONMENT = report.ROOT / "build" / "horovod"

_JOB_SECONDS = 600.0
_MIRRORED_PORT = 40300


@dataclasses.dataclass(frozen=True)
class Place:
    """Nodes: 0 is for a job's driver, 1 and up are for its workers.

    Attributes:
        inside: what a command line on a node starts with.
        address: a node's.
        interface: a node's, to the others.
        master: Spark's.
        traffic: what counts the bytes that the nodes send.
    """

    inside: Callable[[int], Sequence[str]]
    address: Callable[[int], str]
    interface: str
    master: str
    traffic: Traffic

    @classmethod
    def loopback(cls) -> Place:
        """All on this machine; whatever else uses its loopback is counted too."""
        master = f"local-cluster[{WORKERS},1,1024]"
        return cls(lambda _: (), lambda _: "127.0.0.1", "lo", master, Traffic())

    @classmethod
    def network(cls, network: namespaces.Network, cluster: SparkCluster) -> Place:
        """Each node in a namespace of its own."""
        traffic = Traffic(tuple(network.counts()), "port")
        return cls(network.inside, network.address, "line", cluster.master, traffic)

    def run(self, way: str, training: Training) -> Trained:
        """One job from start to end.

        Raises:
            RuntimeError: a process of it failed, or took too long; its last words follow.
        """
        job = Job(
            way,
            dataclasses.replace(training, traffic=self.traffic),
            workers=WORKERS,
            master=self.master,
            address=self.address(0),
            interface=self.interface,
        )
        if way in (STROM, HOROVOD):
            return self._run(job, {0: {"SPARK_LOCAL_IP": self.address(0)}})
        if way == MIRRORED:
            return self._run(job, {1 + rank: self._tf_config(rank) for rank in range(WORKERS)})
        return self._run(job, {1: {}})

    def _tf_config(self, rank: int) -> dict[str, str]:
        workers = [f"{self.address(1 + r)}:{_MIRRORED_PORT + r}" for r in range(WORKERS)]
        task = {"type": "worker", "index": rank}
        return {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task})}

    def _run(self, job: Job, processes: Mapping[int, Mapping[str, str]]) -> Trained:
        """Runs a process on each of these nodes, with variables; the slowest one's outcome."""
        own = job.way in (STROM, ALONE)
        python = sys.executable if own else str(ENVIRONMENT / "bin" / "python")
        common = {
            **os.environ,
            **THREADS,
            "PYTHONPATH": str(report.ROOT),
            "PYSPARK_PYTHON": python,
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TF_USE_LEGACY_KERAS": "0" if own else "1",
        }
        command = [python, "-m", "benchmarks.horovod_job", job.to_json()]
        with contextlib.ExitStack() as stack:
            running = []
            for node, variables in processes.items():
                log = stack.enter_context(tempfile.TemporaryFile("w+"))
                process = subprocess.Popen(
                    [*self.inside(node), *command],
                    env={**common, **variables},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
                stack.callback(stop, process)
                running.append((process, log))
            wait_for(job.way, running, _JOB_SECONDS)
            return Trained.slowest(Trained.from_json(last_line(job.way, log)) for _, log in running)
