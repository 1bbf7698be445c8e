"""An Estimator whose driver is killed goes on in a new process under its `run_id`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from keras_strom import errors
from keras_strom.spark import StromEstimator
from keras_strom.spark.data.columns import Columns, ColumnSpec
from keras_strom.spark.data.parquet import from_parquet
from keras_strom.spark.data.store import Store
from keras_strom.spark.estimator.estimator import (
    _alone_in_its_run,
    _begin_run,
    _prepare,
)
from keras_strom.spark.inference.dry_run import dry_run
from keras_strom.spark.inference.serialization import pack
from keras_strom.spark.training.worker_training import (
    Backup,
    leave,
    logged,
    train,
)
from tests.support.averaging import plan_of
from tests.support.scripts import resumed_estimators as script

DEADLINE = 300.0


def driver(folder: Path, how: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, script.__file__, str(folder), how]
    return subprocess.Popen(command, env={**os.environ}, start_new_session=True)


def backed_up(folder: Path, kind: str) -> list[float]:
    with zipfile.ZipFile(folder / "store" / f"of_{kind}" / "checkpoints" / "backup.zip") as backup:
        losses: list[float] = json.loads(backup.read("history.json"))["loss"]
    return losses


@pytest.mark.timeout(900)  # Two drivers, one after the other.
def test_a_killed_driver_goes_on_and_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    with driver(tmp_path, "wait") as first:
        try:
            deadline, tick = time.monotonic() + DEADLINE, threading.Event()
            while not all((tmp_path / kind).exists() for kind in script.KINDS):
                assert first.poll() is None, "the driver has ended by itself"
                assert time.monotonic() < deadline, "no third epoch has begun"
                tick.wait(0.05)
        finally:
            first.kill()
    before = {kind: backed_up(tmp_path, kind) for kind in script.KINDS}
    with driver(tmp_path, "train") as second:
        assert second.wait(DEADLINE) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    for kind in script.KINDS:
        history = found[kind]
        assert len(history) == script.EPOCHS
        assert history[: script.MARKED] == before[kind]
        assert history[0] > history[1] > history[2] > history[3]
        again = found[f"{kind} again"]
        assert again["equal"]
        assert again["history"] == history
        assert any("nothing is trained" in words for words in again["warnings"])
    assert "has finished its training of epochs=4, and epochs=5 is another" in found["more epochs"]
    assert len(found["anew"]) == 1


SPECS = {"x": ColumnSpec("array", "float32", (4,)), "y": ColumnSpec("scalar", "float32")}


def tanh_network() -> keras.Model:
    hidden = keras.layers.Dense(8, activation="tanh")
    return keras.Sequential([keras.Input((4,)), hidden, keras.layers.Dense(1)])


def network_of_many_layers(activation: str = "relu") -> keras.Model:
    """Keras makes names of others' names and draws a seed; there is code, and a shared layer."""
    layers = keras.layers
    numbers = keras.Input((4,))
    steps = layers.Reshape((4, 1))(numbers)
    steps = layers.Bidirectional(layers.LSTM(2, return_sequences=True))(steps)
    cropped = layers.RandomCrop(4, 4)(layers.Reshape((4, 4, 1))(steps))
    hidden = layers.Flatten()(cropped)
    shared = layers.Dense(4, activation=activation)
    both = keras.ops.add(shared(hidden), layers.Dropout(0.5)(shared(keras.ops.relu(hidden))))
    inner = keras.Sequential([layers.Lambda(lambda x: 2 * x), layers.ReLU(), layers.Dense(1)])
    return keras.Model(numbers, inner(both))


class Untold(keras.Model):  # type: ignore[misc]
    def __init__(self, units: int, activation: Any) -> None:
        super().__init__()
        self.activation = activation
        self.hidden, self.last = keras.layers.Dense(units), keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.last(self.activation(self.hidden(x)))


def identity_of_made(model_fn: Any) -> str:
    packed = pack(model_fn=model_fn, compiling={"optimizer": "sgd", "loss": "mse"})
    return dry_run(packed, Columns(("x",), ("y",)), SPECS).identity


def identity_of_one(model: keras.Model, rate: float = 0.1, loss: str = "mse") -> str:
    metrics = [keras.metrics.MeanAbsoluteError()]
    model.compile(keras.optimizers.Adam(rate), loss, metrics=metrics)
    return dry_run(pack(model), Columns(("x",), ("y",)), SPECS).identity


def test_a_model_is_the_same_if_the_same_code_has_made_it() -> None:
    for make in (network_of_many_layers, tanh_network):
        first = identity_of_one(make())
        assert identity_of_one(make()) == first, "Keras names, and draws seeds, as it goes"
        assert identity_of_one(make(), rate=0.2) != first
        assert identity_of_one(make(), loss="mae") != first
    first = identity_of_one(network_of_many_layers())
    assert identity_of_one(network_of_many_layers("tanh")) != first


@pytest.mark.parametrize(
    ("model_fn", "another"),
    [
        (script.network, tanh_network),
        (network_of_many_layers, lambda: network_of_many_layers("tanh")),
        (lambda: Untold(3, keras.ops.relu), lambda: Untold(4, keras.ops.relu)),
    ],
)
def test_what_a_function_makes_is_the_same_each_time(model_fn: Any, another: Any) -> None:
    first = identity_of_made(model_fn)
    keras.layers.Dense(1)  # Keras numbers the layers of the next one otherwise.
    assert identity_of_made(model_fn) == first
    assert identity_of_made(another) != first


def test_a_run_is_not_that_of_what_another_function_makes(spark: Any, tmp_path: Path) -> None:
    columns = Columns(("x",), ("y",))

    def begun(model_fn: Any) -> Any:
        params = params_of(tmp_path, model=None, model_fn=model_fn, num_proc=1)
        return _prepare(params, columns, SPECS, spark, rows="").run

    run = begun(script.network)
    run.store.write_bytes(f"{run.checkpoints}/backup.zip", b"of an epoch")
    with pytest.raises(errors.InvalidOption, match="the interrupted training of another model"):
        begun(tanh_network)
    assert begun(script.network) == run
    # Earlier versions told them apart otherwise, or not at all.
    recorded = json.loads(run.store.read_bytes(f"{run.path}/run.json"))
    record = {"identity": "of then", "seed": 1}
    run.store.write_bytes(f"{run.path}/run.json", json.dumps(record).encode())
    assert begun(script.network) == run
    goes_on = json.loads(run.store.read_bytes(f"{run.path}/run.json"))
    assert goes_on == {**recorded, "seed": 1}


def test_a_backup_has_the_cycles_of_the_joint_model(tmp_path: Path) -> None:
    run = Store.create(tmp_path / "store").run("one")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    def backup(strategy: Any, name: str) -> Backup:
        folder = tmp_path / name
        folder.mkdir()
        made = Backup(run, folder, strategy)
        made.fetch()
        return made

    trains = types.SimpleNamespace(joint_cycles=7)
    model.fit(np.ones((4, 1)), np.ones(4), callbacks=[backup(trains, "first")], verbose=0)
    assert trains.joint_cycles == 7  # There was no backup to go on from.
    goes_on = types.SimpleNamespace(joint_cycles=0)
    assert len(backup(goes_on, "second").before["loss"]) == 1
    assert goes_on.joint_cycles == 7
    assert len(backup(None, "third").before["loss"]) == 1


class Logs(keras.callbacks.Callback):  # type: ignore[misc]
    """Logs something in each epoch."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self._value = value

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["note"] = self._value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("good", "good"),
        ("1.5", "1.5"),
        (None, None),
        (["a", None], ["a", None]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ({"best": 3}, {"best": 3}),
        (b"good", "b'good'"),
        (Path("best.keras"), "best.keras"),
        (np.float32(0.5), 0.5),
        (np.array([1, 2], np.int32), [1.0, 2.0]),
    ],
)
def test_what_a_callback_logs_need_not_be_a_number(
    value: Any, expected: Any, tmp_path: Path
) -> None:
    run = Store(str(tmp_path / "store")).run("run")
    made = Backup(run, tmp_path)
    made.fetch()
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = np.ones((4, 1)), np.ones(4)
    fitted = model.fit(*rows, callbacks=[Logs(value), made], verbose=0)
    assert logged(fitted.history)["note"] == [expected]
    (tmp_path / "again").mkdir()
    again = Backup(run, tmp_path / "again")
    again.fetch()
    assert again.before["note"] == [expected]


@pytest.mark.parametrize(("begin", "losses"), [(0, [4.0, 3.0, 2.0, 1.0]), (3, [9.0, 8.0, 4.0])])
def test_epochs_of_a_chief_that_comes_after_the_end_are_not_there_twice(
    begin: int, losses: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its predecessor has left two of them in the store; `fit` returns those of the others."""
    columns = Columns(("x",), ("y",))
    table = pa.table({"x": np.ones(4, np.float32), "y": np.ones(4, np.float32)})
    (tmp_path / "rows").mkdir()
    pq.write_table(table, tmp_path / "rows" / "rows.parquet")
    model = keras.Sequential([keras.Input(()), keras.layers.Reshape((1,)), keras.layers.Dense(1)])
    plan = plan_of(
        from_parquet(str(tmp_path / "rows"), columns),
        pack(model, compiling={"optimizer": "sgd", "loss": "mse"}),
        batch_size=4,
        val_batch_size=4,
        epochs=4,
        run=Store.create(tmp_path / "store").run("one"),
    )
    epochs = list(range(begin, 4))
    fitted = types.SimpleNamespace(epoch=epochs, history={"loss": losses[-len(epochs) :]})

    def fetch(self: Backup) -> None:
        self.before = {"loss": [9.0, 8.0]}

    monkeypatch.setattr(Backup, "fetch", fetch)
    monkeypatch.setattr(keras.Model, "fit", lambda *_, **__: fitted)
    trained = train(plan).trained
    assert trained is not None
    assert trained.history == {"loss": losses}


def params_of(folder: Path, **others: Any) -> dict[str, Any]:
    given = {"feature_cols": ["x"], "label_cols": ["y"], "run_id": "one", "store": str(folder)}
    optimizer = keras.optimizers.SGD(0.1)
    params: dict[str, Any] = StromEstimator(
        **{"model": script.network(), "optimizer": optimizer, "loss": "mse", **given, **others}
    ).check_params()
    return params


def test_a_finished_run_is_not_that_of_other_rows_or_params(tmp_path: Path) -> None:
    model, columns = "of this model", Columns(("x",), ("y",))
    params = params_of(tmp_path)
    run, before, _ = _begin_run(params, model, columns, "rows")
    assert run is not None
    assert before is None
    leave(types.SimpleNamespace(run=run, epochs=1), script.network(), {"loss": [1.0]})  # type: ignore[arg-type]
    with pytest.warns(RuntimeWarning, match="its model is returned"):
        assert _begin_run(params_of(tmp_path), model, columns, "rows")[1] is not None
    faster = params_of(tmp_path, optimizer=keras.optimizers.SGD(0.2))
    for given, rows in ((params, "rows of another fold"), (faster, "rows")):
        with pytest.raises(errors.InvalidOption, match="on other rows or with other Params"):
            _begin_run(given, model, columns, rows)
    assert _begin_run({**faster, "resume": False}, model, columns, "rows")[1] is None


def test_one_thread_at_a_time_trains_a_run(tmp_path: Path) -> None:
    with _alone_in_its_run(params_of(tmp_path)):
        with _alone_in_its_run(params_of(tmp_path, run_id="another")):
            pass
        with (
            pytest.raises(errors.InvalidOption, match="by another thread"),
            _alone_in_its_run(params_of(tmp_path)),
        ):
            pass
    with _alone_in_its_run(params_of(tmp_path)):
        pass
