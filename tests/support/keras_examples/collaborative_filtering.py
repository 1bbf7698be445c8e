"""Which films will somebody like? Embeddings of users and films, of which a step looks up a few."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(19)

users, films = 200, 100
random = np.random.default_rng(19)
tastes, kinds = random.normal(size=(users, 3)), random.normal(size=(films, 3))
pairs = np.stack([random.integers(0, users, 12000), random.integers(0, films, 12000)], axis=1)
liked = ((tastes[pairs[:, 0]] * kinds[pairs[:, 1]]).sum(axis=1) > 0).astype("float32")


class Factorization(keras.Model):
    """A product of two vectors, and a bias of each side."""

    def __init__(self, size):
        super().__init__()
        self.users = layers.Embedding(users, size, embeddings_initializer="he_normal")
        self.films = layers.Embedding(films, size, embeddings_initializer="he_normal")
        self.user_bias = layers.Embedding(users, 1)
        self.film_bias = layers.Embedding(films, 1)

    def call(self, pair):
        user, film = pair[:, 0], pair[:, 1]
        product = ops.sum(self.users(user) * self.films(film), axis=1, keepdims=True)
        return product + self.user_bias(user) + self.film_bias(film)


model = Factorization(size=8)
model.compile(
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    optimizer=keras.optimizers.RMSprop(1e-2),
)
held_out = (pairs[10000:], liked[10000:])
model.fit(pairs[:10000], liked[:10000], epochs=5, validation_data=held_out, verbose=2)
loss = model.evaluate(*held_out, verbose=0)
