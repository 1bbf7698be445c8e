"""KerasTuner looks for the width and the learning rate of a network, and the best model is kept."""

import tempfile

import keras
import keras_tuner
import numpy as np
from keras import layers

strategy = globals().get("strategy")  # From outside; None is plain Keras.

keras.utils.set_random_seed(11)

random = np.random.default_rng(11)
x = random.normal(size=(1200, 8)).astype("float32")
y = np.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3]
x_val, y_val = x[1000:], y[1000:]


def build_model(hp):
    hidden = layers.Dense(hp.Int("units", min_value=16, max_value=48, step=16), "relu")
    built = keras.Sequential([keras.Input((8,)), hidden, layers.Dense(1)])
    rate = hp.Choice("learning_rate", values=[1e-2, 3e-3])
    built.compile(optimizer=keras.optimizers.Adam(rate), loss="mse")
    return built


tuner = keras_tuner.RandomSearch(
    hypermodel=build_model,
    objective="val_loss",
    max_trials=3,
    seed=11,
    directory=tempfile.mkdtemp(),  # Of each process its own.
    project_name="width",
    distribution_strategy=strategy,
)
tuner.search(x[:1000], y[:1000], epochs=5, batch_size=8, validation_data=(x_val, y_val), verbose=0)
model = tuner.get_best_models(num_models=1)[0]
loss = model.evaluate(x_val, y_val, verbose=0)
