"""Nodes of a graph are classified from their own features and those of their neighbours."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(9)

# Papers of four fields cite their own field mostly; words tell the field only vaguely.
random = np.random.default_rng(9)
nodes, fields = 2000, 4
field = random.integers(0, fields, nodes)
features = random.normal(size=(nodes, 16)).astype("float32")
features[np.arange(nodes), field] += 1.0
source = random.integers(0, nodes, 12 * nodes)
target = random.integers(0, nodes, 12 * nodes)
kept = (field[source] == field[target]) | (random.random(12 * nodes) < 0.15)
edges = np.stack([source[kept], target[kept]]).astype("int32")
known, unknown = np.arange(1500), np.arange(1500, nodes)


def dense(units, inputs):
    block = [layers.BatchNormalization(), layers.Dropout(0.1), layers.Dense(units, "gelu")]
    return keras.Sequential([keras.Input((inputs,)), *block])


class Neighbourhood(layers.Layer):
    """Each node's state, with the mean of its neighbours' messages beside it."""

    def __init__(self, units):
        super().__init__()
        self.message, self.update = dense(units, units), dense(units, 2 * units)

    def call(self, states):
        messages = self.message(ops.take(states, edges[1], axis=0))
        heard = tf.math.unsorted_segment_mean(messages, edges[0], num_segments=nodes)
        return states + self.update(ops.concatenate([states, heard], axis=1))


class NodeClassifier(keras.Model):
    """Takes numbers of nodes; the whole graph is part of the model."""

    def __init__(self, units):
        super().__init__()
        self.first = dense(units, features.shape[1])
        self.neighbourhood = Neighbourhood(units)
        self.logits = layers.Dense(fields)

    def call(self, chosen):
        states = self.neighbourhood(self.first(features))
        return self.logits(ops.take(states, chosen, axis=0))


model = NodeClassifier(units=24)
model(known[:4])
model.compile(
    keras.optimizers.Adam(5e-3),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
stopping = keras.callbacks.EarlyStopping(monitor="accuracy", patience=50, restore_best_weights=True)
model.fit(known, field[known], epochs=6, batch_size=16, callbacks=[stopping], verbose=2)
loss, accuracy = model.evaluate(unknown, field[unknown], verbose=0)
