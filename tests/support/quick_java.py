"""The settings of every JVM that the tests start, with which Spark starts in half of the time.

Spark's classes, some ten thousand, are most of a JVM's start. It maps them from an archive where
there is one (class data sharing), instead of reading and checking them anew. Such an archive is of
one Java and one pyspark:

    python -m tests.support.quick_java        makes it, unless it is there; `make test-python` does

Without it the tests are slower and else the same.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "build" / "java"
# None lives long enough to gain from the optimising compiler.
_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# What Spark does in the tests, as far as classes go: tasks, Python, SQL, files, ML.
_WORK = """
import sys
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.ml.feature import VectorAssembler

session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
numbers = session.sparkContext.parallelize(range(4), 2)
numbers.map(lambda one: (one % 2, one)).reduceByKey(max).collect()
rows = [(one, float(one), str(one)) for one in range(9)]
rows = session.createDataFrame(rows, "a int, b double, c string")
rows.mapInArrow(lambda batches: batches, rows.schema).groupBy("c").count().collect()
rows.write.parquet(sys.argv[1])
read = session.read.parquet(sys.argv[1]).orderBy("a")
VectorAssembler(inputCols=["a", "b"], outputCol="v").transform(read).collect()
session.stop()
java = SparkContext._gateway.proc
java.stdin.close()
java.wait()
"""


def variables() -> dict[str, str]:
    """For the environment of whatever starts Spark.

    Options of executors go by the driver's system properties, since classes are archived only where
    Spark's folder of settings, which stands on the path of classes, is empty.
    """
    path = _archive()
    if path is not None and path.exists():
        return _variables([*_QUICK, f"-XX:SharedArchiveFile={path}"])
    return _variables(_QUICK)


def _variables(options: Sequence[str]) -> dict[str, str]:
    settings = FOLDER / "no-settings"
    settings.mkdir(parents=True, exist_ok=True)
    of_executors = f"-Dspark.executor.defaultJavaOptions={' '.join(options)}"
    return {
        "SPARK_CONF_DIR": str(settings),
        "SPARK_SUBMIT_OPTS": f'{shlex.join(options)} "{of_executors}"',
        "SPARK_DAEMON_JAVA_OPTS": shlex.join(options),
    }


def _archive() -> Path | None:
    """Where the archive lies that fits; None = there is no Java, or no pyspark."""
    java = shutil.which("java", path=_java_path())
    spark = importlib.util.find_spec("pyspark")
    if java is None or spark is None or spark.origin is None:
        return None
    jars = Path(spark.origin).parent / "jars"
    parts = [str(FOLDER), _WORK]
    parts += [f"{path} {path.stat().st_mtime_ns}" for path in (Path(java).resolve(), jars)]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return FOLDER / f"spark-{digest[:16]}.jsa"


def _java_path() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin" if home else None


def main() -> None:
    """Makes the archive.

    Raises:
        CalledProcessError: Spark does not start.
    """
    path = _archive()
    if path is None or path.exists():
        return
    for old in FOLDER.glob("*.jsa"):
        old.unlink()
    made = path.with_suffix(".part")
    environment = {**os.environ, **_variables(_QUICK)}
    archiving = [f"-XX:ArchiveClassesAtExit={made}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    environment["SPARK_SUBMIT_OPTS"] += f" {shlex.join(archiving)}"
    environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with tempfile.TemporaryDirectory() as folder:
        work = [sys.executable, "-c", _WORK, f"{folder}/rows"]
        subprocess.run(work, env=environment, cwd=folder, check=True)
    made.replace(path)


if __name__ == "__main__":
    main()
