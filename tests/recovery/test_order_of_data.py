"""A dataset that shuffles comes to a worker that goes on as it would have to its predecessor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from keras_strom.recovery.resume import ResumableData

BATCHES = 6
EPOCHS = 5


class Resuming(tf.distribute.OneDeviceStrategy):  # type: ignore[misc]
    """Plain Keras with `ResumableData` where a StromStrategy has it.

    Attributes:
        data: of the `fit` that runs.
    """

    data: ResumableData

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        self.data = ResumableData(dataset, lambda one: one)
        return self.data


class Notes(keras.Sequential):
    """Keeps which rows each batch has."""

    def train_step(self, data: Any) -> dict[str, Any]:
        self.batches[-1].append(data[0].numpy().ravel().tolist())
        return {"rows": data[0][0, 0]}


class GoesOn(keras.callbacks.Callback):
    """Has a `fit` go on as one that begins after `epochs` and `batches`."""

    def __init__(self, epochs: int, batches: int, per_epoch: int | None) -> None:
        super().__init__()
        self._at = {"epochs": epochs, "batches": batches, "per_epoch": per_epoch}
        self._left = (per_epoch or 0) - batches

    def on_train_begin(self, logs: Any = None) -> None:
        self.model.distribute_strategy.data.go_on(**self._at)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.batches.append([])

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._at["batches"] and len(self.model.batches) == 1 and batch + 1 == self._left:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = False


def rows() -> Any:
    x = tf.range(4 * BATCHES)[:, None]
    return tf.data.Dataset.from_tensor_slices((x, x))


def numbers(*, anew: bool) -> Any:
    """As many rows of random numbers: others in each epoch, or the same."""
    drawn = tf.data.Dataset.random(seed=1, rerandomize_each_iteration=anew)
    return drawn.take(4 * BATCHES).map(lambda number: (number[None], number[None]))


DATA: dict[str, tuple[Callable[[], Any], int | None]] = {
    "shuffled": (lambda: rows().shuffle(64, seed=1).batch(4), BATCHES),
    "shuffled in parts": (lambda: rows().shuffle(64, seed=1).batch(4).shard(2, 1), BATCHES // 2),
    "shuffled after a cache": (lambda: rows().cache().shuffle(64, seed=1).batch(4), BATCHES),
    "shuffled before a cache": (lambda: rows().shuffle(64, seed=1).batch(4).cache(), BATCHES),
    "of unknown length": (
        lambda: rows().shuffle(64, seed=1).batch(4).filter(lambda *_: True),
        None,
    ),
    "in its own order": (lambda: rows().batch(4), BATCHES),
    "of random numbers": (lambda: numbers(anew=True).batch(4), BATCHES),
    "of the same random numbers": (lambda: numbers(anew=False).batch(4), BATCHES),
    "of one that shuffles beside one that does not": (
        lambda: (
            tf.data.Dataset.zip(rows(), rows().shuffle(64, seed=1))
            .map(lambda one, other: (other[0], one[0]))
            .batch(4)
        ),
        BATCHES,
    ),
}


def train(name: str, *, epochs: int = 0, batches: int = 0) -> list[list[list[int]]]:
    """The batches of each epoch from `epochs` on, the first without so many."""
    make, per_epoch = DATA[name]
    with Resuming("/cpu:0").scope():
        model = Notes([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", run_eagerly=True)
    model.batches = []
    goes_on = GoesOn(epochs, batches, per_epoch)
    model.fit(make(), initial_epoch=epochs, epochs=EPOCHS, callbacks=[goes_on], verbose=0)
    return [*model.batches]


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("batches", [0, 2])
def test_the_epochs_that_come_are_those_of_the_predecessor(name: str, batches: int) -> None:
    batches = batches if DATA[name][1] else 0  # Else nobody knows how many there were.
    want = train(name)[2:]
    got = train(name, epochs=2, batches=batches)
    assert got[1:] == want[1:]
    if name != "shuffled before a cache":  # What was left out is not in it.
        assert got[0] == want[0][batches:]


def test_a_fit_that_is_over_is_passed_over_for_the_next_with_the_same_data() -> None:
    def read(data: Any) -> list[list[int]]:
        return [batch[0].numpy().ravel().tolist() for batch in data]

    make, per_epoch = DATA["shuffled"]
    data = make()
    orders = [read(data) for _ in range(2 * EPOCHS + 1)]  # Two for each epoch, as Keras does.
    later = ResumableData(make(), lambda one: one)
    later.pass_over(EPOCHS, per_epoch)
    assert read(later) == orders[-1]
