"""Tickets of a help desk: words of title and body, and tags, to a priority and a department."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(14)

num_tags, num_words, num_departments = 8, 50, 4
random = np.random.default_rng(14)
title = random.integers(0, num_words, (2000, 6))
body = random.integers(0, num_words, (2000, 12))
tags = random.integers(0, 2, (2000, num_tags)).astype("float32")
department = np.array([np.bincount(row % num_departments, minlength=4).argmax() for row in title])
urgent = ((body < 8).sum(axis=1) + 2 * tags[:, 0] > 2).astype("float32")
department_targets = keras.utils.to_categorical(department, num_departments)

title_input = keras.Input(shape=(None,), name="title", dtype="int32")
body_input = keras.Input(shape=(None,), name="body", dtype="int32")
tags_input = keras.Input(shape=(num_tags,), name="tags")
title_features = layers.GlobalAveragePooling1D()(layers.Embedding(num_words, 16)(title_input))
body_features = layers.LSTM(16)(layers.Embedding(num_words, 16)(body_input))
x = layers.concatenate([title_features, body_features, tags_input])
priority_pred = layers.Dense(1, name="priority")(x)
department_pred = layers.Dense(num_departments, name="department")(x)

model = keras.Model(
    inputs=[title_input, body_input, tags_input],
    outputs={"priority": priority_pred, "department": department_pred},
)
model.compile(
    optimizer=keras.optimizers.RMSprop(5e-3),
    loss={
        "priority": keras.losses.BinaryCrossentropy(from_logits=True),
        "department": keras.losses.CategoricalCrossentropy(from_logits=True),
    },
    loss_weights={"priority": 1.0, "department": 0.5},
    metrics={"department": ["accuracy"]},
)


def tickets(part):
    x = {"title": title[part], "body": body[part], "tags": tags[part]}
    return x, {"priority": urgent[part], "department": department_targets[part]}


model.fit(*tickets(slice(1600)), epochs=8, batch_size=16, verbose=2)
loss = model.evaluate(*tickets(slice(1600, None)), verbose=0, return_dict=True)["loss"]
