"""Parameter averaging: its sums, the rows of each step, and trainings against one machine's."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import socket
import sys
import types
from pathlib import Path
from typing import Any

import cloudpickle
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

pyspark = pytest.importorskip("pyspark")

import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from keras_strom import errors  # noqa: E402
from keras_strom.job.network import NetworkConfig  # noqa: E402
from keras_strom.spark import (  # noqa: E402
    ParameterAveraging,
    StromEstimator,
)
from keras_strom.spark.data import passes  # noqa: E402
from keras_strom.spark.data.columns import Columns  # noqa: E402
from keras_strom.spark.data.exported import ExportedData  # noqa: E402
from keras_strom.spark.data.parquet import from_parquet  # noqa: E402
from keras_strom.spark.data.passes import Passes, Stretch, stretches  # noqa: E402
from keras_strom.spark.inference.prediction import BroadcastPayload  # noqa: E402
from keras_strom.spark.inference.serialization import PackedModel, pack  # noqa: E402
from keras_strom.spark.runner.resources import UseGpu  # noqa: E402
from keras_strom.spark.runner.timeline import DRIVER  # noqa: E402
from keras_strom.spark.training import averaging, averaging_tasks  # noqa: E402
from keras_strom.spark.training.averaging_tasks import (  # noqa: E402
    Averaging,
    evaluate_share,
    initial_state,
)
from keras_strom.spark.training.contribution import Contribution, add  # noqa: E402
from keras_strom.spark.training.local_model import LocalModel  # noqa: E402
from tests.support.averaging import OneProcess, plan_of, train_here  # noqa: E402

# Executors cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = 96


# ---------------------------------------------------------------- sums


def contribution(rank: int, examples: int, *values: Any) -> Contribution:
    return Contribution(
        rank=rank,
        examples=examples,
        values=[np.asarray(one) for one in values],
        counts=(np.ones(2),),
    )


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 2**32 - 1)), min_size=1, max_size=9))
@settings(max_examples=50, deadline=None)
def test_the_sum_is_the_mean_weighed_by_examples_in_any_order(
    workers: list[tuple[int, int]],
) -> None:
    made = [
        contribution(
            rank, examples, np.random.default_rng(seed).normal(size=7).astype("float32"), rank + 10
        )
        for rank, (examples, seed) in enumerate(workers)
    ]
    whole: Contribution | None = None
    for one in made[::-1]:
        whole = add(whole, one)
    assert whole is not None
    mean, first = whole.means()
    weights = np.array([one.examples for one in made], np.float64)
    expected = np.average([one.values[0] for one in made], axis=0, weights=weights)
    np.testing.assert_allclose(mean, expected, rtol=1e-12, atol=1e-12)
    assert first == 10  # A count is that of the first worker.
    assert whole.examples == weights.sum()
    np.testing.assert_array_equal(whole.counts[0], np.full(2, len(made)))


@given(st.integers(1, 40), st.integers(1, 5000), st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_equal_values_come_back_bit_by_bit(workers: int, examples: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    value = (random.normal(size=50) * 10.0 ** random.integers(-30, 30, 50)).astype("float32")
    whole: Contribution | None = None
    for rank in range(workers):
        whole = add(whole, contribution(rank, examples + rank % 2, value))
    assert whole is not None
    np.testing.assert_array_equal(whole.means()[0].astype("float32"), value)


def test_a_nan_reaches_the_mean() -> None:
    whole = add(contribution(0, 1, np.float32([1, np.nan])), contribution(1, 1, np.float32([1, 1])))
    assert whole is not None
    np.testing.assert_array_equal(whole.means()[0], [1, np.nan])


# ---------------------------------------------------------------- rows


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> ExportedData:
    """Rows 0 to 99 in row groups of seven."""
    folder = tmp_path_factory.mktemp("numbers")
    table = pa.table({"n": pa.array(range(100), pa.int64())})
    pq.write_table(table, folder / "n.parquet", row_group_size=7)
    return from_parquet(str(folder), Columns(("n",), ()))


@pytest.mark.parametrize("seed", [None, 5])
def test_any_stretch_is_a_part_of_the_pass(numbers: ExportedData, seed: int | None) -> None:
    rows = Passes(numbers, rank=1, size=3, seed=seed)
    whole = rows.take(Stretch(2, 0, rows.rows))[0]
    assert len(whole) == rows.rows == 33
    for begin, end in itertools.pairwise([0, 1, 8, 20, 33]):
        again = Passes(numbers, rank=1, size=3, seed=seed)
        np.testing.assert_array_equal(again.take(Stretch(2, begin, end))[0], whole[begin:end])
    other = rows.take(Stretch(3, 0, rows.rows))[0]
    assert sorted(other) == sorted(whole)
    assert (list(other) == list(whole)) == (seed is None)


@pytest.mark.parametrize("seed", [None, 5])
def test_each_row_is_in_one_worker_s_pass(
    numbers: ExportedData, seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from keras_strom.spark.data import passes

    monkeypatch.setattr(passes, "_CHUNK_BYTES", 100)  # Two row groups each.
    found: list[int] = []
    for rank in range(3):
        rows = Passes(numbers, rank=rank, size=3, seed=seed)
        found += list(rows.take(Stretch(0, 0, rows.rows))[0])
    assert sorted(found) == list(range(100))


@given(st.integers(1, 50), st.integers(1, 20), st.integers(0, 60), st.integers(1, 30))
def test_steps_go_on_from_pass_to_pass(rows: int, batch: int, begin: int, count: int) -> None:
    steps = -(-rows // batch)
    expected = [
        (step // steps, row)
        for step in range(begin, begin + count)
        for row in range(step % steps * batch, min(step % steps * batch + batch, rows))
    ]
    found = [
        (one.number, row)
        for one in stretches(begin, begin + count, rows, batch)
        for row in range(one.begin, one.end)
    ]
    assert found == expected


def test_a_chunk_is_read_once_while_it_is_kept(numbers: ExportedData) -> None:
    from keras_strom.spark.data.passes import ChunkCache

    cache = ChunkCache(most_bytes=20)
    read: list[str] = []

    def chunk(name: str) -> Any:
        def reading() -> Any:
            read.append(name)
            return (rows,)

        return cache.get(name, reading)

    for rows in (np.zeros(2), np.array([b"8 + 12 bytes"], object)):
        read.clear()
        for name in ("a", "a", "b", "b", "a"):
            chunk(f"{rows.dtype} {name}")
        assert [name[-1] for name in read] == ["a", "b", "a"]


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"averaging_frequency": 0}, "averaging_frequency=0"),
        ({"aggregation_depth": 1.5}, "aggregation_depth=1.5"),
        ({"save_updater": "yes"}, "save_updater='yes'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.InvalidOption, match=words):
        ParameterAveraging(**options)


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"strategy": {}}, "strategy has no effect"),
        ({"network": NetworkConfig()}, "network has no effect"),
        ({"num_proc": None, "min_proc": 1}, "min_proc has no effect.*take turns"),
        ({"drain_seconds": 60.0}, "drain_seconds has no effect.*hand nothing over"),
        ({"max_failures": 1}, r"max_failures has no effect.*spark\.task\.maxFailures"),
        ({"store": None}, "needs store="),
    ],
)
def test_options_of_the_relay_are_refused(
    points: Any, tmp_path: Path, others: dict[str, Any], words: str
) -> None:
    estimator = StromEstimator(**options(tmp_path, **others))
    with pytest.raises(errors.InvalidOption, match=words):
        estimator.fit(points)


def test_a_model_that_is_too_large_is_refused_before_a_round(
    files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(averaging, "_MOST_BYTES", 400)
    monkeypatch.setattr(OneProcess, "parallelize", None)
    with pytest.raises(errors.UnsupportedModel, match="2 GiB at most"):
        on_files(files, ParameterAveraging(), optimizer="adam")


@pytest.mark.parametrize("use_gpu", [False, "auto"])
def test_gpus_are_hidden_from_a_task_before_it_has_a_model(
    files: str, use_gpu: UseGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("KERAS_STROM_NEEDS_GPU", "1")
    hidden: list[Any] = []
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda *given: hidden.append(given))
    seen: list[tuple[str, bool]] = []

    class Seeing(LocalModel):
        def __init__(self, *given: Any, **named: Any) -> None:
            seen.append((os.environ["CUDA_VISIBLE_DEVICES"], ([], "GPU") in hidden))
            super().__init__(*given, **named)

    monkeypatch.setattr(averaging_tasks, "LocalModel", Seeing)
    on_files(files, ParameterAveraging(), optimizer="sgd", use_gpu=use_gpu)
    expected = ("3", False) if use_gpu == "auto" else ("-1", True)
    assert seen == [expected]

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    hidden.clear()
    data = from_parquet(files, Columns(("a", "b", "c"), ("label",)))
    averaging = Averaging(plan_of(data, compiled(network())), 2, True, hides_gpus=use_gpu is False)
    pickled: Any = types.SimpleNamespace(value=cloudpickle.dumps(averaging))
    initial_state(BroadcastPayload("of a function", pickled), -1)
    assert seen[1:] == [expected]


# ---------------------------------------------------------------- trainings


def features() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(11)
    x = random.normal(size=(ROWS, 3)).astype("float32")
    y = (x @ [1.0, -2.0, 0.5] + random.normal(scale=0.1, size=ROWS)).astype("float32")
    return x, y


@pytest.fixture(scope="module")
def points(spark: Any) -> Any:
    x, y = features()
    rows = [(*map(float, one), float(label)) for one, label in zip(x, y, strict=True)]
    from pyspark.sql import functions as F  # noqa: N812

    df = spark.createDataFrame(rows, "a float, b float, c float, label float")
    return df.select(F.array("a", "b", "c").alias("x"), "label").coalesce(1)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The points as a Parquet file of one row group a worker of two."""
    x, y = features()
    folder = tmp_path_factory.mktemp("points")
    columns = {name: x[:, index] for index, name in enumerate("abc")}
    table = pa.table({**columns, "label": y})
    pq.write_table(table, folder / "points.parquet", row_group_size=ROWS // 2)
    return str(folder)


def network() -> keras.Model:
    """Inputs a, b and c, a hidden layer, one output; the same weights every time."""
    inputs = [keras.Input((), name=name) for name in "abc"]
    expanded = [keras.layers.Reshape((1,))(one) for one in inputs]
    hidden = keras.layers.Dense(
        8, activation="tanh", kernel_initializer=keras.initializers.GlorotUniform(1)
    )(keras.layers.Concatenate()(expanded))
    output = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(2))(hidden)
    return keras.Model(inputs, keras.layers.Reshape(())(output))


def options(folder: Path | None, /, **others: Any) -> dict[str, Any]:
    one = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1), keras.layers.Reshape(())])
    return {
        "model": one,
        "optimizer": keras.optimizers.SGD(0.1),
        "loss": "mse",
        "feature_cols": ["x"],
        "label_cols": ["label"],
        "batch_size": 8,
        "random_seed": 3,
        "store": None if folder is None else str(folder),
        "num_proc": 2,
        "verbose": 0,
        "training": ParameterAveraging(),
        **others,
    }


def compiled(model: keras.Model, optimizer: Any = "sgd") -> PackedModel:
    return pack(model, compiling={"optimizer": optimizer, "loss": "mse"})


def on_files(
    files: str,
    method: ParameterAveraging,
    *,
    optimizer: Any,
    model: keras.Model | None = None,
    workers: int = 2,
    epochs: int = 1,
    use_gpu: UseGpu = "auto",
) -> tuple[keras.Model, dict[str, list[float]]]:
    """The model and the history of a training by averaging, in this process."""
    data = from_parquet(files, Columns(("a", "b", "c"), ("label",)))
    plan = plan_of(data, compiled(model or network(), optimizer), epochs=epochs)
    trained = train_here(plan, method, workers, use_gpu=use_gpu)
    # Not compiled anew, so with its optimizer's state.
    whole = pack(model or network()).trained(trained.file, trained.suffix)
    return whole.load(), trained.history


def by_one_machine(optimizer: Any, order: np.ndarray, batch_size: int) -> keras.Model:
    """Plain Keras over the rows in this order, without shuffling."""
    x, y = features()
    model = network()
    model.compile(optimizer, "mse")
    inputs = {name: x[order, index] for index, name in enumerate("abc")}
    model.fit(inputs, y[order], batch_size=batch_size, shuffle=False, verbose=0)
    return model


def interleaved(batch_size: int) -> np.ndarray:
    """The rows as two workers see them together: a batch of the first half, one of the second."""
    half = np.arange(ROWS // 2).reshape(-1, batch_size)
    return np.concatenate([half, half + ROWS // 2], axis=1).ravel()


def assert_equal_weights(one: keras.Model, other: keras.Model, tolerance: float) -> None:
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.SGD(0.1),
        keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
        keras.optimizers.SGD(keras.optimizers.schedules.InverseTimeDecay(0.1, 2, 0.7)),
    ],
    ids=["sgd", "nesterov", "schedule"],
)
def test_averaging_after_each_step_is_one_machine_with_the_whole_batch(
    files: str, optimizer: Any
) -> None:
    trained, history = on_files(
        files, ParameterAveraging(averaging_frequency=1), optimizer=optimizer
    )
    again = type(optimizer).from_config(optimizer.get_config())
    expected = by_one_machine(again, interleaved(8), batch_size=16)
    assert_equal_weights(trained, expected, 1e-6)
    assert history["loss"] == pytest.approx(expected.history.history["loss"], rel=1e-5)
    assert int(trained.optimizer.iterations) == ROWS // 16


def test_workers_with_the_same_rows_are_one_worker(files: str, tmp_path: Path) -> None:
    x, y = features()
    twice = {name: np.tile(x[:, index], 2) for index, name in enumerate("abc")}
    pq.write_table(
        pa.table({**twice, "label": np.tile(y, 2)}), tmp_path / "twice", row_group_size=ROWS
    )
    method = ParameterAveraging(averaging_frequency=4)
    given: dict[str, Any] = {"optimizer": keras.optimizers.Adam(0.01), "epochs": 2}
    alone, history = on_files(files, method, workers=1, **given)
    both, of_both = on_files(str(tmp_path / "twice"), method, workers=2, **given)
    assert_equal_weights(both, alone, 1e-7)
    for one, other in zip(both.optimizer.variables, alone.optimizer.variables, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-6, atol=1e-7)
    assert of_both["loss"] == pytest.approx(history["loss"], rel=1e-6)


def test_a_lone_worker_with_averaged_optimizer_state_is_plain_keras(files: str) -> None:
    method = ParameterAveraging(averaging_frequency=5)
    trained, _ = on_files(files, method, workers=1, optimizer=keras.optimizers.Adam(0.01))
    expected = by_one_machine(keras.optimizers.Adam(0.01), np.arange(ROWS), batch_size=8)
    assert_equal_weights(trained, expected, 1e-6)


def test_without_the_optimizer_s_state_every_round_begins_with_a_new_one(
    files: str,
) -> None:
    method = ParameterAveraging(averaging_frequency=5, save_updater=False)
    decay = keras.optimizers.schedules.InverseTimeDecay(0.02, 3, 0.5)
    trained, _ = on_files(files, method, workers=1, optimizer=keras.optimizers.Adam(decay))
    x, y = features()
    model = network()
    for begin in range(0, ROWS, 40):
        # The schedule goes on, in a new optimizer's own count of steps.
        rest = keras.optimizers.schedules.InverseTimeDecay(
            0.02 / (1 + 0.5 * (begin // 8) / 3), 3, 0.5 / (1 + 0.5 * (begin // 8) / 3)
        )
        model.compile(keras.optimizers.Adam(rest), "mse")
        rows = slice(begin, begin + 40)
        inputs = {name: x[rows, index] for index, name in enumerate("abc")}
        model.fit(inputs, y[rows], batch_size=8, shuffle=False, verbose=0)
    assert_equal_weights(trained, model, 1e-6)
    assert int(trained.optimizer.iterations) == ROWS // 8
    assert isinstance(trained.optimizer.get_config()["learning_rate"], dict)


class OwnSchedule(keras.optimizers.schedules.InverseTimeDecay):
    """Known by `custom_objects` alone."""


def test_a_round_without_the_optimizer_s_state_knows_a_schedule_of_one_s_own(files: str) -> None:
    data = from_parquet(files, Columns(("a", "b", "c"), ("label",)))
    compiling = {"optimizer": keras.optimizers.SGD(OwnSchedule(0.1, 2, 0.7)), "loss": "mse"}
    model = pack(network(), compiling=compiling, custom_objects={"OwnSchedule": OwnSchedule})
    plan = plan_of(data, model)
    local = LocalModel(plan, save_updater=False)
    local.begin_round(dataclasses.replace(local.state(3), iterations=3))
    assert float(local.model.optimizer.learning_rate) == pytest.approx(0.1 / (1 + 0.7 * 3 / 2))


class Rounds(keras.callbacks.Callback):
    """Logs how many rounds there were, and stops after the second epoch."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.rounds = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.rounds += 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["rounds"] = self.rounds
        self.model.stop_training = epoch == 1


def normalized() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.BatchNormalization(momentum=0.5),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(1),
            keras.layers.Reshape(()),
        ]
    )


def test_an_estimator_trains_in_rounds_with_callbacks_validation_and_a_timeline(
    points: Any, tmp_path: Path
) -> None:
    model = StromEstimator(
        **options(
            tmp_path,
            model=None,
            model_fn=normalized,
            training=ParameterAveraging(averaging_frequency=2, aggregation_depth=1),
            validation=0.25,
            validation_steps_per_epoch=2,
            metrics=["mae"],
            epochs=5,
            num_proc=3,  # On two slots.
            callbacks=[Rounds()],
            run_id="rounds",
        )
    ).fit(points)
    # 72 rows are 24 a worker, 3 steps and 2 rounds an epoch.
    assert model.history["rounds"] == [2, 4]
    assert set(model.history) == {"loss", "mae", "val_loss", "val_mae", "rounds"}
    assert model.history["val_loss"][1] < model.history["val_loss"][0]
    assert model.run_id == "rounds"
    assert isinstance(model.keras.predict(np.zeros((1, 3)), verbose=0), np.ndarray)
    assert set(model.evaluate(points)) == {"loss", "mae"}
    totals = model.timeline.totals()
    assert list(totals) == [DRIVER, 0, 1, 2]
    assert {"check", "export", "run", "save"} <= set(totals[DRIVER])
    for rank in range(3):
        assert {"read", "train", "evaluate", "wait"} <= set(totals[rank])
    assert any("load" in totals[rank] for rank in range(3))  # The third may find a model loaded.
    assert not (tmp_path / "rounds" / "checkpoints").exists()


@pytest.mark.parametrize(("rows", "bytes_at_once", "most"), [(7, 1 << 20, 2), (8, 1, 1)])
def test_validation_is_on_as_many_rows_as_its_steps_say_and_on_the_first(
    rows: int, bytes_at_once: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 8 rows that 5 workers share, also where they divide 7 otherwise than 8."""
    values = np.arange(8, dtype=np.float32)
    table = pa.table({**dict.fromkeys("abc", values), "label": values**2})
    pq.write_table(table, tmp_path / "points.parquet", row_group_size=3)
    columns = Columns(("a", "b", "c"), ("label",))
    data = from_parquet(str(tmp_path), columns, validation=str(tmp_path))
    plan = plan_of(data, compiled(network()), val_batch_size=1)
    local = LocalModel(plan, save_updater=True)
    held: list[int] = []

    def batches(data: ExportedData, parts: Any, *given: Any) -> Any:
        held.extend(len(part[0]) for part in parts)
        return passes.batches(data, parts, *given)

    monkeypatch.setattr(averaging_tasks, "_BYTES_AT_ONCE", bytes_at_once)
    monkeypatch.setattr(averaging_tasks, "batches", batches)
    pickled = cloudpickle.dumps(Averaging(plan, 5, True))
    payload: Any = types.SimpleNamespace(
        key=f"{rows}", pickled=types.SimpleNamespace(value=pickled)
    )
    state: Any = types.SimpleNamespace(value=local.state(0))
    shares = [evaluate_share(payload, state, rows, 5, rank) for rank in range(5)]
    whole = functools.reduce(add, shares)
    assert whole is not None
    assert whole.examples == rows == sum(held)
    assert max(held) == most
    first = [values[:rows]] * 3
    expected = local.model.evaluate(first, values[:rows] ** 2, batch_size=8, verbose=0)
    assert local.results(whole.counts)["loss"] == pytest.approx(expected, rel=1e-5)


def test_statistics_of_normalization_are_averaged(files: str) -> None:
    statistics = keras.layers.BatchNormalization(momentum=0.5, name="statistics")
    inputs = [keras.Input((), name=name) for name in "abc"]
    rows = keras.layers.Concatenate()([keras.layers.Reshape((1,))(one) for one in inputs])
    output = keras.layers.Reshape(())(keras.layers.Dense(1)(statistics(rows)))
    trained, _ = on_files(
        files,
        ParameterAveraging(averaging_frequency=3),
        model=keras.Model(inputs, output),
        optimizer=keras.optimizers.SGD(0.1),
    )
    x, _ = features()
    expected = np.zeros(3)
    for batch in x[interleaved(8)].reshape(-1, 2, 8, 3):
        expected = 0.5 * expected + 0.5 * batch.mean(axis=(0, 1))
    found = trained.get_layer("statistics").moving_mean
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=1e-5)


def test_a_task_that_dies_is_run_again_with_the_same_result(points: Any, tmp_path: Path) -> None:
    died = tmp_path / "died"

    def dies_once(x: Any, y: Any) -> Any:
        import os
        import signal

        import tensorflow as tf

        if tf.inside_function() and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return x + tf.random.normal((3,), stddev=0.01), y

    method = ParameterAveraging(averaging_frequency=3)
    given = options(tmp_path / "store", training=method, transformation_fn=dies_once)
    disturbed = StromEstimator(**given).fit(points)
    assert died.exists()
    undisturbed = StromEstimator(**given).fit(points)
    assert_equal_weights(disturbed.keras, undisturbed.keras, 0.0)


class Interrupted(Exception):
    """Ends a training after an epoch."""


class Interrupts(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 2:
            raise Interrupted


def test_an_interrupted_training_goes_on_after_its_last_epoch(points: Any, tmp_path: Path) -> None:
    given = options(
        tmp_path, epochs=3, run_id="again", optimizer=keras.optimizers.Adam(0.01), num_proc=1
    )
    with pytest.raises(Interrupted):
        StromEstimator(**given, callbacks=[Interrupts()]).fit(points)
    resumed = StromEstimator(**given).fit(points)
    whole = StromEstimator(**{**given, "run_id": "whole"}).fit(points)
    assert resumed.history["loss"] == pytest.approx(whole.history["loss"], rel=1e-6)
    assert_equal_weights(resumed.keras, whole.keras, 1e-6)


def test_an_error_of_a_task_says_what_went_wrong(points: Any, tmp_path: Path) -> None:
    def fails_on_executors(x: Any, y: Any) -> Any:
        import tensorflow as tf

        if tf.inside_function():
            raise RuntimeError("no such augmentation")
        return x, y

    with pytest.raises(errors.WorkerFailed, match="no such augmentation") as raised:
        StromEstimator(**options(tmp_path, transformation_fn=fails_on_executors)).fit(points)
    assert raised.value.rank in (0, 1)
    assert raised.value.host == socket.gethostname()
    assert "fails_on_executors" in raised.value.traceback
    assert "\tat " not in raised.value.traceback


@pytest.mark.parametrize("option", [{"use_ema": True}, {"gradient_accumulation_steps": 4}])
def test_optimizers_that_need_their_state_are_not_robbed_of_it(
    points: Any, tmp_path: Path, option: dict[str, Any]
) -> None:
    given = options(
        tmp_path,
        optimizer=keras.optimizers.SGD(0.1, **option),
        training=ParameterAveraging(save_updater=False),
    )
    with pytest.raises(errors.UnsupportedOptimizer, match=next(iter(option))):
        StromEstimator(**given).fit(points)
