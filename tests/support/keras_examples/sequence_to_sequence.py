"""An LSTM encoder hands its state to an LSTM decoder, which writes the word backwards."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(15)

letters, length, width = 6, 4, 48
start = letters  # Stands before the first one that is written.
random = np.random.default_rng(15)
words = random.integers(0, letters, (4000, length))
backwards = words[:, ::-1]
shifted = np.concatenate([np.full((4000, 1), start), backwards[:, :-1]], axis=1)


def one_hot(tokens):
    return np.eye(letters + 1, dtype="float32")[tokens]


read = keras.Input((None, letters + 1))
_, *state = layers.LSTM(width, return_state=True)(read)
before = keras.Input((None, letters + 1))
writer = layers.LSTM(width, return_sequences=True, return_state=True)
to_letter = layers.Dense(letters + 1, activation="softmax")
sequence, *_ = writer(before, initial_state=state)
model = keras.Model([read, before], to_letter(sequence))
model.compile(keras.optimizers.RMSprop(5e-3), loss="categorical_crossentropy", metrics=["accuracy"])
model.fit(
    [one_hot(words[:3600]), one_hot(shifted[:3600])],
    one_hot(backwards[:3600]),
    batch_size=32,
    epochs=7,
    validation_split=0.1,
    verbose=2,
)

# To write, the encoder's state goes into the decoder, and each letter comes from the one before.
encoder = keras.Model(read, state)
given = [keras.Input((width,)), keras.Input((width,))]
sequence, *after = writer(before, initial_state=given)
decoder = keras.Model([before, *given], [to_letter(sequence), *after])

states = encoder.predict(one_hot(words[3600:]), verbose=0)
letter, written = np.full((400, 1), start), []
for _ in range(length):
    probabilities, *states = decoder.predict([one_hot(letter), *states], verbose=0)
    letter = probabilities.argmax(axis=-1)
    written.append(letter)
loss = float(np.mean(np.concatenate(written, axis=1) != backwards[3600:]))
