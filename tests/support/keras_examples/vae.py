"""A variational autoencoder with a train_step of its own: pictures of 8 by 8 of one soft spot."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(6)

random = np.random.default_rng(6)
rows, columns = np.mgrid[:8, :8]
places = random.uniform(1, 6, (3000, 2, 1, 1))
distance = (rows - places[:, 0]) ** 2 + (columns - places[:, 1]) ** 2
spots = np.exp(-distance / 3)[..., None].astype("float32")


class Draw(layers.Layer):
    """A point from the normal distribution that the encoder gives."""

    def __init__(self):
        super().__init__()
        self.seed = keras.random.SeedGenerator(6)

    def call(self, mean, log_variance):
        noise = keras.random.normal(ops.shape(mean), seed=self.seed)
        return mean + noise * ops.exp(log_variance / 2)


pictures = keras.Input((8, 8, 1))
x = layers.Conv2D(16, 3, activation="relu", strides=2, padding="same")(pictures)
x = layers.Dense(16, activation="relu")(layers.Flatten()(x))
mean, log_variance = layers.Dense(2)(x), layers.Dense(2)(x)
encoder = keras.Model(pictures, [mean, log_variance, Draw()(mean, log_variance)])

latent = keras.Input((2,))
x = layers.Reshape((4, 4, 8))(layers.Dense(4 * 4 * 8, activation="relu")(latent))
x = layers.Conv2DTranspose(16, 3, activation="relu", strides=2, padding="same")(x)
decoder = keras.Model(latent, layers.Conv2DTranspose(1, 3, padding="same")(x))


class VAE(keras.Model):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.seen = {name: keras.metrics.Mean(name=name) for name in ("error", "divergence")}

    @property
    def metrics(self):
        return list(self.seen.values())

    def train_step(self, pictures):
        with tf.GradientTape() as tape:
            mean, log_variance, latent = self.encoder(pictures)
            error = 10 * ops.mean(ops.sum((pictures - self.decoder(latent)) ** 2, axis=(1, 2, 3)))
            divergence = ops.exp(log_variance) + mean**2 - 1 - log_variance
            divergence = ops.mean(ops.sum(divergence, axis=1)) / 2
            loss = error + divergence
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.seen["error"].update_state(error)
        self.seen["divergence"].update_state(divergence)
        return {name: metric.result() for name, metric in self.seen.items()}


model = VAE(encoder, decoder)
model.compile(keras.optimizers.Adam(3e-3))
model.fit(spots, epochs=6, batch_size=16, verbose=2)

decoded = decoder.predict(encoder.predict(spots[:500], verbose=0)[0], verbose=0)
loss = float(np.mean((decoded - spots[:500]) ** 2) / np.var(spots[:500]))
