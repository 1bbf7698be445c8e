"""Workers of a tree train by `fit`; each writes what it saw. Run by tests/relay/test_tree.py.

tree.py OUTPUT_FOLDER
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import keras

import keras_strom
from keras_strom.strategy.status_reports import StatusReports
from tests.support.digest import digest
from tests.support.scripts.lifecycle import TAU, build_dense, data


class RecordPlace(keras.callbacks.Callback):
    """Where this worker hangs while all train: at the end some have left."""

    def __init__(self, strategy: keras_strom.StromStrategy) -> None:
        super().__init__()
        self._strategy = strategy
        self.node: dict[str, Any] = {}
        self.port = 0
        self.record = ""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch > 0:
            return
        sharing = self._strategy._sharing
        assert sharing is not None
        assert sharing.worker is not None
        status = sharing.worker.status()
        self.node, self.port = status["node"], status["port"]
        reports = StatusReports(lambda _: True)
        reports.follow(sharing)
        self.record = reports.record().to_json()


def main() -> None:
    """One fit of a few steps."""
    output = pathlib.Path(sys.argv[1])
    strategy = keras_strom.StromStrategy(threshold=keras_strom.FixedThreshold(TAU), warmup_steps=0)
    keras.utils.set_random_seed(100 + keras_strom.rank())
    with strategy.scope():
        model = build_dense()
    x, y = data(96, seed=1)
    place = RecordPlace(strategy)
    model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[place])
    report = strategy.last_report
    assert report is not None
    result = {
        "hash": digest(model.get_weights()),
        "difference": report.max_replica_difference,
        "threshold": report.threshold,
        "node": place.node,
        "port": place.port,
        "record": place.record,
    }
    (output / f"{keras_strom.rank()}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
