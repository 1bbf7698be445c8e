"""The script before: trains a classifier of clothes with Horovod's KerasEstimator.

python prepare.py clothes                  # beside this file; once
spark-submit with_horovod.py clothes /mnt/shared/work

Needs Horovod built for TensorFlow with Keras 2 on the driver and all executors.
"""

from __future__ import annotations

import argparse

import tensorflow as tf
from horovod.spark.common.backend import SparkBackend
from horovod.spark.common.store import Store
from horovod.spark.keras import KerasEstimator
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DoubleType


def build_model() -> tf.keras.Model:
    """784 grey pixels in, the probabilities of ten classes out."""
    return tf.keras.Sequential(
        [
            tf.keras.layers.Input((784,)),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dropout(0.2),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )


def main() -> None:
    """Trains, predicts, and says how good that is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="the folder that prepare.py has made")
    parser.add_argument("work", help="a folder that driver and executors reach")
    parser.add_argument("--num-proc", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()

    spark = SparkSession.builder.appName("clothes").getOrCreate()
    train = spark.read.parquet(f"{arguments.data}/train.parquet")
    test = spark.read.parquet(f"{arguments.data}/test.parquet")

    estimator = KerasEstimator(
        backend=SparkBackend(num_proc=arguments.num_proc, use_gpu=False),
        store=Store.create(arguments.work),
        model=build_model(),
        # Gradients are averaged over the workers: the rate grows with their number.
        optimizer=tf.keras.optimizers.Adam(1e-3 * arguments.num_proc),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        feature_cols=["pixels"],
        label_cols=["label"],
        validation=0.1,
        batch_size=64,
        epochs=arguments.epochs,
        verbose=1,
    )
    model = estimator.fit(train).setOutputCols(["probabilities"])

    # The output is an array of probabilities; Spark's evaluators want the class.
    to_class = F.udf(lambda of_each: float(max(range(10), key=of_each.__getitem__)), DoubleType())
    predicted = model.transform(test).withColumn("prediction", to_class("probabilities"))
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    print(f"accuracy on test data: {evaluator.evaluate(predicted):.4f}")


if __name__ == "__main__":
    main()
