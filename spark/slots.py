"""How many tasks a Spark application can run at the same time."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from keras_strom import errors

if TYPE_CHECKING:
    from pyspark import SparkContext

_POLL_SECONDS = 0.2
# Executors that an application has asked for at its start have come by then, or are coming.
_STARTING_SECONDS = 15.0
_GROWING_SECONDS = 4.0


def choose_workers(context: SparkContext, wanted: int | None, timeout: float) -> int:
    """The number of workers: `wanted`, checked, or every slot there is.

    In the first seconds of an application executors may still be coming, and are waited for.

    Args:
        context: the application.
        wanted: None = as many as there are slots.
        timeout: seconds to wait for executors at most.

    Raises:
        NotEnoughSlots: fewer slots than workers; the message names the setting to raise.
    """
    if wanted is not None and _is_dynamic(context):
        return wanted  # Executors come when tasks wait for them; start_timeout is the limit.
    slots = 0
    deadline = time.monotonic() + timeout
    settled = time.monotonic() + max(0.0, _STARTING_SECONDS - _age_seconds(context))
    while True:
        now, found = time.monotonic(), count_slots(context)
        if wanted is not None and found >= wanted:
            return wanted
        if found > slots:
            slots, settled = found, max(settled, now if slots == 0 else now + _GROWING_SECONDS)
        settling = now < settled or slots < _promised(context)
        if _is_local(context) or (slots and not settling) or now >= deadline:
            break
        time.sleep(_POLL_SECONDS)
    if wanted is None and slots > 0:
        return slots
    raise errors.NotEnoughSlots(
        f"{wanted or 1} workers need as many slots, and {context.master} has {slots}: "
        f"{_remedy(context, wanted or 1)}, or choose num_proc={slots}"
        if slots
        else f"{context.master} has no executor after {timeout:g} s"
    )


def count_slots(context: SparkContext) -> int:
    """Tasks that the executors registered so far can run at once."""
    scala = context._jsc.sc()
    profile = scala.resourceProfileManager().defaultResourceProfile()
    return int(scala.maxNumConcurrentTasks(profile))


def _age_seconds(context: SparkContext) -> float:
    return time.time() - float(context.startTime) / 1000


def _is_local(context: SparkContext) -> bool:
    return str(context.master).partition("[")[0] == "local"


def _promised(context: SparkContext) -> int:
    """The slots that an embedded cluster is going to have; 0 where that is not known."""
    cluster = re.match(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)", str(context.master))
    return int(cluster[1]) * int(cluster[2]) if cluster else 0


def _is_dynamic(context: SparkContext) -> bool:
    enabled = context.getConf().get("spark.dynamicAllocation.enabled", "false")
    return (enabled or "").lower() == "true"


def _remedy(context: SparkContext, workers: int) -> str:
    if _is_local(context):
        return f'start Spark with master "local[{workers}]"'
    if str(context.master).startswith("local-cluster["):
        return f'start Spark with master "local-cluster[{workers},1,1024]"'
    return (
        "raise spark.executor.instances or spark.executor.cores (slots = instances x cores / "
        "spark.task.cpus)"
    )
