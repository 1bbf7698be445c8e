"""What a Spark application's master URL and settings say of where its tasks run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from keras_strom import errors

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


def context_of(session: SparkSession) -> SparkContext:
    """The session's SparkContext.

    Raises:
        InvalidOption: it has none, as Spark Connect's sessions.
    """
    try:
        return session.sparkContext
    except Exception as error:  # Its class depends on the version.
        raise errors.InvalidOption(
            f"spark={session!r} has no SparkContext: a Spark Connect session cannot run workers. "
            "Run this program on the cluster with spark-submit, or make the session with "
            "SparkSession.builder.master(...) and without SPARK_REMOTE"
        ) from error


def is_connect(session: SparkSession) -> bool:
    """Whether its SparkContext is out of reach, as that of Spark Connect's sessions."""
    try:
        context_of(session)
    except errors.InvalidOption:
        return True
    return False


def is_local(context: SparkContext) -> bool:
    """Whether its tasks run in the driver's own process, as threads."""
    return str(context.master).partition("[")[0] == "local"


def is_one_machine(master: str | None) -> bool:
    """Whether driver and executors are on one machine, as the Spark master's URL says."""
    return re.match(r"local(\[|-cluster\[|$)", master or "") is not None


def is_on(context: SparkContext, name: str) -> bool:
    """Whether a setting is "true"; one that is not set is not."""
    return (context.getConf().get(name, "false") or "").lower() == "true"
