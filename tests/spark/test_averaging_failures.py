"""What parameter averaging refuses, and what a task of it that fails says."""

from __future__ import annotations

import itertools
import socket
import traceback
import types
from typing import Any

import pytest
import tensorflow as tf

pyspark = pytest.importorskip("pyspark")

from keras_strom import errors  # noqa: E402
from keras_strom.spark import ParameterAveraging  # noqa: E402
from keras_strom.spark.runner.resources import hide_gpus  # noqa: E402
from keras_strom.spark.training import averaging, averaging_tasks  # noqa: E402
from keras_strom.spark.training.averaging import _explained, refuse_too_large  # noqa: E402
from keras_strom.spark.training.averaging_tasks import initial_state  # noqa: E402
from keras_strom.spark.training.contribution import add  # noqa: E402


@pytest.mark.parametrize(
    ("millions", "workers", "options", "words"),
    [
        (170, 4, {}, ""),
        (190, 4, {}, r"a contribution to .* 2\.1 GiB \(weights 0\.7 GiB, .* state 1\.4 GiB\), and"),
        (190, 4, {}, r"2 GiB at most: leave .* \(save_updater=False\), or train with Gradient"),
        (190, 5, {}, r"a sum of .* has 4\.2 GiB .*, in float64\), .*save_updater=False\), or tr"),
        (170, 5, {}, r"has 3\.8 GiB .*=False\), or have the .* \(aggregation_depth=1\), or train"),
        (170, 5, {"aggregation_depth": 1}, ""),
        (170, 5, {"aggregation_depth": 3}, "a sum of contributions"),
        (190, 5, {"save_updater": False}, ""),
        (600, 4, {"save_updater": False}, r"has 2\.2 GiB .* 0\.0 GiB\), .* at most: train with"),
    ],
)
def test_a_model_of_which_spark_s_workers_cannot_hand_on_a_sum_is_refused(
    millions: int, workers: int, options: dict[str, Any], words: str
) -> None:
    def variables(count: int) -> list[Any]:
        one = types.SimpleNamespace(dtype="float32", shape=(1000, 1000))
        return [types.SimpleNamespace(dtype="int64", shape=()), *[one] * (millions * count)]

    model: Any = types.SimpleNamespace(
        weights=variables(1), optimizer=types.SimpleNamespace(variables=variables(2))
    )
    method = ParameterAveraging(**options)
    if not words:
        refuse_too_large(method, model, workers)
        return
    with pytest.raises(errors.UnsupportedModel, match=words):
        refuse_too_large(method, model, workers)


class Sums:
    """Stands for an RDD of one partition a worker; notes whether `treeAggregate` makes a tree."""

    ctx = None

    def __init__(self, workers: int) -> None:
        self._workers, self.has_tree = workers, False

    def getNumPartitions(self) -> int:  # noqa: N802
        return self._workers

    def mapPartitions(self, _: Any) -> Sums:  # noqa: N802
        return self

    def mapPartitionsWithIndex(self, _: Any) -> Sums:  # noqa: N802
        self.has_tree = True
        return self

    def reduceByKey(self, _: Any, partitions: int) -> Sums:  # noqa: N802
        return self

    def values(self) -> Sums:
        return self

    def reduce(self, _: Any) -> None:
        pass


def test_sums_are_handed_on_where_spark_makes_a_tree() -> None:
    for depth, workers in itertools.product(range(1, 6), range(1, 130)):
        rows: Any = Sums(workers)
        pyspark.RDD.treeAggregate(rows, None, add, add, depth)
        assert averaging._hands_on_sums(workers, depth) == rows.has_tree, (depth, workers)


def test_a_python_worker_that_uses_gpus_cannot_have_them_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("KERAS_STROM_NEEDS_GPU", "1")

    def too_late(*_: Any) -> None:
        raise RuntimeError("Visible devices cannot be modified after being initialized")

    monkeypatch.setattr(tf.config, "set_visible_devices", too_late)
    with pytest.raises(errors.InvalidOption, match=r"spark\.python\.worker\.reuse=false"):
        hide_gpus()


@pytest.mark.parametrize(("rank", "who"), [(3, "worker 3"), (-1, "a worker without a rank")])
def test_the_driver_reads_which_task_failed_and_where(rank: int, who: str) -> None:
    torn: Any = types.SimpleNamespace(pickled=types.SimpleNamespace(value=b"torn"))
    with pytest.raises(errors.WorkerFailed) as of_task:
        initial_state(torn, rank)
    words = "".join(traceback.format_exception(of_task.value))
    spark_s = f"Task 1 in stage 2.0 failed:\n{words}\n\n\tat org.apache.spark.api.python"
    with pytest.raises(errors.WorkerFailed) as raised, _explained():
        raise RuntimeError(spark_s)
    assert raised.value.rank == rank
    line, *lines = str(raised.value).split("\n")
    assert line == f"{who} on {socket.gethostname()} failed: {lines[-1]}"
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1].startswith("_pickle.UnpicklingError: ")


def test_an_error_of_keras_strom_in_a_task_is_raised_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(*_: Any) -> None:
        raise errors.InvalidData("row 3")

    monkeypatch.setattr(averaging_tasks, "_worker", refuses)
    nothing: Any = None
    with pytest.raises(errors.InvalidData, match="row 3"):
        averaging_tasks.train_round(nothing, nothing, 0, 1, 0)


def test_an_executor_with_other_packages_or_another_python_is_named() -> None:
    of_spark = "Task 1 in stage 2.0 failed (TID 7) (node7 executor 2): Traceback (most recent "
    of_worker = "keras_strom.errors.WorkerFailed: worker 3 on node7 failed: Traceback (most recent "
    for text in (
        f"{of_spark}call last):\nModuleNotFoundError: No module named 'keras_strom'\n\tat org.",
        f"{of_worker}call last):\nModuleNotFoundError: No module named 'tensorflow'",
        f"{of_spark}call last):\nRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has "
        "different version: 3.9 than that in driver: 3.11, PySpark cannot run\n\tat org.",
    ):
        words = r"executor on node7 (has|runs) "
        with pytest.raises(errors.ExecutorMismatch, match=words), _explained():
            raise RuntimeError(text)


@pytest.mark.parametrize(
    ("of_spark", "words"),
    [
        ("Job 7 cancelled because SparkContext was shut down", "session was stopped meanwhile"),
        ("Job 7 cancelled part of cancelled job group night", "job was cancelled meanwhile"),
    ],
)
def test_a_job_that_is_ended_from_outside_is_no_worker_s_failure(of_spark: str, words: str) -> None:
    with pytest.raises(errors.ConnectionClosed, match=words), _explained():
        raise RuntimeError(f"org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] {of_spark}")
