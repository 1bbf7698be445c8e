"""Knowledge distillation: a small network learns from a larger one that has been trained before."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(7)

random = np.random.default_rng(7)
x = random.normal(size=(4000, 12)).astype("float32")
y = (x[:, :4] * x[:, 4:8]).argmax(axis=1)
x_train, y_train, x_test, y_test = x[:3200], y[:3200], x[3200:], y[3200:]


class Student(keras.Model):
    """Learns what is true, and a little more what its teacher thinks of all classes."""

    def __init__(self, network, teacher, temperature=3.0, weight_of_truth=0.1):
        super().__init__()
        self.network = network
        self.teacher = teacher
        self.temperature = temperature
        self.weight_of_truth = weight_of_truth
        self.divergence = keras.losses.KLDivergence()

    def call(self, x):
        return self.network(x)

    def soften(self, logits):
        return ops.softmax(logits / self.temperature)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        truth = super().compute_loss(x, y, y_pred, sample_weight, training)
        opinion = self.soften(self.teacher(x, training=False))
        imitation = self.divergence(opinion, self.soften(y_pred)) * self.temperature**2
        return self.weight_of_truth * truth + (1 - self.weight_of_truth) * imitation


def build(units, name):
    hidden = [layers.Dense(units, activation="relu") for _ in range(2)]
    return keras.Sequential([keras.Input((12,)), *hidden, layers.Dense(4)], name=name)


crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
teacher = build(96, "teacher")
teacher.compile(keras.optimizers.Adam(3e-3), crossentropy, metrics=["accuracy"])
teacher.fit(x_train, y_train, epochs=5, verbose=2)
teacher.trainable = False
taught = teacher.get_weights()

model = Student(build(32, "student"), teacher)
model.compile(keras.optimizers.Adam(3e-3), crossentropy, metrics=["accuracy"])
model.fit(x_train, y_train, epochs=5, verbose=2)

for before, after in zip(taught, teacher.get_weights(), strict=True):
    np.testing.assert_array_equal(before, after)
loss = 1 - model.evaluate(x_test, y_test, verbose=0, return_dict=True)["accuracy"]
