"""A real job for `bench-parity`: the MLP under StromStrategy, a process a worker, over UDP."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import keras

from benchmarks.parity_tasks import TASKS, Sharing
from keras_strom.job.network import NetworkConfig
from keras_strom.runner.launcher import Job, launch
from keras_strom.runner.work import Function
from keras_strom.strategy.strategy import StromStrategy

TASK = TASKS["mlp"]


@dataclasses.dataclass(frozen=True)
class JobOutcome:
    """What a job has learned, and what it has sent.

    Attributes:
        accuracy: on the test data, in percent.
        density: entries over elements, mean over the workers.
        coded: float32 bytes over message bytes.
        wire_bytes: what left the workers' sockets, and the master's, which relays.
        dense_bytes: what a ring all-reduce of float32 would have sent.
    """

    accuracy: float
    density: float
    coded: float
    wire_bytes: float
    dense_bytes: float


def run(workers: int, share: float = 1.0) -> JobOutcome:
    """Trains on as many examples as `parity_cluster.train` does.

    Raises:
        WorkerFailed: a worker failed; its traceback is in the error.
    """
    network = NetworkConfig(same_host=False)
    outcomes = launch(Job(work=Function.of(_train, share), workers=workers, network=network))
    results = [pickle.loads(outcome.result or b"") for outcome in outcomes]
    reports = [result["report"] for result in results]
    steps = reports[0].steps
    elements = reports[0].parameters
    density = sum(each.density for each in reports) / workers
    messages = sum(each.message_bytes for each in reports)
    return JobOutcome(
        accuracy=100 * results[0]["accuracy"],
        density=density,
        coded=4 * elements * sum(each.steps for each in reports) / messages,
        # What the master sends is what the workers receive.
        wire_bytes=sum(each.bytes_sent + each.bytes_received for each in reports),
        dense_bytes=workers * steps * 4 * elements * 2 * (workers - 1) / workers,
    )


def _train(share: float) -> dict[str, Any]:
    keras.utils.set_random_seed(0)
    data = TASK.load()
    strategy = StromStrategy(**Sharing().options())
    with strategy.scope():
        model = TASK.build()
        model.compile(
            keras.optimizers.Adam(TASK.learning_rate),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    epochs = max(1, round(share * TASK.examples / len(data.x)))
    model.fit(data.x, data.y, batch_size=TASK.batch, epochs=epochs, verbose=0)
    _, accuracy = model.evaluate(data.x_test, data.y_test, batch_size=1000, verbose=0)
    return {"accuracy": float(accuracy), "report": strategy.last_report}
