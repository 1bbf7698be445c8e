"""A GAN with a train_step of its own: points on a ring."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(4)

random = np.random.default_rng(4)
angles = random.uniform(0, 2 * np.pi, 4096)
points = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype("float32")
points += random.normal(0, 0.02, points.shape).astype("float32")
latent = 4


def network(inputs, outputs, name):
    hidden = [layers.Dense(64), layers.LeakyReLU(0.2), layers.Dense(64), layers.LeakyReLU(0.2)]
    return keras.Sequential([keras.Input((inputs,)), *hidden, layers.Dense(outputs)], name=name)


class GAN(keras.Model):
    def __init__(self):
        super().__init__()
        self.generator = network(latent, 2, "generator")
        self.discriminator = network(2, 1, "discriminator")
        self.seeds = keras.random.SeedGenerator(4)
        self.d_loss = keras.metrics.Mean(name="d_loss")
        self.g_loss = keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    @property
    def metrics(self):
        return [self.d_loss, self.g_loss]

    def imagine(self, count):
        return self.generator(keras.random.normal((count, latent), seed=self.seeds))

    def train_step(self, real):
        count = ops.shape(real)[0]
        fake, true = ops.zeros((count, 1)), ops.ones((count, 1))
        made = self.imagine(count)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(fake, self.discriminator(made))
            d_loss += self.loss_fn(0.95 * true, self.discriminator(real))
        weights = self.discriminator.trainable_weights
        gradients = tape.gradient(d_loss, weights)
        self.d_optimizer.apply_gradients(zip(gradients, weights, strict=True))

        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(true, self.discriminator(self.imagine(count)))
        weights = self.generator.trainable_weights
        gradients = tape.gradient(g_loss, weights)
        self.g_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        return {metric.name: metric.result() for metric in self.metrics}


model = GAN()
model.compile(
    d_optimizer=keras.optimizers.Adam(1e-3, beta_1=0.5),
    g_optimizer=keras.optimizers.Adam(1e-3, beta_1=0.5),
    loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
)
model.fit(tf.data.Dataset.from_tensor_slices(points).batch(32), epochs=14, verbose=2)

# How far generated points lie from the ring, the mean.
made = model.generator.predict(np.random.default_rng(5).normal(size=(1000, latent)), verbose=0)
loss = float(np.mean(np.abs(np.linalg.norm(made, axis=1) - 1)))
