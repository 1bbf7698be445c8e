"""A network under the policy mixed_float16, with residual connections and a cosine schedule."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(20)
keras.mixed_precision.set_global_policy("mixed_float16")

random = np.random.default_rng(20)
x = random.normal(size=(3000, 16)).astype("float32")
y = np.tanh(x[:, :4]).sum(axis=1) + 0.5 * x[:, 4] * x[:, 5]
y = np.digitize(y, np.quantile(y, [0.25, 0.5, 0.75]))

inputs = keras.Input((16,))
hidden = layers.Dense(32, activation="relu")(inputs)
for _ in range(2):
    normal = layers.LayerNormalization()(hidden)
    hidden = hidden + layers.Dense(32, activation="relu")(normal)
outputs = layers.Activation("softmax", dtype="float32")(layers.Dense(4)(hidden))
model = keras.Model(inputs, outputs)
schedule = keras.optimizers.schedules.CosineDecay(
    0.0, decay_steps=600, warmup_target=5e-3, warmup_steps=50
)
model.compile(
    optimizer=keras.optimizers.Adam(schedule, clipnorm=1.0),
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
model.fit(x[:2500], y[:2500], batch_size=16, epochs=4, verbose=2)
loss, accuracy = model.evaluate(x[2500:], y[2500:], verbose=0)
