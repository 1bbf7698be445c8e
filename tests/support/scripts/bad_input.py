"""A worker meets what tests/house/test_bad_input.py has prepared and prints in what words fit ends.

bad_input.py CASE; rank 1 is the one that differs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_strom


def say(error: BaseException, about: str = "") -> None:
    """Prints an error in one line."""
    sys.stdout.write(f"{about}{type(error).__name__}: {error}\n")


def build(hidden: int = 2) -> keras.Model:
    """A small model."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(hidden), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    return model


class OneBatch(keras.utils.PyDataset):  # type: ignore[misc]
    """Too few for two workers."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return np.ones((4, 2), np.float32), np.ones((4, 1), np.float32)


def misuse() -> None:
    """Says what one error after another is; none may end the job or disturb the next."""
    x, y = np.ones((16, 2), np.float32), np.ones((16, 1), np.float32)
    options = {"batch_size": 4, "verbose": 0}

    def attempt(about: str, function: Callable[[], Any]) -> None:
        try:
            function()
        except (keras_strom.StromError, TypeError) as error:
            say(error, f"{about}: ")

    outside = build()
    outside.fit(x, y, **options)  # Before the strategy nothing is amiss.
    strategy = keras_strom.StromStrategy()
    with strategy.scope():
        model = build()
        model.optimizer.build(model.trainable_variables)
        outside.compile("sgd", "mse")
    attempt("compiled in scope", lambda: outside.fit(x, y, **options))
    attempt("second strategy", keras_strom.StromStrategy)
    attempt("train_on_batch", lambda: model.train_on_batch(x, y))
    model.evaluate(x, y, verbose=0)
    model.fit(x, y, **options)
    attempt("misspelt", lambda: model.fit(x, y, epoch=3))
    attempt("no data", lambda: model.fit(x[:1], y[:1], **options))
    one_batch = (batch for batch in [(x, y)])
    attempt("no batch of a generator", lambda: model.fit(one_batch, epochs=1, verbose=0))
    model.fit(x, y, **options)
    attempt("no batch of a PyDataset", lambda: model.fit(OneBatch(), verbose=0))
    attempt(
        "outside run",
        lambda: model.optimizer.apply([tf.zeros(v.shape) for v in model.trainable_variables]),
    )
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        own = build()
    attempt("own", lambda: own.fit(x, y, **options))

    strategy.begin(model)
    with strategy.scope():
        late = build()
    attempt("created late", lambda: late.train_on_batch(x, y))
    attempt("fit in a loop", lambda: model.fit(x, y, **options))
    model.train_on_batch(x, y)
    assert strategy.synchronize() is not None
    weights = model.get_weights()
    attempt("train_on_batch again", lambda: model.train_on_batch(x, y))
    np.testing.assert_equal(model.get_weights(), weights)  # It has trained nothing.
    # The space has grown by `late`, which is a model as good as any now.
    late.fit(x, y, **options)
    model.fit(x, y, **options)
    with strategy.scope():
        # As many parameters, in other places.
        sizes = (2, 1) if keras_strom.rank() else (1, 2)
        other = keras.Sequential([keras.Input((3,)), *(keras.layers.Dense(n) for n in sizes)])
        other.compile("sgd", "mse", jit_compile=False)
    attempt("shapes", lambda: other.fit(np.ones((16, 3)), np.ones((16, 1)), **options))
    attempt("after an error", lambda: model.fit(x, y, **options))


def _options(case: str, odd: bool) -> dict[str, Any]:
    """Those of a strategy in a case, on a worker or on the one that differs."""
    if case == "options":
        return {"update_scale": "mean" if odd else "sum"}
    if case == "methods":
        return {"method": keras_strom.SparkNet(steps=5) if odd else keras_strom.MPCA(phases=1)}
    if case == "a method on one":
        return {"method": keras_strom.MPCA(phases=1) if odd else None}
    return {"method": keras_strom.MPCA()} if case == "too small for a method" else {}


def main(case: str) -> None:
    """Trains as `case` says.

    An error of both workers is printed and no more, so that neither is ended because of the other.
    """
    if case == "misuse":
        misuse()
        return
    odd = keras_strom.rank() == 1
    strategy = keras_strom.StromStrategy(**_options(case, odd))
    with strategy.scope():
        large_enough = 16 if case in ("methods", "a method on one") else 2
        model = build(hidden=3 if case == "models" and odd else large_enough)
        if case == "frozen on one":
            model.layers[0].trainable = not odd
            model.compile("sgd", "mse", jit_compile=False)
        if case == "optimizers":
            model.compile("sgd" if odd else "adam", "mse", jit_compile=False)
        if case == "losses":
            model.compile("sgd", "mse" if odd else "mae", jit_compile=False)
        if case == "metrics":
            model.compile("sgd", "mse", metrics=["mae"] if odd else [], jit_compile=False)
    rows = 1 if case == "one_row" else 16
    try:
        model.fit(np.ones((rows, 2)), np.ones((rows, 1)), batch_size=4, verbose=0)
    except keras_strom.StromError as error:
        if case == "one_row":
            raise
        say(error)


if __name__ == "__main__":
    main(sys.argv[1])
