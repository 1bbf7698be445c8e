"""LoRA: of a trained network only matrices of low rank are tuned for a second task."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(13)

random = np.random.default_rng(13)
x = random.normal(size=(2400, 16)).astype("float32")
mixing = random.normal(size=(16, 5))
turned = mixing + 0.8 * random.normal(size=(16, 2)) @ random.normal(size=(2, 5))
y_first, y_second = (x @ mixing).argmax(axis=1), (x @ turned).argmax(axis=1)

model = keras.Sequential(
    [
        keras.Input((16,)),
        layers.Dense(64, activation="relu", name="first"),
        layers.Dense(64, activation="relu", name="second"),
        layers.Dense(5, name="head"),
    ]
)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer="adam", loss=loss_fn)
model.fit(x, y_first, batch_size=16, epochs=3, verbose=2)

for layer in model.layers:
    layer.enable_lora(rank=4)
    layer.bias.trainable = False
assert len(model.trainable_weights) == 6
kernels = [layer._kernel.numpy() for layer in model.layers]
model.compile(
    optimizer=keras.optimizers.AdamW(5e-3, weight_decay=0.01),
    loss=loss_fn,
    weighted_metrics=["accuracy"],
)
model.fit(x[:2000], y_second[:2000], batch_size=16, epochs=4, verbose=2)

for before, layer in zip(kernels, model.layers, strict=True):
    np.testing.assert_array_equal(before, layer._kernel.numpy())
loss, accuracy = model.evaluate(x[2000:], y_second[2000:], verbose=0)
