"""The weather six hours ahead: windows of a series, an LSTM, and the best epoch's weights."""

import keras
import numpy as np

keras.utils.set_random_seed(17)

random = np.random.default_rng(17)
hours = np.arange(3000)
temperature = np.sin(2 * np.pi * hours / 24) + 0.5 * np.sin(2 * np.pi * hours / 168)
pressure = np.roll(temperature, 6) + random.normal(0, 0.1, 3000)
series = np.stack([temperature + random.normal(0, 0.1, 3000), pressure], axis=1)
series = ((series - series[:2400].mean(axis=0)) / series[:2400].std(axis=0)).astype("float32")
past, future, step = 48, 6, 4


def windows(first, last):
    """Two days in steps of four hours, and the temperature six hours later."""
    return keras.utils.timeseries_dataset_from_array(
        series[first : last - past - future],
        series[first + past + future : last, 0],
        sequence_length=past // step,
        sampling_rate=step,
        batch_size=32,
    )


train, validation = windows(0, 2400), windows(2400, 3000)
for x, _ in train.take(1):
    shape = x.shape[1:]

inputs = keras.Input(shape)
model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.LSTM(24)(inputs)))
model.compile(keras.optimizers.Adam(5e-3), loss="mse")
callbacks = [
    keras.callbacks.EarlyStopping(monitor="val_loss", patience=5),
    keras.callbacks.ModelCheckpoint(
        "best.weights.h5", monitor="val_loss", save_weights_only=True, save_best_only=True
    ),
]
history = model.fit(train, epochs=6, validation_data=validation, callbacks=callbacks, verbose=2)

model.load_weights("best.weights.h5")
loss = model.evaluate(validation, verbose=0)
np.testing.assert_allclose(loss, min(history.history["val_loss"]), rtol=1e-4)
