"""What part of the training data each worker reads."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from keras_strom import StromStrategy, errors
from keras_strom.strategy.building import building_once
from keras_strom.strategy.data_sharding import (
    ShardedPyDataset,
    keep_whole,
    shard_dataset,
    shard_fit_arguments,
    without_autotune,
)


def _shards(size: int, **arguments: Any) -> list[dict[str, Any]]:
    shards = []
    for rank in range(size):
        own = dict(arguments)
        shard_fit_arguments(own, rank, size)
        shards.append(own)
    return shards


def test_arrays_are_divided_by_rows_without_loss_or_overlap() -> None:
    x, y, weights = np.arange(11), np.arange(11) * 2, np.arange(11) * 3
    shards = _shards(3, x=x, y=y, sample_weight=weights, validation_data=None)
    assert sorted(np.concatenate([s["x"] for s in shards])) == list(range(11))
    for shard in shards:
        np.testing.assert_array_equal(shard["y"], shard["x"] * 2)
        np.testing.assert_array_equal(shard["sample_weight"], shard["x"] * 3)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("split", [0.0, 0.2])
def test_arrays_of_different_lengths_are_refused_with_their_own_sizes(
    rank: int, split: float
) -> None:
    x, y = {"a": np.zeros((1000, 2)), "b": np.zeros(1000)}, np.zeros(999)
    arguments = {"x": x, "y": y, "sample_weight": None, "validation_split": split}
    with pytest.raises(ValueError, match=r"ambiguous.* 'x' sizes: 1000, 1000; 'y' sizes: 999$"):
        shard_fit_arguments(arguments, rank, 2)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("split", [0.0, 0.2])
def test_arrays_without_rows_are_refused_as_that(rank: int, split: float) -> None:
    arguments = {"x": np.zeros((0, 2)), "y": np.zeros(0), "validation_split": split}
    with pytest.raises(errors.UnsupportedModel, match=rf"worker {rank}: .* data has no rows; look"):
        shard_fit_arguments(arguments, rank, 2)


def test_named_inputs_and_tensors_are_divided_too() -> None:
    (first, second) = _shards(2, x={"a": np.arange(4), "b": tf.range(4)}, y=None)
    assert first["x"]["a"].tolist() == [0, 2]
    assert second["x"]["b"].numpy().tolist() == [1, 3]
    assert first["y"] is None


class _Batches(keras.utils.PyDataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Any:
        return np.full((2, 1), index), np.zeros(2)


@pytest.mark.parametrize(
    ("given", "share"),
    [
        ({"x": tf.data.Dataset.range(9)}, 4),
        ({"x": tf.data.Dataset.range(9).repeat()}, None),
        ({"x": tf.data.Dataset.range(9).filter(lambda _: True)}, None),
        ({"x": keep_whole(tf.data.Dataset.range(9))}, None),
        ({"x": _Batches()}, 4),
        ({"x": np.zeros(9), "y": np.zeros(9), "batch_size": 1}, 4),
        ({"x": np.zeros(325), "y": np.zeros(325)}, 6),  # 163 rows and 162, 32 of them a batch.
        ({"x": np.zeros(16), "y": np.zeros(16), "batch_size": 2, "validation_split": 0.5}, 2),
    ],
)
def test_more_steps_than_a_workers_share_has_are_told_once(
    given: dict[str, Any], share: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Keras advises to repeat the data, of which there is enough."""
    _shards(2, **given)
    if share is not None:
        _shards(2, **given, steps_per_epoch=share)
    assert "steps_per_epoch" not in caplog.text
    _shards(2, **given, steps_per_epoch=8)
    told = [record.getMessage() for record in caplog.records]
    words = (
        "steps_per_epoch=8 counts the steps of each worker, and a worker's share of the data has "
        f"{share}: give {share}, or leave it out"
    )
    assert told == [words] * (share is not None)


@pytest.mark.parametrize(
    ("shuffled", "warns"),
    [
        (lambda data: data.shuffle(8).batch(2), True),
        (lambda data: tf.data.Dataset.zip(data, data.repeat().shuffle(8)), True),
        (lambda data: data.shuffle(8, seed=0).batch(2), False),
        (lambda data: data.batch(2), False),
        (lambda data: keep_whole(data.shuffle(8)), False),
    ],
)
def test_an_order_that_differs_between_workers_is_warned_of_once(
    shuffled: Callable[[tf.data.Dataset], tf.data.Dataset],
    warns: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(context.context(), "_seed", None)  # Another test may have set one for all.
    dataset = shuffled(tf.data.Dataset.range(8))
    shard_dataset(dataset, 0, 1)
    assert not caplog.text  # A worker by itself divides nothing.
    for rank in range(2):
        shard_dataset(dataset, rank, 2)
    assert caplog.text.count("shuffled without a seed") == warns


def test_a_validation_split_is_taken_first_and_is_the_same_on_all_workers() -> None:
    shards = _shards(2, x=np.arange(10), y=np.arange(10), validation_split=0.2)
    for shard in shards:
        held_x, held_y, held_weight = shard["validation_data"]
        assert held_x.tolist() == held_y.tolist() == [8, 9]
        assert held_weight is None
        assert shard["validation_split"] == 0
    assert shards[0]["x"].tolist() == [0, 2, 4, 6]


def test_an_optional_input_without_values_has_no_part_in_a_validation_split() -> None:
    shards = _shards(2, x=[None, np.arange(10)], y=np.arange(10), validation_split=0.2)
    for shard in shards:
        nothing, held = shard["validation_data"][0]
        assert nothing is None
        assert held.tolist() == [8, 9]


def test_validation_data_is_left_alone() -> None:
    validation = (np.arange(4), np.arange(4))
    (shard, _) = _shards(2, x=np.arange(4), y=np.arange(4), validation_data=validation)
    assert shard["validation_data"] is validation


def test_a_dataset_is_divided_by_its_elements() -> None:
    dataset = tf.data.Dataset.range(7).batch(2)
    shards = _shards(2, x=dataset)
    assert [b.tolist() for b in shards[0]["x"].as_numpy_iterator()] == [[0, 1], [4, 5]]
    assert [b.tolist() for b in shards[1]["x"].as_numpy_iterator()] == [[2, 3], [6]]


def test_a_dataset_with_sharding_off_is_each_workers_own() -> None:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = tf.data.Dataset.range(7).with_options(options)
    for shard in _shards(2, x=dataset):
        assert shard["x"] is dataset


def test_a_layer_that_goes_on_from_batch_to_batch_has_all_of_its_own_data() -> None:
    recurrent = keras.layers.Bidirectional(keras.layers.GRU(2, stateful=True))
    model = keras.Sequential([keras.Input(batch_shape=(2, 3, 1)), recurrent])
    x = np.zeros((8, 3, 1))
    with pytest.raises(errors.UnsupportedModel, match=r"(?s)ward_gru.*AutoShardPolicy.OFF"):
        shard_fit_arguments({"self": model, "x": x, "y": x}, 0, 2)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    own = tf.data.Dataset.from_tensor_slices(x).batch(2).with_options(options)
    arguments = {"self": model, "x": own}
    shard_fit_arguments(arguments, 0, 2)
    assert arguments["x"] is own


class _Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> int:
        return index


def test_a_py_dataset_is_divided_by_its_batches() -> None:
    shards = [s["x"] for s in _shards(3, x=_Batches())]
    assert [s.num_batches for s in shards] == [3, 2, 2]
    assert sorted(s[i] for s in shards for i in range(s.num_batches)) == list(range(7))
    assert isinstance(shards[0], ShardedPyDataset)


def test_a_share_of_a_py_dataset_has_its_threads_and_hears_where_epochs_begin_and_end() -> None:
    heard: list[str] = []

    class Hears(_Batches):
        def on_epoch_begin(self) -> None:
            heard.append("begins")

        def on_epoch_end(self) -> None:
            heard.append("ends")

    whole = Hears()
    whole.workers, whole.max_queue_size = 2, 3
    share = ShardedPyDataset(whole, rank=1, size=2)
    assert (share.workers, share.use_multiprocessing, share.max_queue_size) == (2, False, 3)
    share.on_epoch_begin()
    share.on_epoch_end()
    assert heard == ["begins", "ends"]


def test_a_generator_is_divided_by_its_batches() -> None:
    for rank, batches in enumerate([[0, 2, 4], [1, 3]]):
        arguments: dict[str, Any] = {"x": (i for i in range(5))}
        shard_fit_arguments(arguments, rank, 2)
        assert isinstance(arguments["x"], types.GeneratorType)
        assert list(arguments["x"]) == batches


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_the_next_fit_with_the_same_generator_trains_each_batch_once(workers: int) -> None:
    """Each worker trains 3 batches in the first one; what stands ready for more is lost to all."""
    trained: list[list[int]] = [[], []]
    for rank in range(workers):
        batches = (i for i in itertools.count())
        for of_fit, more in zip(trained, (rank, 0), strict=True):
            arguments: dict[str, Any] = {"x": batches}
            shard_fit_arguments(arguments, rank, workers)
            own = list(itertools.islice(arguments["x"], 3 + more))
            of_fit.extend(batch % workers for batch in own[:3])
    for of_fit in trained:
        assert sorted(of_fit) == sorted([*range(workers)] * 3)


@pytest.mark.parametrize("kind", ["csr", "csc", "coo"])
def test_sparse_matrices_of_scipy_are_divided_as_arrays_are(kind: str) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    whole = np.arange(20).reshape(10, 2) % 3
    shards = _shards(2, x=sparse.coo_matrix(whole).asformat(kind), validation_split=0.2)
    for rank, shard in enumerate(shards):
        np.testing.assert_array_equal(shard["x"].toarray(), whole[:8][rank::2])
        np.testing.assert_array_equal(shard["validation_data"][0].toarray(), whole[8:])


def test_sparse_tensors_are_divided_as_arrays_are() -> None:
    whole = np.arange(20).reshape(10, 2) % 3
    shards = _shards(2, x=tf.sparse.from_dense(whole), validation_split=0.2)
    for rank, shard in enumerate(shards):
        np.testing.assert_array_equal(tf.sparse.to_dense(shard["x"]), whole[:8][rank::2])
        held_out = tf.sparse.to_dense(shard["validation_data"][0])
        np.testing.assert_array_equal(held_out, whole[8:])


def test_an_output_without_sample_weights_has_no_share_of_them() -> None:
    y, weights = [np.arange(4), np.arange(4)], [np.arange(4), None]
    (_, second) = _shards(2, x=np.arange(4), y=y, sample_weight=weights)
    assert second["sample_weight"][0].tolist() == [1, 3]
    assert second["sample_weight"][1] is None


@pytest.mark.parametrize(
    "make", [lambda: iter(tf.data.Dataset.range(3)), object], ids=["iterator", "object"]
)
def test_data_that_cannot_be_divided_is_refused_with_a_remedy(make: Any) -> None:
    data = make()
    with pytest.raises(errors.UnsupportedModel, match=r"pass arrays, .*PyDataset"):
        shard_fit_arguments({"x": data}, 0, 2)


def test_labels_that_are_no_array_are_refused_by_name() -> None:
    with pytest.raises(errors.UnsupportedModel, match="cannot divide y of type list"):
        shard_fit_arguments({"x": np.arange(3), "y": [0, 1, 0]}, 0, 2)


def test_datasets_go_without_the_tuning_thread_unless_the_user_asks_for_it() -> None:
    whole = tf.data.Dataset.range(4).batch(2)
    assert without_autotune(whole).options().autotune.enabled is False
    asks = tf.data.Options()
    asks.autotune.enabled = True
    assert without_autotune(whole.with_options(asks)).options().autotune.enabled is True


@pytest.mark.parametrize("by_function", [False, True])
def test_data_of_a_custom_loop_come_as_tf_data_and_are_divided_once(by_function: bool) -> None:
    strategy = StromStrategy()
    dataset = tf.data.Dataset.range(6)
    if by_function:
        given = strategy.distribute_datasets_from_function(lambda place: dataset)
    else:
        given = strategy.experimental_distribute_dataset(dataset)
    # TensorFlow's own iterator for devices may call what was freed, and one CPU does not need it.
    assert isinstance(given, tf.data.Dataset)
    assert list(given.as_numpy_iterator()) == list(range(6))
    assert shard_dataset(given, 1, 2) is given


def test_data_are_not_read_to_build_a_model_that_is_built() -> None:
    """Keras itself would start them over in each fit and evaluate, to read a batch."""
    starts = []

    def batches() -> Any:
        starts.append(1)
        yield from [(np.ones((4, 3), np.float32), np.ones((4, 1), np.float32))] * 2

    def started(train: Callable[[Any], Any]) -> int:
        starts.clear()
        train(tf.data.Dataset.from_generator(batches, output_signature=signature))
        return len(starts)

    signature = (tf.TensorSpec([4, 3]), tf.TensorSpec([4, 1]))
    with StromStrategy(always_encode=True).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("adam", "mse", metrics=["mae"])
    assert started(lambda data: model.fit(data, epochs=2, verbose=0)) == 3  # Once to build it.
    assert started(lambda data: model.fit(data, epochs=2, verbose=0)) == 2
    assert started(lambda data: model.evaluate(data, verbose=0)) == 1


def test_no_batch_of_a_py_dataset_is_read_to_build_a_model_that_is_built() -> None:
    read: list[int] = []

    class Batches(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            read.append(index)
            return np.ones((4, 3), np.float32), np.ones((4, 1), np.float32)

    with StromStrategy(always_encode=True).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("adam", "mse", metrics=["mae"])
    for once in ([0], []):
        with building_once({"self": model, "x": Batches()}):  # Around each fit.
            assert read == once
        read.clear()
