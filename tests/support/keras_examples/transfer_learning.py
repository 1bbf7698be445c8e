"""Transfer learning: a base that knows one task is frozen under a new head, then fine-tuned."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(12)

random = np.random.default_rng(12)
prototypes = random.normal(size=(9, 12, 12, 1))


def pictures(classes, count):
    """Shifted, noisy pictures of some classes."""
    y = random.choice(classes, count)
    x = prototypes[y] * 1.2 + random.normal(0, 1, (count, 12, 12, 1))
    return np.roll(x, 1, axis=1).astype("float32"), y - min(classes)


inputs = keras.Input((12, 12, 1))
x = layers.Conv2D(12, 3, use_bias=False)(inputs)
x = layers.ReLU()(layers.BatchNormalization()(x))
x = layers.Conv2D(16, 3, strides=2, activation="relu")(x)
base_model = keras.Model(inputs, layers.Flatten()(x), name="base")
pretraining = keras.Sequential([base_model, layers.Dense(6)])
pretraining.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
pretraining.fit(*pictures(np.arange(6), 2000), batch_size=16, epochs=2, verbose=2)

x_train, y_train = pictures(np.arange(6, 9), 1600)
x_test, y_test = pictures(np.arange(6, 9), 500)
base_model.trainable = False
frozen = [weight.copy() for weight in base_model.get_weights()]

inputs = keras.Input((12, 12, 1))
x = layers.RandomFlip("horizontal", seed=1)(inputs)
x = base_model(x, training=False)  # BatchNormalization stays as it is.
x = layers.Dropout(0.2)(x)
model = keras.Model(inputs, layers.Dense(3)(x))
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(), loss_fn, metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=16, epochs=2, verbose=2)
for before, after in zip(frozen, base_model.get_weights(), strict=True):
    np.testing.assert_array_equal(before, after)

base_model.trainable = True
model.compile(keras.optimizers.Adam(1e-4), loss_fn, metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=16, epochs=2, verbose=2)
assert not np.array_equal(frozen[0], base_model.get_weights()[0])
loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
