"""A small convnet tells clothes apart (Fashion-MNIST, 4096 pictures of it)."""

import keras
from keras import layers

keras.utils.set_random_seed(1)

(x_train, y_train), (x_test, y_test) = keras.datasets.fashion_mnist.load_data()
x_train = x_train[:4096, ..., None].astype("float32") / 255
x_test = x_test[:2000, ..., None].astype("float32") / 255
y_train = keras.utils.to_categorical(y_train[:4096], 10)
y_test = keras.utils.to_categorical(y_test[:2000], 10)

model = keras.Sequential(
    [
        keras.Input((28, 28, 1)),
        layers.Conv2D(16, 3, strides=2, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(32, 3, activation="relu"),
        layers.Flatten(),
        layers.Dropout(0.2),
        layers.Dense(10, activation="softmax"),
    ]
)
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=32, epochs=3, validation_split=0.1, verbose=2)

loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
