"""At most so many workers on a machine: each task asks for enough of its executor's cores."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from keras_strom import errors

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.resource import ResourceProfile

_TASK_CPUS = "spark.task.cpus"
_TASK_GPUS = "spark.task.resource.gpu.amount"


def placed(context: SparkContext, workers_per_node: int) -> ResourceProfile | None:
    """What the job's tasks must ask for so that no machine runs more than `workers_per_node`.

    Args:
        context: an application on a cluster, whose executors have come.
        workers_per_node: 1 or more.

    Returns:
        Their resources; None where the application's own are enough.

    Raises:
        InvalidOption: a machine has more executors than it may have workers, or nobody can tell how
            many cores an executor has.
    """
    executors, cores = _executors(context)
    tasks = workers_per_node // executors
    if tasks == 0:
        raise errors.InvalidOption(
            f"workers_per_node={workers_per_node}, but {executors} executors run on one machine, "
            "and each gets a worker at least: give one executor all its cores "
            "(spark.executor.cores)"
        )
    cpus = cores // (tasks + 1) + 1  # The fewest with which no other task fits beside them.
    if cpus <= int(context.getConf().get(_TASK_CPUS) or 1):
        return None
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    requests = TaskResourceRequests().cpus(cpus)
    gpus = float(context.getConf().get(_TASK_GPUS) or 0)
    if gpus:
        requests.resource("gpu", gpus)
    return ResourceProfileBuilder().require(requests).build


def _executors(context: SparkContext) -> tuple[int, int]:
    """The most executors on one machine, and the most cores of an executor."""
    found = context._jsc.sc().statusStore().executorList(True)
    executors: list[Any] = [found.apply(i) for i in range(found.size())]
    executors = [one for one in executors if one.id() != "driver"]
    if executors:
        hosts = Counter(str(one.hostPort()).rpartition(":")[0] for one in executors)
        return max(hosts.values()), max(int(one.totalCores()) for one in executors)
    cores = context.getConf().get("spark.executor.cores")
    if cores is None:
        raise errors.InvalidOption(
            "workers_per_node needs executors that have come, or spark.executor.cores, to know how "
            "many cores an executor has"
        )
    return 1, int(cores)
