"""The module of the taxi pipeline in `test_tfx_taxi.py`, as a user would write it with Keras 3.

Features and labels are made by the preprocessing that TFX ships with the data.
"""

from typing import Any

import keras
import tensorflow as tf
import tensorflow_transform as tft
from tfx.examples.chicago_taxi_pipeline.taxi_utils_native_keras import (
    preprocessing_fn as preprocessing_fn,  # What Transform calls.
)
from tfx_bsl.public import tfxio

NUMBERS = ("trip_miles_xf", "fare_xf", "trip_seconds_xf")
CATEGORIES = {"payment_type_xf": 1010, "trip_start_hour_xf": 24, "pickup_latitude_xf": 10}
LABEL = "tips_xf"


def read(files: list[str], fn_args: Any, graph: Any) -> tf.data.Dataset:
    """Batches of (features, label), without end."""
    options = tfxio.TensorFlowDatasetOptions(batch_size=40, label_key=LABEL)
    schema = graph.transformed_metadata.schema
    data = fn_args.data_accessor.tf_dataset_factory(files, options, schema)
    wanted = (*NUMBERS, *CATEGORIES)
    return data.map(lambda values, label: ({name: values[name] for name in wanted}, label))


def build_model() -> keras.Model:
    """The probability of a big tip, of [1] features by name."""
    numbers = {name: keras.Input((1,), name=name) for name in NUMBERS}
    categories = {name: keras.Input((1,), name=name, dtype="int32") for name in CATEGORIES}
    parts = list(numbers.values())
    for name, count in CATEGORIES.items():
        embedded = keras.layers.Embedding(count, 4)(categories[name])
        parts.append(keras.layers.Flatten()(embedded))
    hidden = keras.layers.Dense(32, activation="relu")(keras.layers.Concatenate()(parts))
    chance = keras.layers.Dense(1, activation="sigmoid")(hidden)
    model = keras.Model({**numbers, **categories}, chance)
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def run_fn(fn_args: Any) -> None:
    """Trains on the transformed examples; the exported model takes raw ones."""
    graph = tft.TFTransformOutput(fn_args.transform_output)
    with tf.distribute.MirroredStrategy().scope():
        model = build_model()
    model.fit(
        read(fn_args.train_files, fn_args, graph),
        steps_per_epoch=fn_args.train_steps,
        validation_data=read(fn_args.eval_files, fn_args, graph),
        validation_steps=fn_args.eval_steps,
        callbacks=[keras.callbacks.TensorBoard(fn_args.model_run_dir)],
        verbose=2,
    )
    served = tf.Module()
    served.model = model
    served.transform = graph.transform_features_layer()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        spec = graph.raw_feature_spec()
        del spec["tips"]
        features = served.transform(tf.io.parse_example(examples, spec))
        columns = {name: features[name][:, tf.newaxis] for name in (*NUMBERS, *CATEGORIES)}
        return {"outputs": model(columns)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def transform(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        """Features and label as the model has learnt them: what Evaluator compares."""
        transformed: dict[str, tf.Tensor] = served.transform(
            tf.io.parse_example(examples, graph.raw_feature_spec())
        )
        return transformed

    signatures = {"serving_default": serve, "transform_features": transform}
    tf.saved_model.save(served, fn_args.serving_model_dir, signatures=signatures)
