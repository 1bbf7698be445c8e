"""Spark's embedded cluster, on which the examples run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start_spark(
    name: str, executors: int, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A driver here, and executors of one core in processes of their own."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = (
        SparkSession.builder.master(f"local-cluster[{executors},1,1024]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    for setting, value in (settings or {}).items():
        builder = builder.config(setting, value)
    return builder.getOrCreate()
