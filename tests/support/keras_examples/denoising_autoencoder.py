"""A convolutional autoencoder takes the noise off pictures of clothes (Fashion-MNIST)."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(16)


(train, _), (test, _) = keras.datasets.fashion_mnist.load_data()
# Every other pixel, from 0 to 1; and the same with noise.
train, test = (x[:, ::2, ::2, None].astype("float32") / 255 for x in (train[:3000], test[:500]))
noisy_train, noisy_test = (
    np.clip(x + np.random.normal(0, 0.4, x.shape), 0, 1).astype("float32") for x in (train, test)
)

inputs = keras.Input((14, 14, 1))
x = layers.Conv2D(16, 3, activation="relu", padding="same")(inputs)
x = layers.MaxPooling2D(2)(x)
x = layers.Conv2D(16, 3, activation="relu", padding="same")(x)
x = layers.Conv2DTranspose(16, 3, strides=2, activation="relu", padding="same")(x)
outputs = layers.Conv2D(1, 3, activation="sigmoid", padding="same")(x)
model = keras.Model(inputs, outputs)
model.compile("adam", loss="binary_crossentropy")

# First it learns to copy, then to clean.
model.fit(train, train, epochs=1, batch_size=16, verbose=2)
model.fit(
    noisy_train,
    train,
    epochs=3,
    batch_size=16,
    validation_data=(noisy_test, test),
    verbose=2,
)
cleaned = model.predict(noisy_test, verbose=0)
loss = float(np.mean((cleaned - test) ** 2) / np.mean((noisy_test - test) ** 2))
