"""How a `fit` of two workers ends: one that succeeds, fails or meets a NaN, and the next one.

Run by tests/strategy/test_fit_endings.py: fit_endings.py OUTPUT_FOLDER MAX_STALENESS [CASE ...],
where the second is "None" or a number; without names all cases. They go through one strategy, one
after the other, so each also is the next fit of the one before. A case returns what its test looks
at.
"""

from __future__ import annotations

import functools
import json
import logging
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_strom
from tests.support.digest import digest
from tests.support.scripts.lifecycle import Warnings

CASES: dict[str, Callable[[Place], dict[str, Any]]] = {}


def case(function: Callable[[Place], dict[str, Any]]) -> Callable[[Place], dict[str, Any]]:
    """Registers a case under its name."""
    CASES[function.__name__] = function
    return function


class Place:
    """What a case has."""

    def __init__(self, folder: pathlib.Path, strategy: keras_strom.StromStrategy) -> None:
        self.folder = folder
        self.strategy = strategy
        self.rank = keras_strom.rank()
        self.is_chief = keras_strom.is_chief()

    def model(
        self, *, metrics: list[Any] | None = None, scales_loss: bool = False, **dense: Any
    ) -> keras.Model:
        """A small classifier, from the same start on all workers or not."""
        with self.strategy.scope():
            model = keras.Sequential(
                [
                    keras.Input((6,)),
                    keras.layers.Dense(16, activation="tanh", **dense),
                    keras.layers.BatchNormalization(),
                    keras.layers.Dense(3),
                ]
            )
            loss = keras.losses.CategoricalCrossentropy(from_logits=True)
            optimizer = keras.optimizers.Adam(0.01)
            if scales_loss:
                optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1.0)
            model.compile(optimizer, loss, metrics=metrics)
        return model


def data(rows: int = 96, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """The same on every worker; labels are one-hot."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 6)).astype("float32")
    return x, np.eye(3, dtype="float32")[random.integers(0, 3, rows)]


def await_file(path: pathlib.Path) -> None:
    """Waits until another worker has left it; the test's own deadline is the bound."""
    while not path.exists():
        time.sleep(0.01)


class SavesAfterTheOther(keras.callbacks.Callback):
    """On the chief: writes the model's file when the other worker's callbacks are through."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not self._place.is_chief:
            (self._place.folder / "through").touch()
            return
        await_file(self._place.folder / "through")
        self.model.save(self._place.folder / "best.keras")


@case
def the_chief_writes_what_all_read(place: Place) -> dict[str, Any]:
    model = place.model()
    model.fit(*data(), batch_size=8, verbose=0, callbacks=[SavesAfterTheOther(place)])
    loaded = keras.models.load_model(place.folder / "best.keras")
    same = zip(loaded.get_weights(), model.get_weights(), strict=True)
    return {"equal": all(np.array_equal(a, b) for a, b in same)}


class Counts(keras.callbacks.Callback):
    """Counts batches; off the chief it wants to stop after the second of them."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.batches = 0
        self._place = place

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1
        self.model.stop_training = self.batches == 2 and not self._place.is_chief


@case
def worker_1_wants_to_stop_within_an_epoch(place: Place) -> dict[str, Any]:
    counts = Counts(place)
    history = place.model().fit(*data(), batch_size=8, epochs=2, verbose=0, callbacks=[counts])
    return {"batches": counts.batches, "epochs": history.epoch}


class WantsToStop(keras.callbacks.Callback):
    """After the first epoch, off the chief."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = epoch == 0 and not keras_strom.is_chief()


@case
def worker_1_wants_to_stop_after_an_epoch(place: Place) -> dict[str, Any]:
    return _fit_that_is_stopped(place, WantsToStop(), 2)


@case
def early_stopping_of_worker_1_comes_first(place: Place) -> dict[str, Any]:
    """As where the workers' epochs do not meet, and each has averaged logs of its own."""
    patience = 99 if place.is_chief else 0
    stopping = keras.callbacks.EarlyStopping("loss", min_delta=99, patience=patience)
    return _fit_that_is_stopped(place, stopping, 4) | {"stopped": stopping.stopped_epoch}


def _fit_that_is_stopped(
    place: Place, callback: keras.callbacks.Callback, epochs: int
) -> dict[str, Any]:
    warnings = Warnings()
    logger = logging.getLogger("keras_strom")
    logger.addHandler(warnings)
    history = place.model().fit(
        *data(), batch_size=8, epochs=epochs, verbose=0, callbacks=[callback]
    )
    logger.removeHandler(warnings)
    return {"epochs": history.epoch, "warned": [w for w in warnings.words if "stop_training" in w]}


@case
def the_arrays_of_worker_1_are_shorter(place: Place) -> dict[str, Any]:
    warnings = Warnings()
    logger = logging.getLogger("keras_strom")
    logger.addHandler(warnings)
    model = place.model()
    for rows in (96, 96 if keras_strom.is_chief() else 80):
        model.fit(*data(rows), batch_size=8, verbose=0)
    logger.removeHandler(warnings)
    return {"warned": [words for words in warnings.words if "rows" in words]}


@case
def a_metric_has_several_values(place: Place) -> dict[str, Any]:
    model = place.model(metrics=[keras.metrics.F1Score(name="f1")])
    history = model.fit(
        *data(), batch_size=8, verbose=0, validation_data=data(seed=2), epochs=2
    ).history
    return {name: np.shape(history[name]) for name in ("loss", "f1", "val_f1")}


class Looks(keras.callbacks.Callback):
    """Notes how much of the constrained kernel is negative wherever a callback may look at it."""

    def __init__(self) -> None:
        super().__init__()
        self.negative: list[float] = []

    def look(self) -> None:
        """Notes it."""
        self.negative.append(float(np.mean(self.model.layers[0].kernel.numpy() < 0)))

    def on_test_begin(self, logs: Any = None) -> None:
        self.look()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.look()

    def on_train_end(self, logs: Any = None) -> None:
        self.look()


@case
def constraints_hold_wherever_one_looks(place: Place) -> dict[str, Any]:
    model = place.model(
        kernel_constraint=keras.constraints.NonNeg(), bias_constraint=keras.constraints.MaxNorm(0.1)
    )
    looks = Looks()
    before = model.get_weights()
    model.fit(
        *data(), batch_size=4, verbose=0, epochs=3, validation_data=data(seed=2), callbacks=[looks]
    )
    looks.look()
    bias = model.layers[0].bias.numpy()
    return {
        "negative": looks.negative,
        "norm": float(np.linalg.norm(bias)),
        "moved": not np.array_equal(before[0], model.get_weights()[0]),
        "assigned_outside": place.strategy.last_report.assigned_outside,
        "digest": digest(model.get_weights()),
    }


def learns(model: keras.Model) -> bool:
    """Whether a further fit of all works, and all have the same afterwards."""
    before = model.get_weights()
    losses = model.fit(*data(), batch_size=8, verbose=0, epochs=2).history["loss"]
    moved = any(not np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
    return moved and bool(np.isfinite(losses).all())


class Notes(keras.callbacks.Callback):
    """Notes which of its methods Keras calls last, and what loss it is told of."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.called.append(f"epoch {epoch} ends, loss {'nan' if np.isnan(logs['loss']) else 'ok'}")

    def on_train_end(self, logs: Any = None) -> None:
        self.called.append("training ends")


def meets_a_nan(
    place: Place, rank: int, *callbacks: Any, scales_loss: bool = False
) -> dict[str, Any]:
    """A fit in whose first epoch one worker's row holds a NaN, and the next one.

    It has more epochs than the other worker trains before it hears of that.
    """
    model = place.model(scales_loss=scales_loss)
    x, y = data()
    model.fit(x, y, batch_size=8, verbose=0)
    poisoned = x.copy()
    poisoned[80 + rank] = np.nan  # A row of that worker alone.
    notes = Notes()
    raised, history = "", {}
    try:
        fit = model.fit(
            poisoned, y, batch_size=8, verbose=0, epochs=200, callbacks=[notes, *callbacks]
        )
        history = fit.history
    except keras_strom.errors.StromError as error:
        raised = f"{type(error).__name__}: {error}"
    return {
        "raised": raised,
        "loss_is_nan": bool(np.isnan(history.get("loss", [0.0])[-1])),
        "epochs": len(history.get("loss", [])),
        "called": notes.called,
        "finite": all(np.isfinite(value).all() for value in model.get_weights()),
        "digest": digest(model.get_weights()),
        "learns": learns(model),
        "digest_after": digest(model.get_weights()),
    }


@case
def a_nan_of_worker_1_ends_the_training(place: Place) -> dict[str, Any]:
    return meets_a_nan(place, 1, keras.callbacks.TerminateOnNaN())


@case
def a_nan_of_the_chief_ends_the_training(place: Place) -> dict[str, Any]:
    return meets_a_nan(place, 0, keras.callbacks.TerminateOnNaN())


@case
def a_nan_of_worker_1_that_loss_scaling_skips(place: Place) -> dict[str, Any]:
    return meets_a_nan(place, 1, keras.callbacks.TerminateOnNaN(), scales_loss=True)


@case
def a_nan_that_no_callback_looks_for(place: Place) -> dict[str, Any]:
    return meets_a_nan(place, 1)


class Raises(keras.callbacks.Callback):
    """Raises in one of its methods."""

    def __init__(self, method: str) -> None:
        super().__init__()

        def fail(*_: Any, **__: Any) -> None:
            raise RuntimeError(f"on purpose in {method}")

        setattr(self, method, fail)


def attempt(place: Place, model: keras.Model, rank: int, method: str) -> str:
    """A fit in which a worker's callback raises, and with what it ends here."""
    callbacks = [Raises(method)] if place.rank == rank else []
    try:
        model.fit(*data(), batch_size=8, verbose=0, epochs=3, callbacks=callbacks)
    except (RuntimeError, keras_strom.errors.StromError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def fails(place: Place, rank: int, method: str, times: int = 1) -> dict[str, Any]:
    """Fits in which a worker's callback raises, and the next one."""
    model = place.model()
    raised = [attempt(place, model, rank, method) for _ in range(times)]
    return {
        "raised": raised[0],
        "all_raised": raised,
        "learns": learns(model),
        "digest": digest(model.get_weights()),
        "workers": place.strategy.last_report.updates_applied > 0,
    }


FAILING = {
    "before_the_start": "on_train_begin",
    "in_a_batch": "on_train_batch_end",
    "after_an_epoch": "on_epoch_end",
    "at_the_end": "on_train_end",
}
for _where, _method in FAILING.items():
    for _rank in range(2):
        CASES[f"worker_{_rank}_fails_{_where}"] = functools.partial(
            fails, rank=_rank, method=_method
        )


@case
def worker_1_fails_before_the_start_three_times(place: Place) -> dict[str, Any]:
    return fails(place, 1, "on_train_begin", times=3)


class FitsAnother(keras.callbacks.Callback):
    """Trains a probe in one of its methods, once."""

    def __init__(self, place: Place, method: str) -> None:
        super().__init__()

        def fit(*_: Any, **__: Any) -> None:
            place.model().fit(*data(), batch_size=8, verbose=0)

        setattr(self, method, fit)


@case
def begins_in_a_callback(place: Place) -> dict[str, Any]:
    model = place.model()
    begin = keras.callbacks.LambdaCallback(on_train_end=lambda _: place.strategy.begin(model))
    raised = ""
    try:
        model.fit(*data(), batch_size=8, verbose=0, callbacks=[begin])
    except keras_strom.errors.StromError as error:
        raised = str(error)
    return {"raised": raised, "learns": learns(model), "digest": digest(model.get_weights())}


@case
def fits_in_a_callback(place: Place) -> dict[str, Any]:
    raised = {}
    for method in ("on_epoch_end", "on_train_end"):
        model = place.model()
        try:
            model.fit(*data(), batch_size=8, verbose=0, callbacks=[FitsAnother(place, method)])
        except keras_strom.errors.StromError as error:
            raised[method] = str(error)
    return {"raised": raised, "learns": learns(model), "digest": digest(model.get_weights())}


class AssignsItself(keras.Model):  # type: ignore[misc]
    """Whose `train_step` has no optimizer change its weights."""

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        variables = [one.value for one in self.trainable_variables]
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.1 * gradient)
        return {"loss": loss}


@case
def a_train_step_assigns_all_itself(place: Place) -> dict[str, Any]:
    with place.strategy.scope():
        x = keras.Input((6,))
        model = AssignsItself(x, keras.layers.Dense(3)(x))
        model.compile("sgd", "mse")
    raised = ""
    try:
        model.fit(*data(), batch_size=8, verbose=0)
    except keras_strom.errors.StromError as error:
        raised = f"{type(error).__name__}: {error}"
    return {"raised": raised, "learns": learns(place.model())}


@case
def the_first_fit_fails(place: Place) -> dict[str, Any]:
    return fails(place, 1, "on_train_begin")


def main(folder: pathlib.Path, max_staleness: str, *names: str) -> None:
    """Goes through all cases."""
    staleness = None if max_staleness == "None" else int(max_staleness)
    place = Place(folder, keras_strom.StromStrategy(max_staleness=staleness))
    # Before anything has started nobody has what another could go on without.
    names = names or tuple(sorted(CASES, key=lambda name: name != "the_first_fit_fails"))
    results = {name: CASES[name](place) for name in names}
    (folder / f"{place.rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), *sys.argv[2:])
