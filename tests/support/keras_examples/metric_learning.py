"""Metric learning: anchors and positives of each class, compared by their embeddings' products."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(18)

classes = 8
random = np.random.default_rng(18)
prototypes = random.normal(size=(classes, 8, 8, 1))
y_train, y_test = np.arange(1600) % classes, np.arange(400) % classes


def pictures(y):
    return (prototypes[y] + random.normal(0, 1.5, (len(y), 8, 8, 1))).astype("float32")


x_train, x_test = pictures(y_train), pictures(y_test)


class Pairs(keras.utils.PyDataset):
    """A batch is two pictures of every class: [2, classes, 8, 8, 1]."""

    def __len__(self):
        return 100

    def __getitem__(self, index):
        drawn = np.random.default_rng(index)
        rows = [
            drawn.choice(np.flatnonzero(y_train == c), 2, replace=False) for c in range(classes)
        ]
        return x_train[np.array(rows).T]


class Embedder(keras.Model):
    def train_step(self, batch):
        (x,) = batch
        with tf.GradientTape() as tape:
            anchors, positives = (self(pictures, training=True) for pictures in (x[0], x[1]))
            similarity = 5.0 * ops.matmul(anchors, ops.transpose(positives))
            own = ops.arange(classes)  # Row i should be most like column i.
            loss = self.compute_loss(y=own, y_pred=similarity)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self.compute_metrics(None, own, similarity)


inputs = keras.Input((8, 8, 1))
x = layers.Conv2D(16, 3, activation="relu")(inputs)
x = layers.GroupNormalization(groups=4)(x)
x = layers.Dense(8)(layers.Flatten()(x))
model = Embedder(inputs, layers.UnitNormalization()(x))
model.compile(
    optimizer=keras.optimizers.Adam(2e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(Pairs(), epochs=4, verbose=2)

# How many of the ten nearest neighbours are of another class.
found = model.predict(x_test, verbose=0)
nearest = np.argsort(found @ found.T, axis=1)[:, -11:-1]
loss = float(np.mean(y_test[nearest] != y_test[:, None]))
