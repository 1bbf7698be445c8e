"""What a Spark application's master URL and settings say of where its tasks run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext


def is_local(context: SparkContext) -> bool:
    """Whether its tasks run in the driver's own process, as threads."""
    return str(context.master).partition("[")[0] == "local"


def is_one_machine(master: str | None) -> bool:
    """Whether driver and executors are on one machine, as the Spark master's URL says."""
    return re.match(r"local(\[|-cluster\[|$)", master or "") is not None


def is_on(context: SparkContext, name: str) -> bool:
    """Whether a setting is "true"; one that is not set is not."""
    return (context.getConf().get(name, "false") or "").lower() == "true"
