"""Reviews are good or bad: from raw strings, through TextVectorization, to a convnet over words."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(2)

# Reviews of neutral words, with a few that tell; "not" before such a word turns it around.
random = np.random.default_rng(2)
neutral = np.array([f"word{i}" for i in range(60)])
telling = {"splendid": 1, "moving": 1, "witty": 1, "dull": -1, "clumsy": -1, "tedious": -1}


def write_review():
    words, mood = list(random.choice(neutral, 14)), 0
    for word in random.choice(list(telling), 3):
        turned = random.random() < 0.3
        mood += -telling[word] if turned else telling[word]
        words.insert(random.integers(len(words)), f"not {word}" if turned else word)
    return " ".join(words) + "<br />", int(mood > 0)


texts, labels = map(np.array, zip(*(write_review() for _ in range(3000)), strict=True))
train = tf.data.Dataset.from_tensor_slices((texts[:2400], labels[:2400])).batch(16)
test = tf.data.Dataset.from_tensor_slices((texts[2400:], labels[2400:])).batch(100)


def standardize(text):
    return tf.strings.regex_replace(tf.strings.lower(text), "<br />", " ")


vectorize = layers.TextVectorization(
    standardize=standardize, max_tokens=200, output_sequence_length=24
)
vectorize.adapt(train.map(lambda text, _: text))

inputs = keras.Input((None,), dtype="int64")
x = layers.Embedding(200, 16)(inputs)
x = layers.Dropout(0.2)(x)
x = layers.Conv1D(32, 3, padding="same", activation="relu")(x)
x = layers.GlobalMaxPooling1D()(x)
outputs = layers.Dense(1, activation="sigmoid")(x)
model = keras.Model(inputs, outputs)
model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])


def to_numbers(text, label):
    return vectorize(text), label


train_ds = train.map(to_numbers).cache().prefetch(2)
test_ds = test.map(to_numbers).cache()
model.fit(train_ds, validation_data=test_ds, epochs=4, verbose=2)

# The model for users takes strings.
raw = keras.Input((1,), dtype="string")
end_to_end = keras.Model(raw, model(vectorize(raw)))
end_to_end.compile(loss="binary_crossentropy", metrics=["accuracy"])
loss, accuracy = end_to_end.evaluate(test, verbose=0)
