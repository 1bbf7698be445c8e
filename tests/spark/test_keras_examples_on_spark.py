"""Scripts as Keras's users write them train with two workers in Spark.

Those of tests/strategy/test_keras_examples.py, with all options of the strategy left alone. `make
test-net` runs all of them.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import cloudpickle
import pytest

pytest.importorskip("pyspark")

from keras_strom.spark import run
from tests.support.kept import once
from tests.support.scripts import keras_examples
from tests.support.scripts.keras_examples import BARS, check_both

# Executors cannot import these files.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(keras_examples)

pytestmark = pytest.mark.timeout(3000)

# Callbacks that write files, a loop of its own, and several fits of one model.
SOME = ("callbacks", "reinforce", "transfer_learning")
OTHERS = tuple(name for name in BARS if name not in SOME)

each = pytest.mark.parametrize(
    "name", [*SOME, *(pytest.param(name, marks=pytest.mark.net) for name in OTHERS)]
)


def train(names: tuple[str, ...], folder: str) -> dict[str, dict[str, Any]]:
    return keras_examples.as_values(keras_examples.run_in_job(names, folder))


@pytest.fixture(scope="module")
def workers(spark: Any) -> Any:
    """Runs several scripts in one job."""

    @once
    def trained(names: tuple[str, ...]) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            return run(train, (names, folder), num_proc=2, stream_logs=False, spark=spark)

    return trained


@each
def test_two_workers_in_spark_end_with_the_same_bits_and_have_learnt(
    name: str, workers: Any
) -> None:
    check_both(workers(SOME if name in SOME else OTHERS), name)
