"""Variables that Spark shares with its own tasks alone: broadcasts and accumulators.

Workers are processes of their own, in which a broadcast has no value, and what is added to an
accumulator goes nowhere. So what is sent to them is looked at in the driver.
"""

from __future__ import annotations

import re

from keras_strom import errors

# How the pickles of both begin: a module, and the function in it that makes them again.
_BROADCAST = re.compile(rb"pyspark(?:\.core)?\.broadcast.{1,8}_from_id", re.DOTALL)
_ACCUMULATOR = re.compile(
    rb"pyspark(?:\.core)?\.accumulators.{1,8}_deserialize_accumulator", re.DOTALL
)


def refuse_spark_variables(what: str, pickled: bytes) -> None:
    """Refuses what workers could not use, and could not even know that they cannot.

    Args:
        what: is pickled there, in words.
        pickled: by cloudpickle.

    Raises:
        InvalidOption: a broadcast or an accumulator is among it.
    """
    if _BROADCAST.search(pickled):
        raise errors.InvalidOption(
            f"{what} use a broadcast variable of Spark, which only Spark's own tasks can read: "
            "give the value itself (b.value), which travels to each worker, or a file's path"
        )
    if _ACCUMULATOR.search(pickled):
        raise errors.InvalidOption(
            f"{what} use an accumulator of Spark, to which only Spark's own tasks can add: let the "
            "function return what it has counted, or log it as a metric"
        )
