"""Each of two workers sees only half of Fashion-MNIST's classes; writes its accuracy over all ten.

Run by tests/strategy/test_training.py: split_classes.py OUTPUT_FOLDER [--silent]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib

import fashion_mnist
import keras
import tensorflow as tf

import keras_strom


def dataset_of(rank: int) -> tf.data.Dataset:
    """Classes 0 to 4 for worker 0, 5 to 9 for worker 1; its own already, so nothing is sharded."""
    (x_train, y_train), _ = fashion_mnist.load()
    own = (y_train // 5) == rank
    dataset = tf.data.Dataset.from_tensor_slices((x_train[own], y_train[own]))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.shuffle(30000, seed=rank).batch(64).prefetch(2).with_options(options)


def build_model() -> keras.Model:
    """Of 101770 parameters, whose steps are short: [28, 28, 1] float32 in, 10 logits out."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def main() -> None:
    """Trains two epochs, with or without communication."""
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--silent", action="store_true")
    arguments = parser.parse_args()
    keras.utils.set_random_seed(1)
    rank = keras_strom.rank()
    # In lockstep: otherwise the worker that ends last trains its own classes alone for a while.
    # And without progress of its own, with which its model would lean towards its own classes.
    strategy = None
    if not arguments.silent:
        strategy = keras_strom.StromStrategy(max_staleness=0, local_apply="encoded")
    with strategy.scope() if strategy else tf.distribute.get_strategy().scope():
        model = build_model()
        # SGD's updates add up to those of all classes; Adam scales each worker's by its own few.
        model.compile(
            keras.optimizers.SGD(0.1),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    model.fit(dataset_of(rank), epochs=2, verbose=0)
    _, (x_test, y_test) = fashion_mnist.load()
    accuracy = model.evaluate(x_test, y_test, batch_size=1000, verbose=0)[1]
    report = strategy.last_report if strategy else None
    (arguments.output / f"{rank}.json").write_text(
        json.dumps(
            {
                "accuracy": float(accuracy),
                "report": dataclasses.asdict(report) if report else None,
            }
        )
    )


if __name__ == "__main__":
    main()
