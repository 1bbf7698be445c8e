"""Parameter averaging without Spark: the driver, and its tasks, in this process."""

from __future__ import annotations

import dataclasses
import functools
import types
from typing import Any

from keras_strom.spark import ParameterAveraging
from keras_strom.spark.data.exported import ExportedData
from keras_strom.spark.inference.serialization import PackedModel
from keras_strom.spark.runner.resources import UseGpu
from keras_strom.spark.runner.slots import Size
from keras_strom.spark.runner.timeline import Recorder
from keras_strom.spark.training.method import TrainingJob
from keras_strom.spark.training.worker_training import Code, Trained, TrainingPlan


class OneProcess:
    """Stands for a SparkContext: tasks run here, one after the other, and in no fixed order."""

    _jsc = True  # It has not been stopped.

    def __init__(self, values: Any = ()) -> None:
        self._values = list(values)

    def broadcast(self, value: Any) -> Any:
        return types.SimpleNamespace(value=value, destroy=lambda: None)

    def parallelize(self, values: Any, _: int) -> OneProcess:
        return OneProcess(values)

    def map(self, work: Any) -> OneProcess:
        return OneProcess(map(work, reversed(self._values)))

    def first(self) -> Any:
        return self._values[0]

    def treeAggregate(self, zero: Any, one: Any, other: Any, depth: int) -> Any:  # noqa: N802
        assert one is other
        return functools.reduce(other, self._values, zero)


def plan_of(data: ExportedData, model: PackedModel, **others: Any) -> TrainingPlan:
    """One epoch in batches of 8, which writes nothing; `others` are fields with other values."""
    plan = TrainingPlan(
        model=model,
        code=Code().pickled(),
        data=data,
        batch_size=8,
        val_batch_size=8,
        epochs=1,
        train_steps_per_epoch=None,
        validation_steps_per_epoch=None,
        shuffle=False,
        seed=1,
        verbose=0,
        run=None,
    )
    return dataclasses.replace(plan, **others)


def train_here(
    plan: TrainingPlan,
    method: ParameterAveraging,
    workers: int = 2,
    *,
    use_gpu: UseGpu = "auto",
) -> Trained:
    """What a training by averaging leaves."""
    job = TrainingJob(
        plan=plan,
        size=Size(workers=workers),
        spark=types.SimpleNamespace(sparkContext=OneProcess()),
        network=None,
        max_failures=None,
        start_timeout=600.0,
        rows=None,
        recorder=Recorder(),
        use_gpu=use_gpu,
    )
    return method.train(job)
