"""The Spark job of a StromTrainer: a session, a look at the artifacts from its executors, workers.

A session that is active in the pipeline's process is used there. A new one is started in a process
of its own: a pipeline's metadata store leaves gRPC's threads behind, and the fork with which
pyspark starts its JVM is not safe beside them: now and then the JVM dies at once.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from keras_strom import errors
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.runner.console import Console
from keras_strom.runner.process import WorkerListener, WorkerProcess
from keras_strom.runner.work import Function
from keras_strom.tfx.options import StromOptions
from keras_strom.tfx.training import train


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparkJob:
    """What the driver needs to know.

    Attributes:
        options: `strom`'s.
        training: `Training.to_json`'s text.
        inputs: files and folders that workers read.
        outputs: folders that the chief writes to.
    """

    options: StromOptions
    training: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def run(self) -> None:
        """Trains, here or in a process of its own.

        Raises:
            StromError: what `drive` raises.
        """
        if _has_session():
            drive(self)
            return
        with WorkerProcess(Function.of(_drive_apart, self), ClusterEnvironment(), _Echo()) as apart:
            outcome = apart.wait()
        if outcome.failed:
            raise errors.StromError(f"StromTrainer's Spark driver failed:\n{outcome.traceback}")
        error: errors.StromError | None = pickle.loads(outcome.result or b"")
        if error is not None:
            raise error


def drive(job: SparkJob) -> None:
    """Trains on Spark.

    Raises:
        Unreachable: no Spark, or executors that do not see the artifacts.
        NotEnoughSlots: fewer task slots than workers.
        WorkerFailed: the first failure of a worker, or the chief was lost and did not come back.
    """
    from keras_strom import spark
    from keras_strom.spark.runner.session import spark_session
    from keras_strom.spark.runner.visibility import check_visible

    options = job.options
    with spark_session(options.master, options.spark_config, "StromTrainer") as session:
        size = options.wanted_size().choose(session.sparkContext, options.start_timeout)
        with _marked(job.outputs) as marks:
            check_visible(session, [*job.inputs, *marks], job.outputs, size.workers)
        result = spark.run(
            train,
            (job.training,),
            **size.for_run(),
            workers_per_node=options.workers_per_node,
            network=options.network_config(),
            start_timeout=options.start_timeout,
            max_failures=options.max_failures,
            drain_seconds=options.drain_seconds,
            env=options.env,
            use_gpu=options.use_gpu,
            spark=session,
        )
    check_chief(result.metrics["ranks"])


def check_chief(ranks: Sequence[int]) -> None:
    """Refuses an elastic training at whose end the chief was away: only it writes a model.

    Args:
        ranks: of the workers that were there at the end.
    """
    if 0 not in ranks:
        raise errors.WorkerFailed(
            0,
            "an executor that was lost",
            f"workers {', '.join(map(str, ranks))} have trained to the end without it, and it is "
            "the chief, which writes the model: run the pipeline again",
        )


def _drive_apart(job: SparkJob) -> errors.StromError | None:
    """`drive` in a child process; an error is its result, as only results keep their class."""
    try:
        drive(job)
    except errors.StromError as error:
        return error
    return None


def _has_session() -> bool:
    if "pyspark" not in sys.modules:  # Then there is none, and no need to load pyspark here.
        return False
    from keras_strom.spark.runner.session import active_session

    return active_session() is not None


class _Echo(WorkerListener):
    """Shows the driver's output as it is: lines of workers have their rank already."""

    def __init__(self) -> None:
        self._console = Console(1)

    def line(self, text: str) -> None:
        self._console.line(0, text)


@contextmanager
def _marked(folders: Sequence[str]) -> Iterator[list[str]]:
    """A new file in each folder: a task that sees it looks at the same folder."""
    from tfx.dsl.io import fileio

    name = f".keras-strom-{uuid.uuid4().hex}"
    marks = [os.path.join(folder, name) for folder in folders]
    try:
        for folder, mark in zip(folders, marks, strict=True):
            fileio.makedirs(folder)
            with fileio.open(mark, "w") as file:
                file.write("")
        yield marks
    finally:
        for mark in marks:
            if fileio.exists(mark):
                fileio.remove(mark)
