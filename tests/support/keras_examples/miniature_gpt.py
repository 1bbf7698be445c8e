"""A small causal transformer continues a text, letter by letter."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(22)

letters, length, width, heads = 16, 24, 32, 2
# A text of a few words in random order, with 0 between them.
random = np.random.default_rng(22)
words = [[1, 2, 3], [4, 5, 6, 7], [8, 9], [10, 11, 12, 13, 14], [15, 3, 6]]
text = np.concatenate([[*words[i], 0] for i in random.integers(0, 5, 12000)])
lines = text[: len(text) // (length + 1) * (length + 1)].reshape(-1, length + 1).astype("int32")


class Block(layers.Layer):
    """Attention and two dense layers, each added to what it was given."""

    def __init__(self):
        super().__init__()
        self.attention = layers.MultiHeadAttention(heads, width // heads)
        self.normal = [layers.LayerNormalization(), layers.LayerNormalization()]
        self.dense = keras.Sequential([layers.Dense(64, activation="relu"), layers.Dense(width)])
        self.dropout = layers.Dropout(0.1)

    def call(self, x):
        x = self.normal[0](x + self.dropout(self.attention(x, x, use_causal_mask=True)))
        return self.normal[1](x + self.dense(x))


class TokensAndPlaces(layers.Layer):
    def __init__(self):
        super().__init__()
        self.tokens = layers.Embedding(letters, width)
        self.places = layers.Embedding(length, width)

    def call(self, x):
        return self.tokens(x) + self.places(ops.arange(ops.shape(x)[-1]))


inputs = keras.Input((length,), dtype="int32")
x = Block()(TokensAndPlaces()(inputs))
model = keras.Model(inputs, [layers.Dense(letters)(x), x])  # The second is for whoever looks in.
crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(3e-3), loss=[crossentropy, None])

batches = tf.data.Dataset.from_tensor_slices(lines[200:]).shuffle(4000, seed=22).batch(8)
model.fit(batches.map(lambda line: (line[:, :-1], line[:, 1:])).prefetch(2), epochs=3, verbose=2)

logits, _ = model.predict(lines[:200, :-1], verbose=0)
loss = float(crossentropy(lines[:200, 1:], logits))
