"""Two workers save, restore and let callbacks decide; each writes what it saw.

Run by tests/strategy/test_state.py: state.py OUTPUT_FOLDER MAX_STALENESS PART, where the second
part is another job that goes on from what the first has left.
"""

from __future__ import annotations

import json
import logging
import os
import pathlib
import sys
from typing import Any

import keras
import numpy as np

import keras_strom
from tests.support.scripts.elastic import wait_for
from tests.support.scripts.lifecycle import Warnings, data

FIT: dict[str, Any] = {"batch_size": 8, "shuffle": False, "verbose": 0}


def build(optimizer: Any = "adam") -> keras.Model:
    """Dense and BatchNormalization."""
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    return model


class FilesByProcess(keras.callbacks.Callback):
    """A user's own callback: it runs on every worker."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__()
        self._folder = folder

    def on_train_end(self, logs: Any = None) -> None:
        (self._folder / f"user_{keras_strom.rank()}").touch()


class WeightsAtStart(keras.callbacks.Callback):
    """The weights at the start of each `fit`, of which nobody trains a step before all know them.

    Without order another worker's first updates may come as soon as it has taken a step.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__()
        self._folder = folder
        self.weights: list[list[Any]] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.weights.append(self.model.get_weights())
        fit = len(self.weights)
        (self._folder / f"started_{fit}_{keras_strom.rank()}").touch()
        wait_for(str(self._folder), f"started_{fit}_{1 - keras_strom.rank()}")


class Interrupt(keras.callbacks.Callback):
    """Ends the process's training at the start of an epoch, as a lost job would."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self._epoch = epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == self._epoch:
            raise KeyboardInterrupt


class Rates(keras.callbacks.Callback):
    """The epochs that were trained, and with which learning rate and step count they began."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[int] = []
        self.rates: list[float] = []
        self.steps: list[int] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append(epoch)
        self.rates.append(float(self.model.optimizer.learning_rate))
        self.steps.append(int(self.model.optimizer.iterations.numpy()))


def first_part(folder: pathlib.Path, strategy: keras_strom.StromStrategy) -> dict[str, Any]:
    """Files, decisions, weights loaded between fits, and a backup that an interrupt leaves."""
    rank = keras_strom.rank()
    own = folder / str(rank)  # what the callbacks of this worker write
    own.mkdir()
    x, y = data(96, seed=1)
    result: dict[str, Any] = {}

    with strategy.scope():
        model = build()
    warnings = Warnings()
    logging.getLogger("keras_strom").addHandler(warnings)
    model.fit(
        x,
        y,
        epochs=2,
        validation_data=data(16, seed=2),
        callbacks=[
            keras.callbacks.ModelCheckpoint(own / "{epoch}.keras"),
            keras.callbacks.ModelCheckpoint(
                own / "best.weights.h5", "val_loss", save_best_only=True, save_weights_only=True
            ),
            keras.callbacks.CSVLogger(str(own / "log.csv")),
            keras.callbacks.TensorBoard(str(own / "board"), histogram_freq=1),
            keras.callbacks.TerminateOnNaN(),
            FilesByProcess(folder),
        ],
        **FIT,
    )
    result["files"] = sorted(path.name for path in own.iterdir())
    if rank == 0:
        model.save(folder / "trained.keras")
        model.export(folder / "exported", verbose=False)
        np.savez(folder / "trained.npz", x=x, y=model.predict(x, verbose=0))

    # Only this worker assigns between two fits: the chief's weights go on.
    kept = model.get_weights()
    if rank == 1:
        model.set_weights([value + 1 for value in kept])
    start = WeightsAtStart(folder)
    model.fit(x, y, epochs=1, callbacks=[start], **FIT)
    result["went_on_from_the_chiefs"] = all(
        (a == b).all() for a, b in zip(kept, start.weights[0], strict=True)
    )
    result["warnings"] = warnings.words

    # The chief loads what it had saved; so does everybody, then.
    if rank == 0:
        model.load_weights(folder / "trained.keras")
    model.fit(x, y, epochs=1, callbacks=[start], **FIT)
    result["took_what_the_chief_loaded"] = all(
        (a == b).all() for a, b in zip(kept, start.weights[1], strict=True)
    )

    # The monitored metric never gets better, on the chief alone.
    rates = Rates()
    reduce = keras.callbacks.ReduceLROnPlateau(
        "loss", mode="max" if rank == 0 else "min", factor=0.5, patience=1, min_delta=0.0
    )
    with strategy.scope():
        model = build(keras.optimizers.SGD(0.25))
    model.fit(x, y, epochs=4, callbacks=[reduce, rates], **FIT)
    result["reduced"] = rates.rates
    result["last_rate"] = float(model.optimizer.learning_rate)

    # Each worker's own schedule goes by the rate that it finds.
    halves = keras.callbacks.LearningRateScheduler(
        lambda epoch, rate: rate / 2 if epoch else 1e-3 * (rank + 1)
    )
    rates = Rates()
    model.fit(x, y, epochs=3, callbacks=[halves, rates], **FIT)
    result["scheduled"] = rates.rates

    # Everybody assigns, and trains at a rate of zero: what comes of it is what was assigned.
    model.set_weights([np.full_like(value, 0.5) for value in model.get_weights()])
    model.optimizer.learning_rate = 0.0
    model.fit(x, y, epochs=1, **FIT)
    result["assigned"] = [value.numpy().tolist() for value in model.trainable_variables]

    with strategy.scope():
        model = build(keras.optimizers.Adam(0.03))
    backup = keras.callbacks.BackupAndRestore(str(folder / f"backup_{min(rank, backups() - 1)}"))
    try:
        model.fit(x, y, epochs=5, callbacks=[backup, Interrupt(2)], **FIT)
    except KeyboardInterrupt:
        result["interrupted"] = True
    if rank == 0:
        result["steps"] = int(model.optimizer.iterations.numpy())
    return result


def backups() -> int:
    """One folder for all workers, or one each: machines without a common file system."""
    return int(os.environ.get("TEST_BACKUP_FOLDERS", "1"))


def second_part(folder: pathlib.Path, strategy: keras_strom.StromStrategy) -> dict[str, Any]:
    """Another job: restores the backup; loads the model in scope and trains on."""
    rank = keras_strom.rank()
    x, y = data(96, seed=1)
    with strategy.scope():
        model = build(keras.optimizers.Adam(0.01))
    backup = keras.callbacks.BackupAndRestore(str(folder / f"backup_{min(rank, backups() - 1)}"))
    rates = Rates()
    model.fit(x, y, epochs=5, callbacks=[backup, rates], **FIT)
    result: dict[str, Any] = {"epochs": rates.epochs, "rates": rates.rates, "steps": rates.steps}
    result["backup_is_gone"] = not (folder / "backup_0").exists()
    result["weights"] = [w.tolist() for w in model.get_weights()]

    with strategy.scope():
        loaded = keras.models.load_model(folder / "trained.keras")
    result["loaded_steps"] = int(loaded.optimizer.iterations.numpy())
    loaded.fit(x, y, epochs=1, **FIT)
    result["loaded"] = [w.tolist() for w in loaded.get_weights()]

    # Each worker has a layer adapted to data of its own.
    with strategy.scope():
        scaled = keras.layers.Normalization()
        scaled.adapt(x[rank::2] * (1 + rank))
        model = keras.Sequential([keras.Input((6,)), scaled, keras.layers.Dense(3)])
        model.compile("adam", "mse")
    model.fit(x, x[:, :3], epochs=1, **FIT)
    result["adapted"] = model.predict(x[:8], verbose=0).tolist()
    return result


def main() -> None:
    """Runs one part."""
    folder, staleness, part = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    rank = keras_strom.rank()
    keras.utils.set_random_seed(100 + rank)
    strategy = keras_strom.StromStrategy(
        threshold=keras_strom.FixedThreshold(1e-3),
        warmup_steps=0,
        max_staleness=None if staleness == "None" else int(staleness),
    )
    result = (first_part if part == "1" else second_part)(folder, strategy)
    (folder / f"{part}_{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
