"""The model of `tfx_pipeline.py`, as any TFX pipeline has one: `run_fn` trains and exports it.

It says nothing of workers: StromTrainer calls it on each, in the scope of a StromStrategy.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from keras_strom.tfx import read_examples

FEATURES = {
    "point": tf.io.FixedLenFeature([2], tf.float32),
    "inside": tf.io.FixedLenFeature([], tf.int64),
}


def build_model() -> keras.Model:
    """Whether a point lies in the circle: [2] float32 in, the probability out."""
    model = keras.Sequential(
        [
            keras.Input((2,), name="point"),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
    return model


def run_fn(fn_args: Any) -> None:
    """Trains for `fn_args.train_steps` steps and exports a model that takes tf.train.Examples."""
    batch_size = fn_args.custom_config["batch_size"]
    train = read_examples(
        fn_args.train_files,
        FEATURES,
        batch_size=batch_size,
        label="inside",
        epochs=None,
        shuffle_buffer=1000,
    )
    evaluation = read_examples(
        fn_args.eval_files, FEATURES, batch_size=batch_size, label="inside", shared=False
    )
    model = build_model()
    model.fit(
        train.map(lambda features, label: (features["point"], label)),
        steps_per_epoch=fn_args.train_steps,
        validation_data=evaluation.map(lambda features, label: (features["point"], label)),
        validation_steps=fn_args.eval_steps,
        callbacks=[keras.callbacks.TensorBoard(fn_args.model_run_dir)],
        verbose=2,
    )
    export(model, fn_args.serving_model_dir)


def export(model: keras.Model, folder: str) -> None:
    """Writes a SavedModel whose `serving_default` takes serialized tf.train.Examples."""

    def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        features = tf.io.parse_example(examples, {"point": FEATURES["point"]})
        return {"inside": model(features["point"])}

    archive = keras.export.ExportArchive()
    archive.track(model)
    signature = [tf.TensorSpec([None], tf.string, name="examples")]
    archive.add_endpoint("serving_default", serve, input_signature=signature)
    archive.write_out(folder, verbose=False)
