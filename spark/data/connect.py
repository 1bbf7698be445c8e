"""What Spark Connect's sessions lack: their application's SparkContext, and DataFrames with an RDD.

Both are there where the application's driver is this process. A session that a client has made with
a server elsewhere can predict, and train nothing.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from keras_strom import errors

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession


def context_of(session: SparkSession) -> SparkContext:
    """The SparkContext of the session's application.

    A session of Spark Connect has none, but where its server is in this process (it is
    made with `spark.api.mode=connect`, or with `remote("local")`) the application's is here.

    Raises:
        InvalidOption: it is another process's, or has been stopped.
    """
    context = _own_context(session) or _context_here(session)
    if is_stopped(session):
        raise errors.InvalidOption(
            f"spark={session!r} has been stopped: make a new one (SparkSession.builder."
            "getOrCreate()), and its DataFrames anew"
        )
    if context is None:
        raise errors.InvalidOption(
            f"spark={session!r} has no SparkContext in this process: a Spark Connect session "
            "cannot run workers or save stages from elsewhere. Run this program on the cluster "
            "with spark-submit, or make the session with SparkSession.builder.master(...) and "
            "without SPARK_REMOTE"
        )
    return context


def is_stopped(session: SparkSession) -> bool:
    """Whether it is a session of this process's own that has ended."""
    context = _own_context(session)
    return context is not None and context._jsc is None


def is_connect(session: SparkSession) -> bool:
    """Whether it is one of Spark Connect: what it does travels as a plan."""
    return _own_context(session) is None


def classic(df: DataFrame) -> DataFrame:
    """The same rows as a DataFrame that has an RDD; a classic one as it is.

    Args:
        df: of a session whose context is here (`context_of`).
    """
    if not is_connect(df.sparkSession):
        return df
    from pyspark.sql import SparkSession

    session = SparkSession(context_of(df.sparkSession))
    # Global views are the sessions' common ground; the plan is made at once.
    view = f"keras_strom_{uuid.uuid4().hex}"
    df.createGlobalTempView(view)
    try:
        return session.table(f"global_temp.{view}")
    finally:
        session.catalog.dropGlobalTempView(view)


def _own_context(session: SparkSession) -> SparkContext | None:
    try:
        return session.sparkContext
    except Exception:  # Its class depends on the version.
        return None


def _context_here(session: SparkSession) -> SparkContext | None:
    """This process's, if it is that of the application of a session of Spark Connect."""
    from pyspark import SparkContext

    here = SparkContext._active_spark_context
    same = here is not None and session.conf.get("spark.app.id", None) == here.applicationId
    return here if same else None
