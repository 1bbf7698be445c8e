"""Callbacks of most scripts: they stop, slow down and write; then the best model is loaded."""

import csv

import keras
import numpy as np
from keras import layers

import keras_strom

keras.utils.set_random_seed(21)

random = np.random.default_rng(21)
x = random.normal(size=(2400, 10)).astype("float32")
y = (np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] > 0).astype("float32")
x_val, y_val = x[2000:], y[2000:]


class Averages(keras.callbacks.Callback):
    """Prints the mean absolute weight of each layer, as users' own callbacks do."""

    def on_epoch_end(self, epoch, logs=None):
        means = [float(np.abs(weight).mean()) for weight in self.model.get_weights()]
        print(f"epoch {epoch}: {np.round(means, 3)}, lr {logs.get('learning_rate')}")  # noqa: T201


model = keras.Sequential(
    [
        keras.Input((10,)),
        layers.Dense(48, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-4)),
        layers.BatchNormalization(),
        layers.Dense(24, activation="relu", kernel_constraint=keras.constraints.MaxNorm(2)),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True))
model.compile(model.optimizer, loss="binary_crossentropy", metrics=["accuracy", "auc"])
history = model.fit(
    x[:2000],
    y[:2000],
    validation_data=(x_val, y_val),
    batch_size=16,
    epochs=12,
    class_weight={0: 1.0, 1: 1.2},
    callbacks=[
        keras.callbacks.EarlyStopping("val_loss", patience=4, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.3, patience=1, min_lr=1e-4),
        keras.callbacks.ModelCheckpoint("best.keras", monitor="val_loss", save_best_only=True),
        keras.callbacks.CSVLogger("training.csv"),
        keras.callbacks.TerminateOnNaN(),
        Averages(),
    ],
    verbose=2,
)
with open("training.csv") as file:
    epochs = [int(row["epoch"]) for row in csv.DictReader(file)]
assert epochs == list(range(len(epochs)))
# It is the chief's; without max_staleness others may stop in another epoch.
if keras_strom.is_chief():
    assert len(epochs) == len(history.epoch)

model = keras.models.load_model("best.keras")
loss = model.evaluate(x_val, y_val, verbose=0, return_dict=True)["loss"]
