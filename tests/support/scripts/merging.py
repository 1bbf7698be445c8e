"""Workers whose updates are merged train by `fit`; each writes what it saw.

Run by tests/relay/test_merging.py: merging.py OUTPUT_FOLDER THRESHOLD_ALGORITHM_IN_JSON
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
from typing import Any

import keras

import keras_strom
from benchmarks.update_accounts import Account
from tests.support.digest import digest
from tests.support.scripts.lifecycle import build_dense, data


class Notes(keras.callbacks.Callback):  # type: ignore[misc]
    """The thresholds of every step, and the node's status while all train."""

    def __init__(self, strategy: keras_strom.StromStrategy) -> None:
        super().__init__()
        self._strategy = strategy
        self.thresholds: list[float] = []
        self.node: dict[str, Any] = {}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.thresholds += self._strategy._sharing.step.thresholds

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.node = self._strategy._sharing.worker.status()["node"]


def main() -> None:
    """Two epochs of small batches."""
    output, options = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
    strategy = keras_strom.StromStrategy(
        threshold=keras_strom.AdaptiveThreshold(**options), warmup_steps=0
    )
    keras.utils.set_random_seed(100 + keras_strom.rank())
    with strategy.scope():
        model = build_dense()
    x, y = data(240, seed=1)
    notes = Notes(strategy)
    model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[notes])
    report, sharing = strategy.last_report, strategy._sharing
    status = sharing.worker.status()
    result = {
        "hash": digest(model.get_weights()),
        "difference": report.max_replica_difference,
        "applied": report.updates_applied,
        "account": dataclasses.asdict(Account.of(status, report.updates_applied)),
        "taken": status["updates_taken"],
        "thresholds": notes.thresholds,
        "merges": notes.node["merges"],
        "publications": notes.node["publications"],
        "depth": notes.node["depth"],
    }
    (output / f"{keras_strom.rank()}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
