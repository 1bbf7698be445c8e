"""Variables that Spark shares with its own tasks alone: broadcasts and accumulators.

Workers are processes of their own, in which a broadcast has no value, and what is added to an
accumulator goes nowhere. So what is sent to them is looked at in the driver.
"""

from __future__ import annotations

import re

from keras_strom import errors

# The functions that make them again, as they stand in a pickle (behind their lengths), and where
# they are; between the two there may be anything, as a pickle names a module once.
_BROADCAST = b"\x08_from_id"
_MODULE = re.compile(rb"pyspark(?:\.core)?\.broadcast")
_ACCUMULATOR = b"\x18_deserialize_accumulator"


def refuse_spark_variables(what: str, pickled: bytes) -> None:
    """Refuses what workers could not use, and could not even know that they cannot.

    Args:
        what: is pickled there, in words.
        pickled: by cloudpickle.

    Raises:
        InvalidOption: a broadcast or an accumulator is among it.
    """
    if _BROADCAST in pickled and _MODULE.search(pickled):
        raise errors.InvalidOption(
            f"{what} use a broadcast variable of Spark, which only Spark's own tasks can read: "
            "give the value itself (b.value), which travels to each worker, or a file's path"
        )
    if _ACCUMULATOR in pickled:
        raise errors.InvalidOption(
            f"{what} use an accumulator of Spark, to which only Spark's own tasks can add: let the "
            "function return what it has counted, or log it as a metric"
        )
