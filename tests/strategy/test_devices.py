"""StromStrategy(devices=[...]): the devices of a worker together train as one device would."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops

from keras_strom import errors
from keras_strom.sharing.threshold import FixedThreshold
from keras_strom.strategy.strategy import StromStrategy
from tests.support.scripts import options as script
from tests.support.two_devices import TWO_DEVICES
from tests.support.two_workers import results, run_two_workers, weights

pytestmark = pytest.mark.jobs

TAU = 2e-3
ROWS = 96


def _encoding(devices: list[str] | None) -> StromStrategy:
    return StromStrategy(
        threshold=FixedThreshold(TAU),
        residual_clipping=None,
        # What differs by rounding may be sent a step later, and then is masked a step later.
        momentum_masking=False,
        always_encode=True,
        devices=devices,
    )


def _model(
    strategy: tf.distribute.Strategy,
    optimizer: Callable[[], keras.Optimizer] = keras.optimizers.Adam,
    layer: Callable[[], keras.Layer] | None = None,
) -> keras.Model:
    """A small classifier with sparse gradients; `layer` comes before its last."""
    keras.utils.set_random_seed(5)
    with strategy.scope():
        layers = [
            keras.Input((3,), dtype="int32"),
            keras.layers.Embedding(20, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(8, activation="tanh"),
            *([layer()] if layer else []),
            keras.layers.Dense(3),
        ]
        model = keras.Sequential(layers)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer(), loss, metrics=["accuracy"])
    return model


def _data(rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(2)
    return random.integers(0, 20, (rows, 3)).astype("int32"), random.integers(0, 3, rows)


def _fit(model: keras.Model, rows: int = ROWS) -> dict[str, list[float]]:
    history = model.fit(*_data(rows), epochs=2, batch_size=16, shuffle=False, verbose=0)
    return dict(history.history)


def _progress(strategy: StromStrategy) -> np.ndarray:
    """Parameters and what waits to be sent, together: the whole training."""
    sharing = strategy._sharing
    assert sharing is not None
    parts = [
        entry.variable.numpy().ravel() + sharing.replica.read_residual(entry.offset, entry.size)
        for entry in sharing.space.participants
    ]
    return np.concatenate(parts)


def _assert_same_training(one: StromStrategy, two: StromStrategy) -> None:
    assert one._sharing is not None
    assert two._sharing is not None
    np.testing.assert_allclose(_progress(one), _progress(two), rtol=1e-4, atol=1e-5)
    totals, expected = two._sharing.step.totals, one._sharing.step.totals
    assert totals.stepped == expected.stepped > 0
    assert totals.count == pytest.approx(expected.count, rel=0.01)
    assert expected.count > 100
    assert totals.assigned_outside == 0
    for entry in two._sharing.space.entries:
        assert len(entry.copies) == 1
        np.testing.assert_array_equal(entry.primary.numpy(), entry.copies[0].numpy())


# ------------------------------------------------------------------ what it is


def test_the_strategy_is_tensorflows_own_for_as_many_devices() -> None:
    one, two = _encoding(None), _encoding(TWO_DEVICES)
    for strategy in (one, two):
        assert isinstance(strategy, StromStrategy)
        assert type(strategy).__name__ == "StromStrategy"
        assert strategy.num_workers == 1
    assert isinstance(one, tf.distribute.OneDeviceStrategy)
    assert isinstance(two, tf.distribute.MirroredStrategy)
    assert (one.num_replicas_in_sync, two.num_replicas_in_sync) == (1, 2)
    assert isinstance(StromStrategy(devices="/cpu:1"), tf.distribute.OneDeviceStrategy)


def test_a_subclass_has_the_devices_too() -> None:
    class Mine(StromStrategy):
        pass

    assert isinstance(Mine(devices=TWO_DEVICES), Mine)
    assert Mine(devices=TWO_DEVICES).num_replicas_in_sync == 2


# ------------------------------------------------------------------ the same training

OPTIMIZERS: dict[str, Callable[[], keras.Optimizer]] = {
    "SGD": lambda: keras.optimizers.SGD(0.2, momentum=0.9),
    "Adam": lambda: keras.optimizers.Adam(0.01, weight_decay=0.01, clipnorm=1.0),
    # It has a trainable variable of its own.
    "Nadam": lambda: keras.optimizers.Nadam(0.01, use_ema=True, ema_momentum=0.5),
    "LossScaleOptimizer": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01), initial_scale=8.0, dynamic_growth_steps=2
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_two_devices_train_as_one_with_the_whole_batch(name: str) -> None:
    strategies = [_encoding(None), _encoding(TWO_DEVICES)]
    one, two = (_fit(_model(strategy, OPTIMIZERS[name])) for strategy in strategies)
    _assert_same_training(*strategies)
    np.testing.assert_allclose(two["loss"], one["loss"], rtol=1e-4)
    np.testing.assert_allclose(two["accuracy"], one["accuracy"], atol=0.02)


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_a_custom_loop_trains_as_on_one_device(name: str) -> None:
    strategies = [_encoding(None), _encoding(TWO_DEVICES)]
    for strategy in strategies:
        _custom_loop(strategy, OPTIMIZERS[name])
    _assert_same_training(*strategies)


def _custom_loop(strategy: StromStrategy, make_optimizer: Callable[[], keras.Optimizer]) -> None:
    model = _model(strategy, make_optimizer)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    dataset = strategy.experimental_distribute_dataset(
        tf.data.Dataset.from_tensor_slices(_data()).batch(16)
    )

    def train(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(loss_of(y, model(x)), global_batch_size=16)
        variables = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    @tf.function
    def step(x: Any, y: Any) -> tf.Tensor:
        losses = strategy.run(train, args=(x, y))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
    strategy.begin(model)
    losses = [float(step(x, y)) for _ in range(3) for x, y in dataset]
    report = strategy.synchronize()
    assert report is not None
    assert report.steps == len(losses) == 3 * ROWS / 16
    assert sum(losses[-6:]) < sum(losses[:6])


def test_a_lone_worker_trains_exactly_as_mirrored_keras_does() -> None:
    """With a last batch that cannot be divided evenly, too."""
    plain = tf.distribute.MirroredStrategy(TWO_DEVICES, tf.distribute.ReductionToOneDevice())
    models = [_model(strategy) for strategy in (plain, StromStrategy(devices=TWO_DEVICES))]
    histories = [_fit(model, rows=49) for model in models]
    assert histories[0] == histories[1]
    for want, got in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(want, got)


@pytest.mark.parametrize("synchronized", [False, True])
def test_batch_normalization_sees_its_devices_part_unless_it_is_synchronized(
    synchronized: bool,
) -> None:
    strategies = [_encoding(None), _encoding(TWO_DEVICES)]
    means, same = [], []
    for strategy in strategies:
        model = _model(
            strategy,
            lambda: keras.optimizers.SGD(0.1),
            lambda: keras.layers.BatchNormalization(synchronized=synchronized),
        )
        _fit(model)
        means.append(model.layers[3].moving_mean.numpy())
        same.append(_progress(strategy))
    difference = np.abs(same[0] - same[1]).max()
    assert difference < 1e-4 if synchronized else difference > 1e-3
    # The statistics are averaged over the devices either way.
    np.testing.assert_allclose(means[0], means[1], atol=1e-4 if synchronized else 0.02)


def test_datasets_from_a_function_know_the_devices() -> None:
    seen = []

    def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
        seen.append((context.num_replicas_in_sync, context.get_per_replica_batch_size(16)))
        return tf.data.Dataset.from_tensor_slices(_data()).batch(8)

    strategy = _encoding(TWO_DEVICES)
    model = _model(strategy)
    model.fit(strategy.distribute_datasets_from_function(dataset), verbose=0)
    assert seen == [(2, 8)]
    assert strategy.last_report.steps == ROWS / 16


# ------------------------------------------------------------------ the parts of the devices


@pytest.fixture
def no_iterator_for_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow's own, which may call what was freed (scripts/multi_device_iterator.py)."""

    def made(*given: Any, **options: Any) -> None:
        raise AssertionError("a MultiDeviceIterator was made")

    monkeypatch.setattr(multi_device_iterator_ops.OwnedMultiDeviceIterator, "__init__", made)


@pytest.mark.usefixtures("no_iterator_for_devices")
def test_nothing_reads_through_tensorflows_iterator_for_devices() -> None:
    strategy = _encoding(TWO_DEVICES)
    model = _model(strategy)
    model.fit(*_data(), epochs=2, steps_per_epoch=2, batch_size=16, verbose=0)
    model.evaluate(*_data(), verbose=0)
    assert model.predict(_data()[0], verbose=0).shape == (ROWS, 3)
    _custom_loop(_encoding(TWO_DEVICES), OPTIMIZERS["SGD"])
    given = strategy.distribute_datasets_from_function(lambda _: tf.data.Dataset.range(4).batch(2))
    assert _parts(strategy, given) == [[[0, 1], [2, 3]]]


def _parts(strategy: StromStrategy, dataset: Any) -> list[list[Any]]:
    """Of each element, the devices' values."""
    return [
        [part.numpy().tolist() for part in strategy.experimental_local_results(element)]
        for element in dataset
    ]


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_each_device_has_its_part_of_a_batch(drop_remainder: bool) -> None:
    strategy = StromStrategy(devices=TWO_DEVICES)
    dataset = tf.data.Dataset.range(6).batch(5, drop_remainder=drop_remainder)
    parts = _parts(strategy, strategy.experimental_distribute_dataset(dataset))
    assert parts == [[[0, 1, 2], [3, 4]], [[5], []]][: 1 if drop_remainder else 2]


def test_parts_keep_the_structure_of_an_element() -> None:
    strategy = StromStrategy(devices=TWO_DEVICES)
    ragged = tf.ragged.constant([[1], [2, 3], [4, 5, 6]])
    sparse = tf.sparse.from_dense([[1, 0], [0, 2], [3, 0]])
    element = ({"ragged": ragged, "sparse": sparse}, (tf.constant([7, 8, 9]),))
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(element))
    (features, (labels,)) = next(iter(dataset))
    results = strategy.experimental_local_results
    assert [part.to_list() for part in results(features["ragged"])] == [[[1], [2, 3]], [[4, 5, 6]]]
    dense = [tf.sparse.to_dense(part).numpy().tolist() for part in results(features["sparse"])]
    assert dense == [[[1, 0], [0, 2]], [[3, 0]]]
    assert [part.numpy().tolist() for part in results(labels)] == [[7, 8], [9]]


def test_a_function_gives_each_device_its_own_batch() -> None:
    """The other devices have no rows where the last batches are fewer."""
    strategy = StromStrategy(devices=TWO_DEVICES)
    give = strategy.distribute_datasets_from_function
    parts = _parts(strategy, give(lambda _: tf.data.Dataset.range(5).batch(2)))
    assert parts == [[[0, 1], [2, 3]], [[4], []]]
    same = _parts(strategy, give(lambda _: tf.data.Dataset.range(6).batch(2, drop_remainder=True)))
    assert same == [[[0, 1], [2, 3]]]
    features = {"x": tf.range(4)}
    wide = tf.sparse.from_dense([[1, 0], [0, 2], [3, 0]])
    rows = give(lambda _: tf.data.Dataset.from_tensor_slices(wide).batch(1))
    shapes = [[tuple(part.shape) for part in strategy.experimental_local_results(e)] for e in rows]
    assert shapes == [[(1, 2), (1, 2)], [(1, 2), (0, 2)]]
    divided = give(lambda _: tf.data.Dataset.from_tensor_slices((features, tf.range(4))).batch(1))
    assert divided.element_spec[0].keys() == {"x"}
    assert [tuple(_parts(strategy, [x["x"], y])) for x, y in divided] == [
        ([[0], [1]], [[0], [1]]),
        ([[2], [3]], [[2], [3]]),
    ]


def test_a_loop_within_a_function_trains() -> None:
    strategy = _encoding(TWO_DEVICES)
    model = _model(strategy, OPTIMIZERS["SGD"])
    dataset = strategy.experimental_distribute_dataset(
        tf.data.Dataset.from_tensor_slices(_data()).batch(16)
    )
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def train(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x))
        variables = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    @tf.function
    def epoch(dataset: Any) -> tf.Tensor:
        total = 0.0
        for x, y in dataset:
            losses = strategy.run(train, args=(x, y))
            total += strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)
        return total

    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
    strategy.begin(model)
    losses = [float(epoch(dataset)) for _ in range(3)]
    report = strategy.synchronize()
    assert report is not None
    assert report.steps == 3 * ROWS / 16
    assert losses[2] < losses[0]


def test_what_is_no_batch_cannot_be_divided() -> None:
    with pytest.raises(errors.UnsupportedModel, match=r"2 devices; call dataset\.batch"):
        StromStrategy(devices=TWO_DEVICES).experimental_distribute_dataset(tf.data.Dataset.range(3))


# ------------------------------------------------------------------ what several devices cannot do


def test_gradient_accumulation_is_refused() -> None:
    """On a lone worker too, where Keras's own words would not help."""
    strategy = StromStrategy(devices=TWO_DEVICES)
    model = _model(strategy, lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))
    with pytest.raises(errors.UnsupportedOptimizer, match="gradient_accumulation_steps=2"):
        model.train_on_batch(*_data())


def test_compilation_by_xla_is_refused() -> None:
    with pytest.raises(errors.InvalidOption, match="one device"):
        StromStrategy(devices=TWO_DEVICES, jit_compile=True)


# ------------------------------------------------------------------ several workers


@pytest.mark.parametrize("mode", ["0", "None"])
def test_two_workers_with_two_devices_each_agree(mode: str, tmp_path: Path) -> None:
    options = json.dumps({"devices": TWO_DEVICES})
    run_two_workers(Path(script.__file__), str(tmp_path), mode, options)
    workers = results(tmp_path)
    first, second = weights(tmp_path)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
    for result in workers:
        assert [report["steps"] for report in result["reports"]] == [12, 6]
        assert all(report["updates_applied"] > 0 for report in result["reports"])
        assert all(report["max_replica_difference"] < 1e-5 for report in result["reports"])
        assert result["different"] == 0
    if mode == "0":
        assert workers[0]["shared"] == workers[1]["shared"]
        assert len(set(workers[0]["shared"])) == 3
        assert not set(workers[0]["hashes"]) & set(workers[1]["hashes"])


def test_an_optimizer_made_outside_the_scope_is_refused_with_several_devices() -> None:
    model = _model(_encoding(TWO_DEVICES))
    model.compile("adam", "mse")
    with pytest.raises(errors.UnsupportedOptimizer, match=r"outside strategy\.scope.*compile"):
        model.fit(*_data(), verbose=0)


def test_fit_reads_the_dataset_itself_on_one_device() -> None:
    """What TensorFlow puts around it has threads of its own."""
    from keras.src.backend.tensorflow.trainer import TFEpochIterator  # Keras makes it in fit.

    dataset = tf.data.Dataset.from_tensor_slices(_data()).batch(16)
    read = TFEpochIterator(_encoding(None), x=dataset)._distributed_dataset
    assert isinstance(read, tf.data.Dataset)
    assert read.options().autotune.enabled is False
