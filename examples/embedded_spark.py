"""Spark's embedded cluster, on which the examples run."""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start_spark(
    name: str,
    executors: int,
    settings: Mapping[str, str] | None = None,
    log: pathlib.Path | None = None,
) -> SparkSession:
    """A driver here, and executors of one core in processes of their own.

    Args:
        name: of the application.
        executors: how many.
        settings: of Spark, besides those that make the cluster.
        log: the file for what Spark's Java process has to say; None = the screen.

    Raises:
        RuntimeError: that process has not started, and why.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    options = {
        "spark.master": f"local-cluster[{executors},1,1024]",
        "spark.app.name": name,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **(settings or {}),
    }
    if log is not None:
        SparkContext(conf=SparkConf().setAll(list(options.items())), gateway=_start_java(log))
    return SparkSession.builder.config(map=options).getOrCreate()


def _start_java(log: pathlib.Path) -> Any:
    from pyspark.java_gateway import launch_gateway

    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        try:
            return launch_gateway(popen_kwargs={"stdout": file, "stderr": file})
        except Exception as error:
            said = log.read_text().strip()
            raise RuntimeError(f"Spark's Java process did not start:\n{said}") from error
