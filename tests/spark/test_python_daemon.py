"""Spark's Python workers that begin with TensorFlow imported, and where it cannot be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from keras_strom.spark.runner import python_daemon

MODULE = python_daemon.__name__
DEADLINE = 200.0

# Two workers of one daemon, without Spark.
_WORKERS = """
import gc, json, os, random, sys
import pyspark.daemon
from keras_strom.spark.runner import python_daemon

def work():
    found = {"there": [name in sys.modules for name in ("tensorflow", "keras", "pyarrow")]}
    found["objects to search for garbage"] = len(gc.get_objects())
    import keras, numpy as np, pyarrow, tensorflow as tf
    drawn = [random.random(), np.random.rand(), tf.random.uniform([]), keras.random.uniform([])]
    found["drawn"] = [float(number) for number in drawn]
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
    found["predicted"] = model.predict(np.ones((2, 3)), verbose=0).tolist()
    found["threads of Arrow"] = pyarrow.table({"a": [1, 2]}).sort_by("a").num_rows
    return found

def manager():
    for _ in range(2):
        reading, writing = os.pipe()
        if not os.fork():
            os.write(writing, json.dumps(work()).encode())
            os._exit(0)
        os.close(writing)
        with open(reading) as file:
            print(file.read())

pyspark.daemon.manager = manager
python_daemon.main([])
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """A Python that finds what is in `folder` first; its input has ended."""
    path = os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=DEADLINE,
        check=False,
    )


@pytest.mark.jobs
def test_workers_begin_with_the_imports_and_share_nothing_that_is_drawn(
    tmp_path: Path,
) -> None:
    done = run(tmp_path, "-c", _WORKERS)
    assert done.returncode == 0, done.stderr.decode()
    first, second = map(json.loads, done.stdout.splitlines())
    for found in (first, second):
        assert found["there"] == [True, True, True]
        assert found["objects to search for garbage"] < 10_000
        assert found["predicted"] == [[3.0], [3.0]]
        assert found["threads of Arrow"] == 2
    assert all(a != b for a, b in zip(first["drawn"], second["drawn"], strict=True))


def test_a_worker_of_spark_is_forked_from_it(spark: Any) -> None:
    def look(_: Iterator[int]) -> Iterator[tuple[bool, str]]:
        command = Path(f"/proc/{os.getppid()}/cmdline").read_text()
        yield "tensorflow" in sys.modules, command.split("\0")[2]

    found = spark.sparkContext.parallelize(range(2), 2).mapPartitions(look).collect()
    assert found == [(True, MODULE)] * 2


@pytest.mark.jobs
def test_what_cannot_be_imported_is_named_and_sparks_own_daemon_serves(tmp_path: Path) -> None:
    Path(tmp_path, "tensorflow.py").write_text("raise OSError('no libtensorflow here')")
    done = run(tmp_path, "-m", MODULE, "pyspark.worker")
    said = done.stderr.decode()
    assert f"{MODULE}: tensorflow cannot be imported here (OSError: no libtensorflow" in said
    assert "pyspark.daemon" in said
    # The port of Spark's own, which ends with its input.
    assert "Traceback" not in said
    assert len(done.stdout) == 4
    assert 0 < int.from_bytes(done.stdout, "big") < 1 << 16


def test_what_imports_write_is_nothing_that_spark_reads(tmp_path: Path) -> None:
    Path(tmp_path, "talks_a_lot.py").write_text("import os; print('one'); os.write(1, b'two\\n')")
    code = f"from {MODULE} import import_all; print(import_all(['talks_a_lot', 'not_there']))"
    done = run(tmp_path, "-c", code)
    assert done.stdout.startswith(b"not_there cannot be imported here (ModuleNotFoundError: ")
    assert sorted(done.stderr.split()) == [b"one", b"two"]
