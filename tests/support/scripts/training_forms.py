"""The ways in which Keras users train, each as a small case that any strategy can run.

tests/strategy/test_training_forms.py runs each case with plain Keras and the encoding of
tests/support/encoded_training.py, and with a lone StromStrategy worker. As a script, for two
workers: training_forms.py OUTPUT_FOLDER
"""

from __future__ import annotations

import contextlib
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_strom

TAU = 5e-3
ROWS = 64
BATCH = 8


class Place:
    """Where a case is trained: what differs between plain Keras and a strategy.

    Args:
        strategy: the StromStrategy; None = plain Keras.
        worker: in plain Keras, the `EncodedWorker` that stands around each step.
    """

    def __init__(self, strategy: Any = None, worker: Any = None) -> None:
        self.strategy = strategy
        self._worker = worker

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        return self.strategy.scope() if self.strategy else contextlib.nullcontext()

    def share(self, whole: Any) -> Any:
        """What a worker is to take of rows or batches; a strategy's `fit` sees to it itself."""
        return keras.tree.map_structure(lambda rows: rows[self._part], whole)

    def own_share(self, whole: Any) -> Any:
        """The same where nothing divides the data: in custom loops."""
        if self.strategy is None:
            return self.share(whole)
        part = slice(keras_strom.rank(), None, keras_strom.size())
        return keras.tree.map_structure(lambda rows: rows[part], whole)

    @property
    def size(self) -> int:
        """Workers that train together."""
        return self.strategy.num_workers if self.strategy else self._worker.size

    @property
    def _part(self) -> slice:
        if self._worker is None:
            return slice(None)
        return slice(self._worker.rank, None, self._worker.size)

    def fit(self, model: keras.Model, *arguments: Any, **options: Any) -> Any:
        """`fit`, as it is trained here."""
        callbacks = [self._worker.callback()] if self._worker else []
        options = {"verbose": 0, "shuffle": False, "epochs": 2, **options}
        return model.fit(*arguments, callbacks=callbacks, **options)

    def step(self, *models: Any) -> contextlib.AbstractContextManager[None]:
        """Stands around a step of a custom loop."""
        return self._worker.step(*models) if self._worker else contextlib.nullcontext()

    @contextlib.contextmanager
    def loop(self, *models: Any) -> Iterator[None]:
        """Stands around a custom loop."""
        if self.strategy:
            self.strategy.begin(*models)
        if self._worker:
            self._worker.begin(*models)
        yield
        if self.strategy:
            self.strategy.synchronize()
        if self._worker:
            self._worker.end()

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """`strategy.run`."""
        return self.strategy.run(function, arguments) if self.strategy else function(*arguments)


class Case:
    """A way to train: `build` gives the model, `train` trains it at a `Place`."""

    def __init__(self, build: Callable[[Place], Any], train: Callable[[Any, Place], Any]) -> None:
        self.build = build
        self.train = train


CASES: dict[str, Case] = {}
Train = Callable[[Any, Place], Any]


def case(build: Callable[[Place], Any]) -> Callable[[Train], Train]:
    """Adds a case under the name of the function that trains it."""

    def add(train: Train) -> Train:
        CASES[train.__name__] = Case(build, train)
        return train

    return add


def start(name: str, place: Place) -> keras.Model:
    """Builds a case's model, the same wherever it runs."""
    keras.utils.set_random_seed(3)
    with place.scope():
        return CASES[name].build(place)


# ------------------------------------------------------------------ models and data

_RANDOM = np.random.default_rng(1)
X = _RANDOM.normal(size=(ROWS, 6)).astype("float32")
X2 = _RANDOM.normal(size=(ROWS, 3)).astype("float32")
LABELS = _RANDOM.integers(0, 3, ROWS)
TARGETS = (X[:, :1] - X2[:, 1:2]).astype("float32")
WEIGHTS = _RANDOM.uniform(0, 2, ROWS).astype("float32")


def _classes() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _sequential(place: Place, **options: Any) -> keras.Model:
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3)]
    )
    options = {"optimizer": keras.optimizers.SGD(0.3), "jit_compile": False, **options}
    model.compile(loss=_classes(), metrics=["accuracy"], **options)
    return model


def _unbuilt(place: Place) -> keras.Model:
    class Subclassed(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = keras.layers.Dense(8, "tanh")
            self.out = keras.layers.Dense(3)

        def call(self, x: Any) -> Any:
            return self.out(self.hidden(x))

    model = Subclassed()
    if place.strategy is None:
        model(X[:1])  # Plain workers start together, so their weights must be made in order.
    model.compile("adam", _classes(), jit_compile=False)
    return model


def _named(place: Place) -> keras.Model:
    first, second = keras.Input((6,), name="first"), keras.Input((3,), name="second")
    hidden = keras.layers.Concatenate()([first, second])
    hidden = keras.layers.Dense(8, "tanh")(hidden)
    outputs = {
        "label": keras.layers.Dense(3, name="label")(hidden),
        "target": keras.layers.Dense(1, name="target")(hidden),
    }
    model = keras.Model({"first": first, "second": second}, outputs)
    model.compile(
        "adam",
        loss={"label": _classes(), "target": "mse"},
        loss_weights={"label": 0.5, "target": 2.0},
        metrics={"label": "accuracy"},
        jit_compile=False,
    )
    return model


def _listed(place: Place) -> keras.Model:
    first, second = keras.Input((6,)), keras.Input((3,))
    hidden = keras.layers.Dense(8, "tanh")(keras.layers.Concatenate()([first, second]))
    outputs = [keras.layers.Dense(3)(hidden), keras.layers.Dense(1)(hidden)]
    model = keras.Model([first, second], outputs)
    model.compile("adam", loss=[_classes(), "mse"], jit_compile=False)
    return model


class Batches(keras.utils.PyDataset):
    """ROWS in batches."""

    def __init__(self, x: np.ndarray, y: np.ndarray, **options: Any) -> None:
        super().__init__(**options)
        self._x, self._y = x, y

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return self._x[index], self._y[index]


def _batches(place: Place) -> tuple[np.ndarray, np.ndarray]:
    """x and y in batches: the first axis counts them."""
    return place.share((X.reshape(-1, BATCH, 6), LABELS.reshape(-1, BATCH)))


# ------------------------------------------------------------------ data


@case(_sequential)
def arrays(model: Any, place: Place) -> None:
    x, y = place.share((X, LABELS))
    place.fit(model, x, y, batch_size=BATCH, validation_data=(X, LABELS))


@case(_sequential)
def a_validation_split(model: Any, place: Place) -> None:
    if place.strategy:
        place.fit(model, X, LABELS, batch_size=BATCH, validation_split=0.25)
        return
    x, y = place.share((X[: ROWS * 3 // 4], LABELS[: ROWS * 3 // 4]))
    place.fit(model, x, y, batch_size=BATCH)


@case(_unbuilt)
def a_subclassed_model_that_fit_builds_on_a_dataset(model: Any, place: Place) -> None:
    place.fit(model, tf.data.Dataset.from_tensor_slices(_batches(place)))


@case(_named)
def named_inputs_and_outputs(model: Any, place: Place) -> None:
    x, y, weights = place.share(
        (
            {"first": X, "second": X2},
            {"label": LABELS, "target": TARGETS},
            {"label": WEIGHTS, "target": WEIGHTS[::-1].copy()},
        )
    )
    place.fit(model, x, y, sample_weight=weights, batch_size=BATCH)


@case(_listed)
def listed_inputs_and_outputs(model: Any, place: Place) -> None:
    x, y = place.share(([X, X2], [LABELS, TARGETS]))
    place.fit(model, x, y, batch_size=BATCH)


@case(_sequential)
def a_py_dataset(model: Any, place: Place) -> None:
    place.fit(model, Batches(*_batches(place)))


# Plain Keras reads with one worker here: others would go on in the middle where it starts over.


@case(_sequential)
def a_py_dataset_with_threads(model: Any, place: Place) -> None:
    several = place.strategy is not None
    place.fit(model, Batches(*_batches(place), workers=1 + several))


@case(_sequential)
def a_py_dataset_with_processes(model: Any, place: Place) -> None:
    several = place.strategy is not None
    batches = Batches(*_batches(place), workers=1 + several, use_multiprocessing=several)
    place.fit(model, batches)


@case(_sequential)
def a_generator(model: Any, place: Place) -> None:
    x, y = _batches(place)
    steps = len(X) // BATCH // place.size

    def forever() -> Iterator[Any]:
        while True:
            yield from zip(x, y, strict=True)

    place.fit(model, forever(), steps_per_epoch=steps)


@case(_sequential)
def class_weights(model: Any, place: Place) -> None:
    x, y = place.share((X, LABELS))
    place.fit(model, x, y, batch_size=BATCH, class_weight={0: 0.5, 1: 2.0, 2: 1.0})


@case(_sequential)
def sample_weights(model: Any, place: Place) -> None:
    x, y, weights = place.share((X, LABELS, WEIGHTS))
    place.fit(model, x, y, sample_weight=weights, batch_size=BATCH)


# ------------------------------------------------------------------ fit


def _several_steps_per_execution(place: Place) -> keras.Model:
    return _sequential(place, **({"steps_per_execution": 3} if place.strategy else {}))


@case(_several_steps_per_execution)
def several_steps_per_execution(model: Any, place: Place) -> None:
    place.fit(model, *place.share((X, LABELS)), batch_size=BATCH)


@case(lambda place: _sequential(place, run_eagerly=place.strategy is not None))
def run_eagerly(model: Any, place: Place) -> None:
    place.fit(model, *place.share((X, LABELS)), batch_size=BATCH, epochs=1)


@case(lambda place: _sequential(place, optimizer="adam"))
def a_second_fit_with_an_initial_epoch_and_steps_per_epoch(model: Any, place: Place) -> None:
    x, y = place.share((X, LABELS))
    place.fit(model, x, y, batch_size=BATCH, steps_per_epoch=2)
    place.fit(model, x, y, batch_size=BATCH, initial_epoch=2, epochs=4)
    # What looks at a model in between trains nothing, and sees all data wherever it runs.
    counted = model.evaluate(X, LABELS, batch_size=BATCH, verbose=0, return_dict=True)["accuracy"]
    assert counted == np.mean(model.predict(X, verbose=0).argmax(axis=1) == LABELS)
    model.test_on_batch(X, LABELS)
    assert model.predict_on_batch(X[:5]).shape == (5, 3)
    place.fit(model, x, y, batch_size=BATCH, epochs=1)


@case(_sequential)
def layers_that_are_frozen_and_thawed(model: Any, place: Place) -> None:
    for trainable in (False, True, False):
        model.layers[0].trainable = trainable
        model.compile(keras.optimizers.SGD(0.3), _classes(), jit_compile=False)
        frozen = model.layers[0].get_weights()
        place.fit(model, *place.share((X, LABELS)), batch_size=BATCH, epochs=1)
        moved = not np.array_equal(frozen[0], model.layers[0].get_weights()[0])
        assert moved == trainable


def _frozen_from_the_start(place: Place) -> keras.Model:
    frozen = keras.layers.Dense(8, "tanh", trainable=False)
    model = keras.Sequential([keras.Input((6,)), frozen, keras.layers.Dense(3)])
    model.compile(keras.optimizers.SGD(0.3), _classes(), jit_compile=False)
    return model


@case(_frozen_from_the_start)
def a_layer_that_was_made_frozen_and_thaws(model: Any, place: Place) -> None:
    place.fit(model, *place.share((X, LABELS)), batch_size=BATCH, epochs=1)
    model.layers[0].trainable = True
    model.compile(keras.optimizers.SGD(0.3), _classes(), jit_compile=False)
    place.fit(model, *place.share((X, LABELS)), batch_size=BATCH, epochs=1)


class OwnStep(keras.Model):
    """`train_step` as Keras's guides write it."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(8, "tanh")
        self.out = keras.layers.Dense(3)
        self.loss_fn = _classes()
        self.seen = keras.metrics.Mean(name="loss")

    def call(self, x: Any) -> Any:
        return self.out(self.hidden(x))

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_fn(y, self(x, training=True))
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self.seen.update_state(loss)
        return {m.name: m.result() for m in self.metrics}

    @property
    def metrics(self) -> list[Any]:
        return [self.seen]


def _own_step(place: Place) -> keras.Model:
    model = OwnStep()
    model(X[:1])
    model.compile("adam", jit_compile=False)
    return model


@case(_own_step)
def an_overridden_train_step(model: Any, place: Place) -> None:
    place.fit(model, *place.share((X, LABELS)), batch_size=BATCH)


class Halves(keras.Model):
    """Is never called on its data: it embeds both halves of each row, which should be alike."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, _ = data
        rows = tf.range(tf.shape(x)[0])
        with tf.GradientTape() as tape:
            likeness = tf.matmul(self(x[:, :3]), self(x[:, 3:]), transpose_b=True)
            loss = self.compute_loss(y=rows, y_pred=likeness)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return self.compute_metrics(None, rows, likeness)


def _halves(place: Place) -> keras.Model:
    inputs = keras.Input((3,))
    model = Halves(inputs, keras.layers.Dense(4)(inputs))
    model.compile("adam", _classes(), metrics=["accuracy"], jit_compile=False)
    return model


@case(_halves)
def a_train_step_that_calls_the_model_on_parts_of_its_data(model: Any, place: Place) -> None:
    place.fit(model, *place.share((X, LABELS)), batch_size=BATCH)


class Gan(keras.Model):
    """Two models with an optimizer each, trained in one step."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.Sequential([keras.Input((3,)), keras.layers.Dense(6)])
        self.discriminator = keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
        )
        self.losses_seen = [keras.metrics.Mean(name="d"), keras.metrics.Mean(name="g")]

    def compile(self, d_optimizer: Any, g_optimizer: Any, **options: Any) -> None:
        super().compile(**options)
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    @property
    def metrics(self) -> list[Any]:
        return self.losses_seen

    def train_step(self, data: Any) -> dict[str, Any]:
        real, noise = data
        loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
        both = tf.concat([self.generator(noise), real], axis=0)
        size = tf.shape(real)[0]
        labels = tf.concat([tf.ones((size, 1)), tf.zeros((size, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = loss_fn(labels, self.discriminator(both))
        weights = self.discriminator.trainable_variables
        self.d_optimizer.apply(tape.gradient(d_loss, weights), weights)
        with tf.GradientTape() as tape:
            fooled = self.discriminator(self.generator(noise))
            g_loss = loss_fn(tf.zeros((size, 1)), fooled)
        weights = self.generator.trainable_variables
        self.g_optimizer.apply(tape.gradient(g_loss, weights), weights)
        for metric, loss in zip(self.metrics, (d_loss, g_loss), strict=True):
            metric.update_state(loss)
        return {m.name: m.result() for m in self.metrics}


def _gan(place: Place) -> keras.Model:
    model = Gan()
    model.compile(keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.5), jit_compile=False)
    return model


@case(_gan)
def two_models_and_two_optimizers_in_one_train_step(model: Any, place: Place) -> None:
    place.fit(model, *place.share((X, X2)), batch_size=BATCH)


# ------------------------------------------------------------------ loops of the user's own


@case(_sequential)
def train_on_batch(model: Any, place: Place) -> None:
    x, y = place.own_share((X, LABELS))
    with place.loop(model):
        for at in range(0, len(x), BATCH):
            with place.step(model):
                model.train_on_batch(x[at : at + BATCH], y[at : at + BATCH])


def _with_optimizer(place: Place) -> keras.Model:
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3)]
    )
    model.optimizer = keras.optimizers.Adam(0.02)
    model.optimizer.build(model.trainable_variables)
    return model


def _make_step(model: Any) -> Callable[..., Any]:
    loss_fn = _classes()

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
        weights = model.trainable_variables
        gradients = tape.gradient(loss, weights)
        model.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return loss

    return step


def _own_batches(place: Place) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(place.own_share((X, LABELS))).batch(BATCH)


@case(_with_optimizer)
def a_loop_over_batches_in_python(model: Any, place: Place) -> None:
    train = tf.function(lambda x, y: place.run(_make_step(model), x, y))
    with place.loop(model):
        for x, y in _own_batches(place):
            with place.step(model):
                train(x, y)


@case(_with_optimizer)
def a_loop_without_functions(model: Any, place: Place) -> None:
    with place.loop(model):
        for x, y in _own_batches(place):
            with place.step(model):
                place.run(_make_step(model), x, y)


@case(_with_optimizer)
def a_loop_over_a_distributed_dataset_in_a_function(model: Any, place: Place) -> None:
    step = _make_step(model)
    batches = tf.data.Dataset.from_tensor_slices(_batches(place))
    if place.strategy is None:
        with place.loop(model):
            for x, y in batches:
                with place.step(model):
                    step(x, y)
        return

    @tf.function
    def epoch(dataset: Any) -> Any:
        total = 0.0
        for x, y in dataset:
            total += place.run(step, x, y)
        return total

    with place.loop(model):
        epoch(place.strategy.experimental_distribute_dataset(batches))


# ------------------------------------------------------------------ the two workers


def main(folder: pathlib.Path) -> None:
    """Runs every case in one job and writes each worker's weights."""
    rank = keras_strom.rank()
    strategy = keras_strom.StromStrategy(
        threshold=keras_strom.FixedThreshold(TAU),
        residual_clipping=None,
        warmup_steps=0,
        max_staleness=0,
    )
    place = Place(strategy)
    weights: dict[str, np.ndarray] = {}
    for name in CASES:
        model = start(name, place)
        CASES[name].train(model, place)
        weights |= {f"{name}/{i}": value for i, value in enumerate(model.get_weights())}
    np.savez(folder / f"{rank}.npz", **weights)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
