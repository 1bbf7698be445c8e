"""Trains on pictures: PNG files become a DataFrame, and two Spark executors learn from its bytes.

    pip install '.[spark]'
    python examples/fashion_mnist_images.py

Collections of pictures often are a folder a class. Fashion-MNIST is written as one, Spark reads it
with its source for binary files, and the workers decode the pictures batch by batch.
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile
from typing import TYPE_CHECKING, Any

import keras
from embedded_spark import start_spark
from fashion_mnist import build_model
from fashion_mnist_data import Split, load_fashion_mnist

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from keras_strom.spark import StromEstimator, StromModel

WORKERS = 2


def write_pictures(folder: pathlib.Path, split: Split, count: int) -> None:
    """Writes the first pictures as PNG files: FOLDER/CLASS/NUMBER.png."""
    import tensorflow as tf

    images, classes = split
    for number, (image, of) in enumerate(zip(images[:count], classes[:count], strict=True)):
        file = folder / str(of) / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(tf.io.encode_png(image[..., None]).numpy())


def read_pictures(spark: SparkSession, folder: pathlib.Path) -> DataFrame:
    """The files' bytes as column `content`, and the class that their folder names as `label`."""
    from pyspark.sql import functions as F  # noqa: N812

    files = (
        spark.read.format("binaryFile")
        .option("pathGlobFilter", "*.png")
        .option("recursiveFileLookup", "true")
        .load(str(folder))
    )
    label = F.element_at(F.split("path", "/"), -2).cast("int").alias("label")
    # Spark makes a partition of every few small files.
    return files.select("content", label).coalesce(2 * WORKERS)


def decode(content: Any, label: Any) -> tuple[Any, Any]:
    """A batch of files' bytes as pictures [batch, 28, 28, 1] of 0 to 1."""
    from keras_strom.spark.data import decode_images

    return decode_images(content, 28, 28, channels=1) / 255.0, label


def build_estimator(epochs: int) -> StromEstimator:
    """Without a store: the rows go straight to the workers' disks."""
    from keras_strom.spark import StromEstimator

    return StromEstimator(
        model=build_model(),
        optimizer="adam",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        feature_cols=["content"],
        label_cols=["label"],
        transformation_fn=decode,
        batch_size=32,
        epochs=epochs,
        random_seed=1,
        num_proc=WORKERS,
        verbose=2,
    )


def report(model: StromModel, test: DataFrame) -> None:
    """How good it is on pictures that nobody has seen, and where the time went."""
    from pyspark.ml.evaluation import MulticlassClassificationEvaluator

    predicted = model.transform(test)
    accuracy = MulticlassClassificationEvaluator(metricName="accuracy").evaluate(predicted)
    print(f"test accuracy {accuracy:.4f} with {WORKERS} workers")
    totals = model.timeline.totals() if model.timeline else {}
    for worker, phases in totals.items():
        who = "driver" if worker < 0 else f"worker {worker}"
        print(f"{who}: " + ", ".join(f"{name} {took:.1f} s" for name, took in phases.items()))


def main() -> None:
    """Writes, reads, trains, reports."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--pictures", type=int, default=10_000, help="of at most 60000")
    arguments = parser.parse_args()
    train, test = load_fashion_mnist()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        write_pictures(folder / "train", train, arguments.pictures)
        write_pictures(folder / "test", test, max(1, arguments.pictures // 5))
        spark = start_spark("keras-strom pictures", WORKERS)
        model = build_estimator(arguments.epochs).fit(read_pictures(spark, folder / "train"))
        report(model, read_pictures(spark, folder / "test"))
        spark.stop()


if __name__ == "__main__":
    main()
