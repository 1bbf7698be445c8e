"""A Siamese network with a contrastive loss: are two pictures of the same class?"""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(8)

random = np.random.default_rng(8)
prototypes = random.normal(size=(8, 10, 10, 1))
labels = random.integers(0, 8, 1600)
pictures = (prototypes[labels] + random.normal(0, 1.5, (1600, 10, 10, 1))).astype("float32")


def pair_up(part):
    """Each picture beside one of its class (target 0), and beside one of another (target 1)."""
    x, y = pictures[part], labels[part]
    order = [np.flatnonzero(y == c) for c in range(8)]
    same = [random.choice(order[c]) for c in y]
    other = [random.choice(order[(c + random.integers(1, 8)) % 8]) for c in y]
    first, second = np.concatenate([x, x]), np.concatenate([x[same], x[other]])
    return [first, second], np.repeat([0.0, 1.0], len(x)).astype("float32")


x_train, y_train = pair_up(slice(1200))
x_test, y_test = pair_up(slice(1200, None))


def distance_of(two):
    return ops.sqrt(ops.sum((two[0] - two[1]) ** 2, axis=1, keepdims=True) + 1e-7)


def contrastive(different, distance):
    """Pictures of one class are drawn together, others pushed apart until they are 1 apart."""
    near, far = distance**2, ops.relu(1 - distance) ** 2
    return ops.mean((1 - different) * near + different * far)


inputs = keras.Input((10, 10, 1))
x = layers.BatchNormalization()(inputs)
x = layers.Conv2D(8, 3, activation="tanh")(x)
x = layers.AveragePooling2D(2)(x)
x = layers.BatchNormalization()(layers.Flatten()(x))
tower = keras.Model(inputs, layers.Dense(10, activation="tanh")(x))

pair = [keras.Input((10, 10, 1)), keras.Input((10, 10, 1))]
distance = layers.Lambda(distance_of, output_shape=(1,))([tower(picture) for picture in pair])
model = keras.Model(pair, layers.BatchNormalization()(distance))
model.compile(loss=contrastive, optimizer=keras.optimizers.RMSprop(1e-3))
model.fit(x_train, y_train, validation_data=(x_test, y_test), batch_size=16, epochs=5, verbose=2)
loss = model.evaluate(x_test, y_test, verbose=0)
