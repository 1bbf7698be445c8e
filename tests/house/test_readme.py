"""Every block of Python in README.md runs as it stands there, and prints what it says.

A block that needs data, or a cluster, gets them here: names that it finds, and smaller numbers.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Stitch:
    """What a block of README does not bring itself.

    Attributes:
        names: what it finds; given Spark's session and a folder where it takes them.
        instead: texts of the block, each there once, and what is run instead.
    """

    names: Callable[..., dict[str, Any]]
    instead: dict[str, str] = dataclasses.field(default_factory=dict)
    spark: bool = False


def pictures() -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {"x_train": random.random((128, 784), "float32"), "y_train": np.arange(128) % 10}


def flights(spark: Any) -> dict[str, Any]:
    from pyspark.ml import Pipeline
    from pyspark.ml.feature import StringIndexer, VectorAssembler

    from keras_strom.spark import StromEstimator

    inputs = [keras.Input((2,), name="numbers"), keras.Input((1,), name="carrier_index")]
    outputs = keras.layers.Dense(1)(keras.layers.Concatenate()(inputs))
    rows = [(float(i), float(i % 7), "AA" if i % 2 else "UA", float(i % 3)) for i in range(64)]
    table = spark.createDataFrame(
        rows, "distance double, delay double, carrier string, gained double"
    )
    return {
        "Pipeline": Pipeline,
        "StromEstimator": StromEstimator,
        "keras": keras,
        "model": keras.Model(inputs, outputs),
        "indexer": StringIndexer(inputCol="carrier", outputCol="carrier_index"),
        "assembler": VectorAssembler(inputCols=["distance", "delay"], outputCol="numbers"),
        "flights": table,
        "others": table,
    }


def function(spark: Any) -> dict[str, Any]:
    import keras_strom.spark

    return {"keras_strom": keras_strom, "train": lambda: None}


#: By a text that only this block has.
STITCHES = {
    "model.fit(x_train": Stitch(pictures),
    "StromEstimator(": Stitch(
        flights, {"hdfs:///strom": "FOLDER", "num_proc=8": "num_proc=2"}, spark=True
    ),
    "max_failures=3": Stitch(function, {"num_proc=8": "num_proc=2"}, spark=True),
    "min_proc=2": Stitch(function, {"max_proc=8": "max_proc=2"}, spark=True),
}


def title(block: str) -> str:
    """The block's first line that says something."""
    return next(
        line for line in block.splitlines() if not line.startswith(("import", "from")) and line
    )


def stitch_of(block: str) -> Stitch:
    """What the block does not bring itself: nothing, where no stitch is for it."""
    found = [stitch for text, stitch in STITCHES.items() if text in block]
    assert len(found) < 2, block
    return found[0] if found else Stitch(dict)


@pytest.mark.parametrize("block", BLOCKS, ids=title)
def test_a_block_of_the_readme_runs(
    block: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stitch = stitch_of(block)
    if stitch.spark:
        pytest.importorskip("pyspark")
    names = stitch.names(*[request.getfixturevalue("spark")] * stitch.spark)
    for text, other in stitch.instead.items():
        assert block.count(text) == 1, f"{text} is not once in README's block any more"
        block = block.replace(text, other.replace("FOLDER", str(tmp_path)))
    exec(compile(block, str(README), "exec"), names)
    printed = capsys.readouterr().out
    for line in re.findall(r"# prints: (.*)", block):
        assert line in printed.splitlines()


def test_every_stitch_has_its_block() -> None:
    for text in STITCHES:
        assert sum(text in block for block in BLOCKS) == 1, text
