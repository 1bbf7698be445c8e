"""The GPUs of a worker: those that Spark has given its task, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from keras_strom import errors
from keras_strom.job import environment
from keras_strom.job.environment import NEEDS_GPU
from keras_strom.job.gpus import VISIBLE

if TYPE_CHECKING:
    from pyspark import SparkContext

UseGpu = bool | Literal["auto"]

_TASK_GPUS = "spark.task.resource.gpu.amount"


def check_use_gpu(use_gpu: object) -> None:
    """Refuses what is none of True, False and "auto"."""
    if use_gpu != "auto" and not isinstance(use_gpu, bool):
        raise errors.InvalidOption(f'use_gpu={use_gpu!r} must be True, False or "auto"')


def check_gpus(context: SparkContext, use_gpu: UseGpu) -> None:
    """Refuses `use_gpu=True` for an application whose tasks get no GPU."""
    if use_gpu is True and not float(context.getConf().get(_TASK_GPUS) or 0) > 0:
        raise errors.InvalidOption(
            f"use_gpu=True, but Spark gives its tasks no GPU: start the application with "
            f"{_TASK_GPUS}, spark.executor.resource.gpu.amount and "
            "spark.executor.resource.gpu.discoveryScript"
        )


def hide_gpus() -> None:
    """In a Python worker of Spark: keeps TensorFlow, which may be imported, off all GPUs.

    Raises:
        InvalidOption: it has begun to use them, and cannot leave them any more.
    """
    environment.add(gpu_variables(False))
    import tensorflow as tf

    try:
        tf.config.set_visible_devices([], "GPU")  # Those that it has listed already.
    except RuntimeError as error:
        raise errors.InvalidOption(
            "use_gpu=False, but this Python worker of Spark has used its GPUs in an earlier "
            "training or transform: begin a new session, or set spark.python.worker.reuse=false"
        ) from error


def shares_gpu(context: SparkContext) -> bool:
    """Whether several tasks of an application get the same GPU, each a fraction of it."""
    return 0 < float(context.getConf().get(_TASK_GPUS) or 0) < 1


def gpu_variables(use_gpu: UseGpu) -> Mapping[str, str]:
    """In a task: the variables by which its worker sees the GPUs that it may use.

    Args:
        use_gpu: True = the task's; False = none; "auto" = the task's where Spark gives it any, or
            whatever the machine has.
    """
    if use_gpu is False:
        return {VISIBLE: "-1", NEEDS_GPU: "0"}  # Whatever the executor's own variables want.
    from pyspark import TaskContext

    context = TaskContext.get()
    given = None if context is None else context.resources().get("gpu")
    return {} if given is None else {VISIBLE: ",".join(given.addresses)}
