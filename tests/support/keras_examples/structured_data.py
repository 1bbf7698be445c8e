"""Who buys? A table of numbers, strings and codes, through Keras's preprocessing layers."""

import keras
import numpy as np
import pandas as pd
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(3)

random = np.random.default_rng(3)
rows = 3000
frame = pd.DataFrame(
    {
        "age": random.integers(18, 80, rows).astype("float32"),
        "income": random.lognormal(10, 0.5, rows).astype("float32"),
        "city": random.choice(["Bonn", "Lyon", "Oslo", "Turin"], rows),
        "visits": random.integers(0, 6, rows),
    }
)
score = (
    (frame.age - 49) / 18
    + (np.log(frame.income) - 10) * 2
    + frame.city.map({"Bonn": 1.5, "Lyon": 0, "Oslo": -1.5, "Turin": 0})
    + (frame.visits == 3) * 2
)
frame["target"] = (score + random.normal(0, 0.3, rows) > 0.3).astype("float32")


def to_dataset(part):
    part = part.copy()
    labels = part.pop("target")
    return tf.data.Dataset.from_tensor_slices((dict(part), labels))


train = to_dataset(frame[:2500]).shuffle(2500, seed=3).batch(16)
validation = to_dataset(frame[2500:]).batch(100)

space = keras.utils.FeatureSpace(
    features={
        "age": "float_discretized",
        "income": "float_normalized",
        "city": keras.utils.FeatureSpace.string_categorical(num_oov_indices=0),
        "visits": keras.utils.FeatureSpace.integer_categorical(num_oov_indices=0),
    },
    crosses=[keras.utils.FeatureSpace.cross(("city", "visits"), crossing_dim=32)],
    output_mode="concat",
)
space.adapt(train.map(lambda features, _: features))

encoded = space.get_encoded_features()
x = layers.Dense(32, activation="relu")(encoded)
x = layers.Dropout(0.2)(x)
outputs = layers.Dense(1, activation="sigmoid")(x)
model = keras.Model(inputs=encoded, outputs=outputs)
model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])


def encode(features, label):
    return space(features), label


model.fit(
    train.map(encode).prefetch(2), epochs=5, validation_data=validation.map(encode), verbose=2
)

# For inference the preprocessing is part of the model.
inference = keras.Model(space.get_inputs(), model(encoded))
inference.compile(loss="binary_crossentropy")
loss = inference.evaluate(validation, verbose=0)
