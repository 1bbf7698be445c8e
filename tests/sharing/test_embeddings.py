"""Embeddings: a step costs the rows looked up, and shares as one over the whole table does.

Rows that still hold a threshold or more are visited again in the next step, so with a fixed
threshold the messages are those of a pass over the whole table, bit for bit.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_strom import FixedThreshold, ResidualClipping, StromStrategy, errors
from keras_strom._native.ops import operations
from keras_strom._native.replica import Replica
from keras_strom.sharing import touched

ROWS, WIDTH, BATCH = 500, 4, 8
TAU = 2e-3
THRESHOLD = FixedThreshold(TAU)


def build(
    optimizer: Any, *, rows: int = ROWS, twice: bool = False, **compile_options: Any
) -> keras.Model:
    """Looks up three rows for each example, from one table; `twice` in two layers' calls."""
    first, second = keras.Input((3,), dtype="int32"), keras.Input((3,), dtype="int32")
    table = keras.layers.Embedding(rows, WIDTH)
    found = table(first)
    if twice:
        found = keras.layers.Concatenate(axis=1)([found, table(second)])
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(found))
    model = keras.Model([first, second], outputs)
    model.compile(optimizer, "mse", jit_compile=False, **compile_options)
    return model


def data(examples: int, rows: int = ROWS, seed: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
    random = np.random.default_rng(seed)
    lookups = [random.integers(0, rows, (examples, 3)).astype("int32") for _ in range(2)]
    lookups[0][:, 1] = lookups[0][:, 0]  # the same row repeatedly
    return lookups, random.normal(size=(examples, 1)).astype("float32")


def train(
    make: Any, *, threshold: FixedThreshold = THRESHOLD, **form: Any
) -> tuple[list[np.ndarray], np.ndarray, StromStrategy]:
    """Weights, the residual and the strategy after two epochs."""
    keras.utils.set_random_seed(3)
    strategy = StromStrategy(
        threshold=threshold,
        residual_clipping=ResidualClipping(5, every=3),
        warmup_steps=0,
        always_encode=True,
    )
    with strategy.scope():
        model = build(make(), **form)
    x, y = data(64)
    model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    sharing = strategy._sharing
    assert sharing is not None
    residual = sharing.replica.read_residual(0, sharing.space.size)
    return model.get_weights(), residual, strategy


def visited(strategy: StromStrategy) -> float:
    sharing = strategy._sharing
    assert sharing is not None
    return sharing.step.totals.elements


OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda: keras.optimizers.SGD(0.05),
    "SGD with a schedule, clipped by value": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.9), clipvalue=0.1
    ),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.05),
    "RMSprop": lambda: keras.optimizers.RMSprop(0.002),
    "RMSprop, centered": lambda: keras.optimizers.RMSprop(0.002, centered=True),
}
FORMS: dict[str, dict[str, Any]] = {
    "one lookup": {},
    "two lookups of one table": {"twice": True},
    "several steps per execution": {"steps_per_execution": 4},
    "eager": {"run_eagerly": True},
    "a threshold for each variable": {"threshold": FixedThreshold({"embedding": 5e-4, "": 2e-3})},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_rows_alone_give_the_same_bits_as_the_whole_table(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check_same_bits(OPTIMIZERS[name], {}, monkeypatch)


@pytest.mark.parametrize("form", list(FORMS)[1:])
def test_every_form_of_step_goes_by_rows(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _check_same_bits(OPTIMIZERS["SGD"], FORMS[form], monkeypatch)


def _check_same_bits(make: Any, form: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    weights, residual, strategy = train(make, **form)
    with monkeypatch.context() as patch:
        patch.setattr(touched, "_why_whole", lambda *_: "the test wants it")
        expected, expected_residual, whole = train(make, **form)
    for value, wanted in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(value, wanted)
    np.testing.assert_array_equal(residual, expected_residual)
    assert 0 < visited(strategy) < visited(whole) / 4


class Shrinking(keras.Model):
    """Assigns its whole table in every step, after the optimizer has changed a few rows."""

    def __init__(self) -> None:
        super().__init__()
        self.table = keras.layers.Embedding(ROWS, WIDTH)
        self.table.build()

    def call(self, x: Any) -> Any:
        return keras.ops.mean(self.table(x), axis=(1, 2))

    def train_step(self, data: Any) -> dict[str, Any]:
        logs = super().train_step(data)
        self.table.embeddings.assign(0.5 * self.table.embeddings)
        return dict(logs)


@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_a_table_that_the_step_assigns_is_shared_as_a_whole(steps_per_execution: int) -> None:
    strategy = StromStrategy(
        threshold=FixedThreshold(1e-3), residual_clipping=None, warmup_steps=0, always_encode=True
    )
    with strategy.scope():
        model = Shrinking()
        model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    (x, _), y = data(2 * BATCH)
    before = model.table.get_weights()[0]
    model.fit(x, y, batch_size=BATCH, verbose=0)
    sharing = strategy._sharing
    assert sharing is not None
    residual = sharing.replica.read_residual(0, sharing.space.size).reshape(before.shape)
    # In two steps an element moves by two thresholds; the rest of its way waits.
    untouched = np.setdiff1d(np.arange(ROWS), x)
    assert untouched.size
    moved = model.table.get_weights()[0] - before
    assert (np.abs(moved) < 2.1e-3).all()
    assert (np.abs(moved + residual)[untouched] > 0.5 * np.abs(before)[untouched]).all()


def test_a_row_beyond_the_threshold_is_visited_until_all_of_it_has_left() -> None:
    strategy = StromStrategy(
        threshold=FixedThreshold(0.125),
        residual_clipping=None,
        warmup_steps=0,
        local_apply="encoded",
        always_encode=True,
    )
    with strategy.scope():
        table = tf.Variable(tf.zeros([10, 2]))
        other = tf.Variable([0.0])
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([table, other])

    def step(row: int) -> None:
        slices = tf.IndexedSlices(tf.constant([[-0.5, 0.0]]), tf.constant([row]), [10, 2])
        optimizer.apply([slices, tf.constant([0.0])], [table, other])

    strategy.begin()
    sent = []
    for row in (3, 7, 7, 7, 7):
        strategy.run(step, args=(row,))
        sent.append(float(table[3, 0]))
    assert sent == [0.125, 0.25, 0.375, 0.5, 0.5]
    assert float(table[7, 0]) == 0.5  # one threshold a step, four steps


def _trained_by_rows(strategy: StromStrategy) -> keras.Model:
    with strategy.scope():
        model = build(keras.optimizers.SGD(0.5))
    model.fit(*data(64), batch_size=BATCH, shuffle=False, verbose=0)
    return model


def _later_model(strategy: StromStrategy) -> keras.Model:
    keras.utils.set_random_seed(4)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.05), "mse", jit_compile=False)
    return model


def _reads_given(strategy: StromStrategy, model: keras.Model, x: Any, y: Any) -> list[list[int]]:
    """The shapes of the values from before that a step of `model` hands to the op."""

    @tf.function
    def step(x: Any, y: Any) -> Any:
        return strategy.run(model.train_step, args=((x, y),))

    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
        graph = step.get_concrete_function(x, y).graph
    (op,) = (op for op in graph.get_operations() if op.type == "StromStep")
    reads = [value for value in op.inputs if value.op.type == "ReadVariableOp"]
    return [value.shape.as_list() for value in reads if value.dtype == tf.float32]


@pytest.mark.parametrize("frozen", [False, True])
def test_a_table_that_a_step_leaves_alone_is_not_read(frozen: bool) -> None:
    """TensorFlow copies a table that was changed by rows, all of it, whenever it is read."""
    strategy = StromStrategy(threshold=THRESHOLD, always_encode=True)
    model = _trained_by_rows(strategy)
    x, y = data(BATCH)
    if frozen:
        model.get_layer(index=1).trainable = False
        assert [v.shape for v in model.trainable_variables] == [(3 * WIDTH, 1), (1,)]
        with strategy.scope():
            model.compile(keras.optimizers.SGD(0.5), "mse", jit_compile=False)
        reads = _reads_given(strategy, model, [tf.constant(v) for v in x], tf.constant(y))
    else:
        reads = _reads_given(strategy, _later_model(strategy), tf.ones([BATCH, 4]), tf.constant(y))
    assert [3 * WIDTH, 1] in reads  # The first model's Dense layer.
    assert [ROWS, WIDTH] not in reads


def test_what_a_table_has_not_sent_waits_while_a_later_model_trains() -> None:
    strategy, alone = (
        StromStrategy(threshold=THRESHOLD, warmup_steps=0, always_encode=True) for _ in range(2)
    )
    earlier = _trained_by_rows(strategy)
    sharing = strategy._sharing
    assert sharing is not None
    size = sharing.space.size
    weights, residual = earlier.get_weights(), sharing.replica.read_residual(0, size)
    assert (np.abs(residual) > TAU).any()  # Rows wait to be visited.
    later, other = _later_model(strategy), _later_model(alone)
    x, y = np.ones((64, 4), np.float32), data(64)[1]
    for model in (later, other):
        model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    for value, wanted in zip(earlier.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(value, wanted)
    for value, wanted in zip(later.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(value, wanted)
    np.testing.assert_array_equal(sharing.replica.read_residual(0, size), residual)
    earlier.fit(*data(64), batch_size=BATCH, shuffle=False, verbose=0)
    assert (sharing.replica.read_residual(0, size) != residual).any()


@pytest.mark.parametrize(
    "name",
    sorted(
        name
        for name, kind in vars(keras.optimizers).items()
        if isinstance(kind, type)
        and issubclass(kind, keras.optimizers.Optimizer)
        and name not in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer", "Muon")
    ),
)
def test_what_is_said_of_an_optimizer_is_what_keras_does(name: str) -> None:
    """Where it is said to change only rows looked up, plain Keras leaves all others alone."""
    optimizer = getattr(keras.optimizers, name)()
    table = keras.Variable(np.ones((6, 2), np.float32))
    optimizer.build([table])
    for row in (1, 4):
        before = table.numpy()
        slices = tf.IndexedSlices(tf.constant([[0.5, 0.5]]), tf.constant([row]), [6, 2])
        optimizer.apply([slices], [table])
        moved = np.flatnonzero((table.numpy() != before).any(axis=1))
    # In the second step an optimizer with momentum moves the first row once more.
    if touched._why_whole(optimizer, table.value) is None:
        assert moved.tolist() == [4]


def test_a_large_table_that_changes_as_a_whole_is_warned_about_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strategy = StromStrategy(always_encode=True)
    rows = (1 << 20) // WIDTH
    with strategy.scope():
        model = build(keras.optimizers.Adam(), rows=rows)
    x, y = data(2 * BATCH, rows=rows)
    for _ in range(2):
        model.fit(x, y, batch_size=BATCH, verbose=0)
    words = [r.getMessage() for r in caplog.records if "looks up a few rows" in r.getMessage()]
    assert len(words) == 1
    assert "Adam moves every row in every step" in words[0]
    assert "embedding" in words[0]
    assert "0.02 GB of memory a step" in words[0]


def test_rows_that_a_variable_does_not_have_are_refused() -> None:
    strategy = StromStrategy(always_encode=True)
    with strategy.scope():
        table = tf.Variable(tf.zeros([4, 2]))
        optimizer = keras.optimizers.SGD()
        optimizer.build([table])

    def step() -> None:
        slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([9]), [4, 2])
        optimizer.apply([slices], [table])

    strategy.begin()
    with pytest.raises((tf.errors.InvalidArgumentError, errors.StromError), match="9"):
        strategy.run(step)


def test_a_row_that_the_table_has_not_is_refused_before_anything_is_written() -> None:
    table, replica = tf.Variable(tf.ones([4, 2])), Replica()
    replica.extend(8)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not in a variable of 4 rows"):
        operations().strom_step(
            variables=[table.handle],
            before=[tf.zeros([0])],
            rows=[tf.constant([1 << 40], tf.int64)],
            rows_before=[tf.zeros([1, 2])],
            momenta=[],
            momentum_of=[],
            threshold=1.0,
            scale=1.0,
            clip_multiple=0.0,
            norm_limit=0.0,
            iteration=0,
            sends=True,
            replica=replica.handle,
            offsets=[0],
            shares=[True],
            names=["table"],
            by_rows=[True],
            apply_own=False,
            take_received=False,
            full=True,
            keep_shared=True,
        )
    np.testing.assert_array_equal(table, np.ones((4, 2), np.float32))
    replica.close()
