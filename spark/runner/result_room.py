"""How much workers may return: what Spark can carry through the memory of its Java processes.

Where a driver has no memory left for a result, Spark logs that and waits for the result without an
end; an executor is lost.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from .application import is_local

if TYPE_CHECKING:
    from pyspark import SparkContext

_MIB = 1 << 20
# Of its heap Spark itself takes so much, and of the rest a result several times its size, as pieces
# and in one piece: with a heap of 1 GiB 200 MiB pass, 250 do not.
_RESERVED = 300 * _MIB
_COPIES = 3
_ANY = 1 << 62
_LIMIT = "spark.driver.maxResultSize"


@dataclasses.dataclass(frozen=True)
class ResultRoom:
    """What there is room for, in bytes.

    Attributes:
        executor: for the result of one worker; of those that run in the driver it takes any.
        driver: for the results of all.
        limit: that Spark is told to keep to for all.
    """

    executor: int
    driver: int
    limit: int

    @classmethod
    def of(cls, context: SparkContext) -> ResultRoom:
        """As the application's memory is."""
        jvm, conf = context._jvm, context.getConf()
        assert jvm is not None
        heap = int(jvm.java.lang.Runtime.getRuntime().maxMemory())
        executors = _ANY if is_local(context) else _room(context._jsc.sc().executorMemory() * _MIB)
        bytes_of = jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes
        limit = int(bytes_of(conf.get(_LIMIT) or "1g"))
        return cls(executors, _room(heap), limit or _ANY)

    def takes(self, size: int) -> bool:
        """Whether a task can hand over a result of so many bytes."""
        return size <= min(self.executor, self.driver, self.limit)

    def fault(self, size: int, total: int) -> str:
        """Why a result cannot be had, in words that follow "worker 1"; "" = it can.

        Args:
            size: of this result.
            total: of it and all others that there are.
        """
        setting, carries, found = "spark.executor.memory", self.executor, size
        if size <= carries:
            setting, carries, found = "spark.driver.memory", self.driver, total
            if self.limit < self.driver:
                setting, carries = _LIMIT, self.limit
            if total <= carries:
                return ""
        whole = "" if found == size else f", with the others' results {_mib(total)}"
        return (
            f"has returned {_mib(size)}{whole}, and {setting} has room for {_mib(carries)}: let "
            "one worker alone return it, or write it to a folder that the driver sees and return "
            f"the path (an Estimator does so with store=), or raise {setting}"
        )


def _room(heap: int) -> int:
    return max(heap - _RESERVED, heap // 4) // _COPIES


def _mib(size: int) -> str:
    return f"{size / _MIB:.0f} MiB"
