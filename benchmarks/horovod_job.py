"""One job of `make bench-horovod`, as a program: `python -m benchmarks.horovod_job JSON`.

For keras-strom and Horovod it is the driver of a Spark job, for the others it is a worker. The last
line that it prints and that begins with a brace is the outcome, as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from contextlib import AbstractContextManager
from typing import Any

from benchmarks.horovod_training import HOROVOD, STROM, WAYS, Traffic, Trained, Training
from benchmarks.spark_cluster import spark_session

#: A Spark task has one core, so a worker computes with one thread, whatever starts it.
THREADS = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}


@dataclasses.dataclass(frozen=True)
class Job:
    """What one process is told.

    Attributes:
        way: one of `WAYS`.
        training: what each worker does.
        workers: how many.
        master: Spark's, for a driver.
        address: of this node, for a driver.
        interface: of the workers' machines that lead to each other.
    """

    way: str
    training: Training
    workers: int = 2
    master: str = "local-cluster[2,1,1024]"
    address: str = "127.0.0.1"
    interface: str = "lo"

    def to_json(self) -> str:
        """The program's argument."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Reads `to_json`'s text."""
        values = json.loads(text)
        training = values.pop("training")
        traffic = training.pop("traffic")
        counted = Traffic(tuple(traffic["command"]), traffic["interfaces"])
        return cls(training=Training(**training, traffic=counted), **values)

    def run(self) -> Trained:
        """Trains; returns the slowest worker's outcome, or this process's."""
        if self.way == STROM:
            return run_strom(self)
        if self.way == HOROVOD:
            return run_horovod(self)
        return WAYS[self.way](self.training)


def run_strom(job: Job) -> Trained:
    """Through `keras_strom.spark.run`."""
    import keras_strom
    import keras_strom.spark

    # Workers of one machine would use shared memory; what is compared here is a network.
    network = keras_strom.NetworkConfig(same_host=False)
    with _session(job) as session:
        results = keras_strom.spark.run(
            WAYS[STROM],
            (job.training,),
            num_proc=job.workers,
            network=network,
            env=THREADS,
            verbose=0,
            spark=session,
        )
    return Trained.slowest(results)


def run_horovod(job: Job) -> Trained:
    """Through `horovod.spark.run`."""
    import horovod.spark

    with _session(job):
        results = horovod.spark.run(
            WAYS[HOROVOD],
            (job.training,),
            num_proc=job.workers,
            use_gloo=True,
            nics={job.interface},
            env={**os.environ, **THREADS},
            verbose=0,
        )
    return Trained.slowest(results)


def _session(job: Job) -> AbstractContextManager[Any]:
    keras = {"spark.executorEnv.TF_USE_LEGACY_KERAS": os.environ.get("TF_USE_LEGACY_KERAS", "0")}
    return spark_session(f"bench-horovod: {job.way}", job.master, job.address, keras)


def main(text: str) -> None:
    """Runs the job."""
    outcome = Job.from_json(text).run()
    sys.stdout.write(outcome.to_json() + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
