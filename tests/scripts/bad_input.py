"""A worker meets what tests/test_bad_input.py has prepared and prints in what words fit ends.

bad_input.py CASE; rank 1 is the one that differs.
"""

from __future__ import annotations

import sys

import keras
import numpy as np

import keras_strom


def main(case: str) -> None:
    """Trains as `case` says.

    An error of both workers is printed and no more, so that neither is ended because of the other.
    """
    rank = keras_strom.rank()
    odd = rank == 1
    scale = "mean" if case == "options" and odd else "sum"
    strategy = keras_strom.StromStrategy(update_scale=scale)
    with strategy.scope():
        units = 3 if case == "models" and odd else 2
        model = keras.Sequential(
            [keras.Input((2,)), keras.layers.Dense(units), keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
    rows = 1 if case == "one_row" else 16
    try:
        model.fit(np.ones((rows, 2)), np.ones((rows, 1)), batch_size=4, verbose=0)
    except keras_strom.StromError as error:
        if case == "one_row":
            raise
        sys.stdout.write(f"{type(error).__name__}: {error}\n")


if __name__ == "__main__":
    main(sys.argv[1])
