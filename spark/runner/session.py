"""A Spark session for one piece of work: the process's own, or one that is started and ended."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from keras_strom import errors
from keras_strom.job import environment

from ..data.connect import context_of, is_stopped
from .application import is_one_machine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONNECT_SECONDS = 10.0
_STANDALONE_PORT = 7077
_AS_CONFIGURED = "Spark as it is configured here"
# Spark's word for a Java that is not there, or too old: its process has ended.
_NO_JAVA = "JAVA_GATEWAY_EXITED"
# What pyspark starts workers with unless PYSPARK_PYTHON says otherwise.
_DEFAULT_PYTHON = "python3"


@contextlib.contextmanager
def spark_session(
    master: str | None = None, config: Mapping[str, str] | None = None, name: str = "keras-strom"
) -> Iterator[SparkSession]:
    """The session to work with; one that is started here is stopped at the end.

    Args:
        master: the Spark master's URL; None = the active session, or a new one as configured
            outside.
        config: Spark settings of a new session.
        name: a new application's name.

    Raises:
        InvalidOption: a session is active already and `master` or `config` asks for another, or
            it is one of Spark Connect.
        Unreachable: Spark cannot be started, or no Spark master answers there.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise errors.Unreachable(
            "pyspark is not installed here: pip install 'keras-strom[spark]'"
        ) from error
    active = active_session()
    if active is not None:
        _check_fits(active, master, config or {})
        yield active
        return
    _check_answers(master)
    builder = SparkSession.builder.appName(name)
    for key, value in {**_local_settings(master), **(config or {})}.items():
        builder = builder.config(key, value)
    if master is not None:
        builder = builder.master(master)
    where = f"Spark with master {master}" if master else _AS_CONFIGURED
    session = _started(builder, where)
    try:
        context = session.sparkContext
        if is_one_machine(context.master) and context.pythonExec == _DEFAULT_PYTHON:
            context.pythonExec = sys.executable
        yield session
    finally:
        session.stop()


def active_or_new() -> SparkSession:
    """The process's running session, or a new one as configured outside.

    Raises:
        InvalidOption: this process is no driver, but a worker or a task of Spark.
        Unreachable: Spark cannot be started.
    """
    from pyspark import SparkContext, TaskContext
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    is_first = SparkContext._active_spark_context is None  # Else it is of another thread.
    if is_first and (environment.is_worker() or TaskContext.get() is not None):
        where = "a worker" if environment.is_worker() else "a task of Spark"
        raise errors.InvalidOption(
            f"{where} has no Spark session, and each would start a Spark of its own: call run, or "
            "an Estimator's fit_on_parquet, in the driver; the function that it is given trains"
        )
    return _started(SparkSession.builder, _AS_CONFIGURED)


def _started(builder: SparkSession.Builder, where: str) -> SparkSession:
    try:
        return builder.getOrCreate()
    except Exception as error:  # Py4J's, pyspark's or Python's own, depending on what is missing.
        words = (str(error).strip() or type(error).__name__).splitlines()[0]
        if _NO_JAVA in words:
            words += " Install Java 17 or later here, on the PATH or where JAVA_HOME says."
        raise errors.Unreachable(f"{where} cannot be started: {words}") from error


def active_session() -> SparkSession | None:
    """The process's running session, if there is one."""
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is None or is_stopped(active):
        return None
    context_of(active)  # Refuses one of an application elsewhere.
    return active


def _check_fits(active: SparkSession, master: str | None, config: Mapping[str, str]) -> None:
    context = context_of(active)
    if master is not None and context.master != master:
        raise errors.InvalidOption(
            f"master={master!r}, but a Spark session with master {context.master} is active in "
            "this process: leave master out to use it, or stop it first"
        )
    given = context.getConf()
    differing = [key for key, value in config.items() if given.get(key) != value]
    if differing:
        raise errors.InvalidOption(
            f"spark_config: the Spark session that is active in this process has other values of "
            f"{', '.join(sorted(differing))}; set them where it is made, or stop it first"
        )


def _check_answers(master: str | None) -> None:
    """Asks a standalone Spark master's port first: Spark tries for a minute, then says little."""
    if master is None or not master.startswith("spark://"):
        return
    last: OSError | None = None
    for place in master[len("spark://") :].split(","):
        host, _, port = place.rpartition(":") if ":" in place else (place, "", "")
        if port and not port.isdigit():
            raise errors.InvalidOption(f"master={master!r}: {port!r} is no port")
        try:
            with socket.create_connection(
                (host.strip("[]"), int(port or _STANDALONE_PORT)), _CONNECT_SECONDS
            ):
                return
        except OSError as error:
            last = error
    raise errors.Unreachable(
        f"no Spark master answers at {master}: {last}; is it running, and is this TCP port open?"
    )


def _local_settings(master: str | None) -> dict[str, str]:
    """On one machine nobody else need reach the driver."""
    if not is_one_machine(master):
        return {}
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
