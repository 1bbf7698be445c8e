"""Two workers train models that nobody here wrote; worker 0 then compares with the oracle.

known_models.py OUTPUT_FOLDER NAME...; worker 0 writes what tests/strategy/test_known_models.py
judges.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Callable

import keras
import numpy as np

import keras_strom

TAU = 1e-3
STEPS = 3
BATCH = 8
CLASSES = 4
WORKERS = 2
ROWS = STEPS * BATCH * WORKERS
LABELS = np.random.default_rng(5).integers(0, CLASSES, ROWS)


def images() -> np.ndarray:
    return np.random.default_rng(4).uniform(0, 255, (ROWS, 32, 32, 3)).astype("float32")


def series() -> np.ndarray:
    return np.random.default_rng(4).normal(size=(ROWS, 7, 5)).astype("float32")


def words() -> np.ndarray:
    return np.random.default_rng(4).integers(0, 30, (ROWS, 9)).astype("int32")


def application(name: str) -> Callable[[], keras.Model]:
    """A model of keras.applications, untrained, for small images."""

    def build() -> keras.Model:
        make = getattr(keras.applications, name)
        model = make(
            weights=None, input_shape=(32, 32, 3), classes=CLASSES, classifier_activation=None
        )
        # The oracle would draw other random numbers.
        for layer in model.layers:
            if isinstance(layer, keras.layers.Dropout):
                layer.rate = 0.0
        return model

    return build


def recurrent(layer: type[keras.layers.Layer]) -> Callable[[], keras.Model]:
    """Two recurrent layers, the first one in both directions."""
    return lambda: keras.Sequential(
        [
            keras.Input((7, 5)),
            keras.layers.Bidirectional(layer(6, return_sequences=True)),
            layer(8),
            keras.layers.Dense(CLASSES),
        ]
    )


def transformer() -> keras.Model:
    """An encoder block over embedded words, as in Keras's guides."""
    inputs = keras.Input((9,), dtype="int32")
    x = keras.layers.Embedding(30, 16)(inputs)
    attended = keras.layers.MultiHeadAttention(num_heads=2, key_dim=8)(x, x)
    x = keras.layers.LayerNormalization()(x + attended)
    hidden = keras.layers.Dense(32, "gelu")(x)
    x = keras.layers.LayerNormalization()(x + keras.layers.Dense(16)(hidden))
    x = keras.layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, keras.layers.Dense(CLASSES)(x))


MODELS: dict[str, tuple[Callable[[], keras.Model], Callable[[], np.ndarray]]] = {
    "LSTM": (recurrent(keras.layers.LSTM), series),
    "GRU": (recurrent(keras.layers.GRU), series),
    "transformer": (transformer, words),
    "MobileNetV3Small": (application("MobileNetV3Small"), images),
    "EfficientNetB0": (application("EfficientNetB0"), images),
    "ResNet50": (application("ResNet50"), images),
}


def build(name: str) -> keras.Model:
    """The model, compiled with an optimizer that has no state, so that one serves all workers."""
    model = MODELS[name][0]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=False)
    return model


def oracle(name: str, start: list[np.ndarray]) -> list[np.ndarray]:
    """The trainable variables after plain Keras has taken every worker's steps, one by one."""
    x = MODELS[name][1]()
    model = build(name)
    variables = model.trainable_variables
    residuals = [[np.zeros_like(v) for v in start] for _ in range(WORKERS)]
    shared = start
    own = [start] * WORKERS
    for at in range(0, ROWS // WORKERS, BATCH):
        messages, after = [], []
        for rank in range(WORKERS):
            for variable, value in zip(variables, own[rank], strict=True):
                variable.assign(value)
            model.train_on_batch(
                x[rank::WORKERS][at : at + BATCH], LABELS[rank::WORKERS][at : at + BATCH]
            )
            message = []
            after.append([variable.numpy() for variable in variables])
            for new, value, residual in zip(after[rank], own[rank], residuals[rank], strict=True):
                residual += new - value
                reached = np.abs(residual) >= np.float32(TAU)
                part = np.where(reached, np.sign(residual) * np.float32(TAU), np.float32(0))
                residual -= part
                message.append(part)
            messages.append(message)
        # Everybody adds all messages to what is shared, and the others' to its own model.
        for sender, message in enumerate(messages):
            shared = _plus(shared, message)
            after = [
                values if rank == sender else _plus(values, message)
                for rank, values in enumerate(after)
            ]
        own = after
    return shared


def _plus(values: list[np.ndarray], message: list[np.ndarray]) -> list[np.ndarray]:
    return [value + part for value, part in zip(values, message, strict=True)]


def main(folder: pathlib.Path, names: list[str]) -> None:
    """Trains all, then compares."""
    keras.utils.set_random_seed(1 + keras_strom.rank())
    strategy = keras_strom.StromStrategy(
        threshold=keras_strom.FixedThreshold(TAU),
        residual_clipping=None,
        warmup_steps=0,
        max_staleness=0,
    )
    trained = []
    for name in names:
        with strategy.scope():
            model = build(name)
        start = [v.numpy() for v in model.trainable_variables]
        model.fit(MODELS[name][1](), LABELS, batch_size=BATCH, shuffle=False, verbose=0)
        assert strategy.last_report is not None
        after = [v.numpy() for v in model.trainable_variables]
        trained.append((name, start, after, strategy.last_report))
    if not keras_strom.is_chief():
        return
    results = {}
    for name, start, after, report in trained:
        want = oracle(name, start)
        pairs = list(zip(want, after, start, strict=True))
        results[name] = {
            "steps": report.steps,
            "replica_difference": report.max_replica_difference,
            "elements": sum(v.size for v in after),
            "moved": sum(int((v != s).sum()) for v, _, s in pairs),
            "different": sum(int((v != w).sum()) for v, w, _ in pairs),
            "largest_difference": max(float(np.abs(v - w).max()) for v, w, _ in pairs),
        }
    (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
