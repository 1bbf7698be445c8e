"""Workers of a tree train by `fit`; each writes what it saw. Run by tests/test_tree.py.

tree.py OUTPUT_FOLDER
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import sys

import keras
import numpy as np

import keras_strom
from tests.scripts.lifecycle import TAU, build_dense, data


def main() -> None:
    """One fit of a few steps."""
    output = pathlib.Path(sys.argv[1])
    strategy = keras_strom.StromStrategy(threshold=keras_strom.FixedThreshold(TAU), warmup_steps=0)
    keras.utils.set_random_seed(100 + keras_strom.rank())
    with strategy.scope():
        model = build_dense()
    x, y = data(96, seed=1)
    model.fit(x, y, batch_size=4, epochs=2, verbose=0)
    weights = b"".join(np.asarray(w).tobytes() for w in model.get_weights())
    result = {
        "hash": hashlib.sha256(weights).hexdigest(),
        "report": dataclasses.asdict(strategy.last_report),
        "node": strategy._sharing.worker.status()["node"],
    }
    (output / f"{keras_strom.rank()}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
