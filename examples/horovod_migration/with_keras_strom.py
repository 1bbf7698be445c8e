"""The script after: trains the same classifier of clothes with StromEstimator.

python prepare.py clothes                  # beside this file; once
spark-submit with_keras_strom.py clothes /mnt/shared/work

Needs keras-strom, TensorFlow and Keras 3 on the driver and all executors.
"""

from __future__ import annotations

import argparse

import keras
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.sql import SparkSession

from keras_strom.spark import StromEstimator


def build_model() -> keras.Model:
    """784 grey pixels in, the probabilities of ten classes out."""
    return keras.Sequential(
        [
            keras.layers.Input((784,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10, activation="softmax"),
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

    estimator = StromEstimator(
        num_proc=arguments.num_proc,
        store=arguments.work,
        model=build_model(),
        # Each worker's optimizer steps by itself: the rate is that of one machine.
        optimizer=keras.optimizers.Adam(1e-3),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        feature_cols=["pixels"],
        label_cols=["label"],
        validation=0.1,
        batch_size=64,
        epochs=arguments.epochs,
        verbose=1,
    )
    model = estimator.fit(train)

    # "prediction" is the class already, for the loss says that this is a classifier.
    predicted = model.transform(test)
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    print(f"accuracy on test data: {evaluator.evaluate(predicted):.4f}")


if __name__ == "__main__":
    main()
