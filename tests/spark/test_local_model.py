"""Parameter averaging of what is not plain: loss scales, own train steps, dtype policies."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import keras
import numpy as np
import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq

from keras_strom import errors
from keras_strom.spark import ParameterAveraging
from keras_strom.spark.data.columns import Columns
from keras_strom.spark.data.exported import ExportedData
from keras_strom.spark.data.parquet import from_parquet
from keras_strom.spark.data.store import Store
from keras_strom.spark.inference.prediction import metric_state
from keras_strom.spark.inference.serialization import PackedModel, pack
from keras_strom.spark.training.contribution import Contribution, add
from keras_strom.spark.training.local_model import LocalModel, _build
from keras_strom.spark.training.worker_training import Code, Trained
from tests.support.averaging import plan_of, train_here

ROWS = 48
COLUMNS = Columns(("x",), ("label",))


def points() -> tuple[Any, Any]:
    """A plane's: 3 steps of 8 for each of two workers."""
    x = np.random.default_rng(11).normal(size=(ROWS, 3)).astype("float32")
    return x, (x @ [1.0, -2.0, 0.5]).astype("float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a Parquet file of the points."""
    x, y = points()
    made = tmp_path_factory.mktemp("points")
    table = pa.table({"x": pa.array(list(x), pa.list_(pa.float32(), 3)), "label": y})
    pq.write_table(table, made / "points.parquet", row_group_size=ROWS // 2)
    return str(made)


@pytest.fixture(scope="module")
def data(folder: str) -> ExportedData:
    """To train on."""
    return from_parquet(folder, COLUMNS)


@pytest.fixture(scope="module")
def validated(folder: str) -> ExportedData:
    """To train and to validate on."""
    return from_parquet(folder, COLUMNS, validation=folder)


def plane(**options: Any) -> keras.Model:
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, **options)])


# ---------------------------------------------------------------- loss scales


def steep(y_true: Any, y_pred: Any) -> Any:
    """A loss whose gradients overflow in float16 until the scale is some powers of two lower."""
    return 1e4 * keras.ops.square(keras.ops.cast(y_pred, "float32") - y_true)


@pytest.mark.parametrize("save_updater", [True, False])
def test_a_loss_scale_that_overflows_falls_over_the_rounds(
    data: ExportedData, save_updater: bool
) -> None:
    model = plane(dtype="mixed_float16")
    before = model.get_weights()
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1e-6))
    packed = pack(
        model,
        compiling={"optimizer": optimizer, "loss": steep},
        custom_objects={"steep": steep},
    )
    method = ParameterAveraging(averaging_frequency=2, save_updater=save_updater)
    trained = train_here(plan_of(data, packed, epochs=8), method)
    left = packed.trained(trained.file, trained.suffix).load()
    assert any((a != b).any() for a, b in zip(before, left.get_weights(), strict=True))


# ---------------------------------------------------------------- learning rates


class Steps(keras.callbacks.Callback):  # type: ignore[misc]
    """Logs the optimizer's steps and its learning rate; ends the training before an epoch."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.last = last

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == self.last:
            raise KeyboardInterrupt

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["steps"] = int(self.model.optimizer.iterations)
        logs["weight"] = float(self.model.layers[-1].bias[0])


@pytest.mark.parametrize("save_updater", [True, False])
def test_a_schedule_goes_on_where_it_was_with_another_number_of_workers(
    data: ExportedData, save_updater: bool, tmp_path: Path
) -> None:
    falls = keras.optimizers.schedules.PiecewiseConstantDecay([5], [0.1, 0.0])
    compiling = {"optimizer": keras.optimizers.SGD(falls), "loss": "mse"}
    method = ParameterAveraging(averaging_frequency=2, save_updater=save_updater)

    def train(last: int, workers: int) -> Trained:
        plan = plan_of(
            data,
            pack(plane(), compiling=compiling),
            code=Code(callbacks=lambda: [Steps(last)]).pickled(),
            epochs=3,
            run=Store.create(tmp_path / "store").run("one"),
        )
        return train_here(plan, method, workers)

    with pytest.raises(KeyboardInterrupt):
        train(1, workers=1)
    history = train(-1, workers=2).history
    assert history["steps"] == [6, 9, 12]
    # Its learning rate is 0 from step 6 on, and the second epoch's steps would be 3 to 5 anew.
    assert history["weight"] == [history["weight"][0]] * 3


# ---------------------------------------------------------------- steps of one's own


class OwnSteps(keras.Sequential):  # type: ignore[misc]
    """Trains and validates without Keras's metrics, which so count nothing."""

    names = ("loss", "twice")

    def train_step(self, data: Any) -> Any:
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.squeeze(self(x, training=True), -1) - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return dict(zip(self.names, (loss, 2 * loss), strict=False))

    def test_step(self, data: Any) -> Any:
        import tensorflow as tf

        x, y = data
        return {"loss": tf.reduce_mean((tf.squeeze(self(x), -1) - y) ** 2)}


class OwnLoss(OwnSteps):
    """Its only value has a name that a metric of Keras's has as well."""

    names = ("loss",)


def own_steps(kind: type[OwnSteps], rate: float) -> PackedModel:
    def make() -> keras.Model:
        zeros = keras.layers.Dense(1, kernel_initializer="zeros")
        model = kind([keras.Input((3,)), zeros])
        model.compile(keras.optimizers.SGD(rate), "mse")
        return model

    return pack(model_fn=make)


class OwnTrainStep(keras.Model):  # type: ignore[misc]
    """A variational autoencoder's manner: compiled with an optimizer alone, and not evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(3)
        self.tracker = keras.metrics.Mean(name="reconstruction")

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> Any:
        import tensorflow as tf

        x, *_ = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - x) ** 2)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.tracker.update_state(loss)
        return {"reconstruction": self.tracker.result()}


def test_a_model_without_a_loss_trains_by_its_own_train_step(folder: str) -> None:
    def make() -> keras.Model:
        model = OwnTrainStep()
        model.compile(keras.optimizers.SGD(0.1))
        return model

    plan = plan_of(from_parquet(folder, Columns(("x",), ())), pack(model_fn=make), epochs=3)
    history = train_here(plan, ParameterAveraging(averaging_frequency=2)).history
    assert set(history) == {"reconstruction"}
    assert history["reconstruction"] == sorted(history["reconstruction"], reverse=True)


class Scores(keras.Sequential):  # type: ignore[misc]
    """Whose metric makes its variables with the first values, and whose loss needs no labels."""

    def test_step(self, batch: Any) -> dict[str, Any]:
        x, y, _ = batch
        self.score.update_state(y, self(x, training=False))
        return {"score": self.score.result()}


def test_a_metric_of_a_step_of_one_s_own_has_its_variables_before_the_first_round() -> None:
    model = Scores([keras.Input((2,)), keras.layers.Dense(3)])
    model.score = keras.metrics.F1Score()
    model.compile("sgd", "mse")
    batch = (np.ones((4, 2), "f4"), np.eye(3, dtype="f4")[[0, 1, 2, 0]], np.ones(4, "f4"))
    _build(model, (*batch[:1], None, None))
    _build(model, batch)
    variables = len(metric_state(model))
    model.evaluate(*batch[:2], sample_weight=batch[2], verbose=0)
    assert len(metric_state(model)) == variables


@pytest.mark.parametrize("kind", [OwnSteps, OwnLoss])
def test_what_a_step_of_one_s_own_returns_is_averaged_over_the_workers(
    validated: ExportedData, kind: type[OwnSteps]
) -> None:
    method = ParameterAveraging(averaging_frequency=3)
    plan = plan_of(validated, own_steps(kind, rate=0.0))
    history = train_here(plan, method).history
    _, y = points()
    # Each worker's last step, and each one's last batch of its half.
    last = [float((y[rows] ** 2).mean()) for rows in (slice(16, 24), slice(40, 48))]
    mean = pytest.approx(sum(last) / 2, rel=1e-5)
    assert set(history) == {*kind.names, "val_loss"}
    assert history["loss"] == [mean]
    assert history["val_loss"] == [mean]
    if "twice" in kind.names:
        assert history["twice"] == [pytest.approx(sum(last), rel=1e-5)]


def test_early_stopping_sees_the_loss_of_a_step_of_one_s_own(data: ExportedData) -> None:
    code = Code(callbacks=lambda: [keras.callbacks.EarlyStopping("loss", patience=1)]).pickled()
    plan = plan_of(data, own_steps(OwnLoss, rate=0.05), code=code, epochs=4)
    losses = train_here(plan, ParameterAveraging(averaging_frequency=3)).history["loss"]
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True)


def test_logs_are_weighed_by_examples_and_those_of_one_worker_are_left_out() -> None:
    made = [
        Contribution(rank=rank, examples=examples, values=(), logs=logs)
        for rank, examples, logs in [(0, 1, {"a": 1.0, "b": 9.0}), (1, 3, {"a": 5.0})]
    ]
    assert made[1].mean_logs() == {"a": 5.0}
    for pair in (made, made[::-1]):
        both = add(*pair)
        assert both is not None
        assert both.mean_logs() == {"a": 4.0}
        whole = add(both, Contribution(rank=2, examples=4, values=(), logs={"a": 0.0}))
        assert whole is not None
        assert whole.mean_logs() == {"a": 2.0}


# ---------------------------------------------------------------- dtype policies


@pytest.fixture
def float32() -> Iterator[None]:
    """Puts back the policy that a test has left."""
    yield
    keras.config.set_dtype_policy("float32")


def is_scaled(model: keras.Model) -> bool:
    return isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)


def test_a_model_is_loaded_under_the_dtype_policy_that_it_was_packed_under(float32: None) -> None:
    compiled = plane()
    keras.config.set_dtype_policy("mixed_float16")
    functional = plane()
    functional.compile("sgd", "mse")
    packed = [
        pack(functional),
        pack(plane(), compiling={"optimizer": "sgd", "loss": "mse"}),
        pack(model_fn=plane, compiling={"optimizer": "sgd", "loss": "mse"}),
    ]
    keras.config.set_dtype_policy("float32")
    compiled.compile("sgd", "mse")
    packed.append(pack(compiled))
    for here in ("float32", "mixed_bfloat16"):
        keras.config.set_dtype_policy(here)
        loaded = [one.load() for one in packed]
        assert keras.config.dtype_policy().name == here
        assert [is_scaled(one) for one in loaded] == [True, True, True, False]
        layers = [one.layers[-1].dtype_policy.name for one in loaded]
        assert layers == ["mixed_float16"] * 3 + ["float32"]


def test_a_policy_that_a_model_fn_sets_ends_with_it(float32: None) -> None:
    def make() -> keras.Model:
        keras.config.set_dtype_policy("mixed_float16")
        return plane()

    packed = pack(model_fn=make, compiling={"optimizer": "sgd", "loss": "mse"})
    assert is_scaled(packed.load())
    assert keras.config.dtype_policy().name == "float32"

    def fail() -> keras.Model:
        make()
        raise RuntimeError("no model")

    with pytest.raises(RuntimeError, match="no model"):
        pack(model_fn=fail).load()
    assert keras.config.dtype_policy().name == "float32"


def test_a_model_that_was_packed_without_a_policy_loads_under_the_one_here(float32: None) -> None:
    packed = pack(model_fn=plane, compiling={"optimizer": "sgd", "loss": "mse"})
    code = cloudpickle.loads(packed.code)
    del vars(code)["dtype_policy"]  # As an earlier version has pickled it.
    packed = dataclasses.replace(packed, code=cloudpickle.dumps(code))
    keras.config.set_dtype_policy("mixed_float16")
    assert is_scaled(packed.with_example(np.zeros((1, 3))).load())


def test_a_state_of_another_model_says_what_differs(data: ExportedData) -> None:
    def local(model: keras.Model) -> LocalModel:
        packed = pack(model, compiling={"optimizer": "sgd", "loss": "mse"})
        return LocalModel(plan_of(data, packed), save_updater=True)

    state = local(plane(use_bias=False)).state(0)
    with pytest.raises(errors.UnsupportedModel, match="2 variables as weights here, and 1 in"):
        local(plane()).begin_round(state)
