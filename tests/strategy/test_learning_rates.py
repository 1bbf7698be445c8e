"""With which learning rates workers go on after an epoch."""

from __future__ import annotations

import keras
import numpy as np
import numpy.typing as npt
import pytest

from keras_strom.strategy import learning_rates
from keras_strom.strategy.callbacks import off_the_chief
from keras_strom.strategy.trackers import on_chief


def _model(rate: float) -> keras.Model:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(rate), "mse")
    return model


def _after(*, is_chief: bool, follows: bool) -> float:
    """The rate of a worker with 0.5 whose chief has 0.25."""
    model = _model(0.5)

    def average(own: npt.NDArray[np.float64]) -> learning_rates.Averaged:
        chiefs = own if is_chief else np.asarray([0.25, 1.0])
        return (chiefs + (0 if is_chief else own)) / 2, 2

    learning_rates.share([model], average, is_chief=is_chief, follows=follows)
    return float(model.optimizer.learning_rate)


@pytest.mark.parametrize(
    ("is_chief", "follows", "rate"),
    [(True, True, 0.5), (False, True, 0.25), (False, False, 0.5)],
    ids=["chief", "follows the chief", "follows a schedule"],
)
def test_whose_rate_a_worker_has(is_chief: bool, follows: bool, rate: float) -> None:
    assert _after(is_chief=is_chief, follows=follows) == rate


def test_a_schedule_of_this_workers_own_is_found() -> None:
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    plateau = keras.callbacks.ReduceLROnPlateau()
    assert learning_rates.follows_schedule([plateau, schedule])
    assert not learning_rates.follows_schedule([plateau])
    assert not learning_rates.follows_schedule(off_the_chief([on_chief(schedule)]))


def test_the_history_of_every_worker_has_the_rates_that_a_plateau_tells() -> None:
    plateau = keras.callbacks.ReduceLROnPlateau("loss")
    model = _model(0.5)
    told: list[dict[str, float]] = []
    for callback in (plateau, *off_the_chief([plateau])):
        logs = {"loss": 1.0}
        callback.set_model(model)
        callback.on_train_begin()
        callback.on_epoch_end(0, logs)
        told.append(logs)
    assert told == [{"loss": 1.0, "learning_rate": 0.5}] * 2
