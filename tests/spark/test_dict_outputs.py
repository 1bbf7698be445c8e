"""Models that give a dict: labels and columns belong to the outputs of their names."""

from __future__ import annotations

import json
import sys
from typing import Any

import cloudpickle
import keras
import numpy as np
import pytest

pytest.importorskip("pyspark")

from keras_strom import errors
from keras_strom.spark import StromEstimator, StromModel
from keras_strom.spark.data.columns import Columns, ColumnSpec
from keras_strom.spark.estimator.model import output_columns
from keras_strom.spark.inference.dry_run import Trial, dry_run
from keras_strom.spark.inference.labels import of_each_output
from keras_strom.spark.inference.outputs import Output, Outputs
from keras_strom.spark.inference.serialization import pack

# Executors cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

X = ColumnSpec("array", "float32", (4,))
NUMBER = ColumnSpec("scalar", "float32")


def heads(*names: str, listed: bool = False, loss: Any = "mse", **units: int) -> keras.Model:
    point = keras.Input((4,))
    made = {name: keras.layers.Dense(units.get(name, 1), name=name)(point) for name in names}
    model = keras.Model(point, list(made.values()) if listed else made)
    model.compile("sgd", loss)
    return model


class OfItsOwn(keras.Model):  # type: ignore[misc]
    def train_step(self, data: Any) -> Any:
        return {}


def tried(model: keras.Model, *labels: str, function: Any = None, **specs: ColumnSpec) -> Trial:
    columns = Columns(("x",), labels)
    found = {"x": X, **dict.fromkeys(labels, NUMBER), **specs}
    objects = {"OfItsOwn": OfItsOwn}
    return dry_run(pack(model, custom_objects=objects), columns, found, function)


def test_labels_go_by_name_where_they_are_named_as_the_outputs() -> None:
    function = tried(heads("zed", "abc"), "zed", "abc").function
    assert function is not None
    assert function("x", (1, 2), "w") == ("x", {"zed": 1, "abc": 2}, "w")
    loss = {"zed": "mse", "abc": "mse"}
    function = tried(heads("zed", "mid", "abc", loss=loss), "zed", "abc").function
    assert function is not None
    assert function("x", (1, 2)) == ("x", {"zed": 1, "abc": 2})


def test_a_label_is_checked_for_the_output_of_its_name() -> None:
    sparse = "sparse_categorical_crossentropy"
    model = heads("zed", "abc", loss={"zed": sparse, "abc": "mse"}, zed=3)
    trial = tried(model, "abc", "zed", zed=ColumnSpec("scalar", "int64"))
    assert list(trial.allowed) == ["zed"]
    assert (trial.allowed["zed"].most, trial.allowed["zed"].whole) == (2, True)
    pair = ColumnSpec("array", "float32", (2,))
    with pytest.raises(errors.InvalidData, match=r"label column 'zed' holds .* for output 'zed'"):
        tried(heads("zed", "abc", abc=2), "zed", "abc", zed=pair, abc=pair)


@pytest.mark.parametrize(
    ("names", "labels"),
    [(("zed", "abc"), ("one", "two")), (("abc", "zed"), ("zed", "two"))],
    ids=["dict not sorted", "another output's name"],
)
def test_labels_that_could_go_to_either_output_are_refused(
    names: tuple[str, ...], labels: tuple[str, ...]
) -> None:
    words = f"a dict of '{names[0]}', '{names[1]}', .* label columns are '{labels[0]}'.*Renamed"
    with pytest.raises(errors.InvalidData, match=words):
        tried(heads(*names), *labels)
    with pytest.raises(errors.InvalidData, match=words):
        tried(heads(*names), *labels, function=lambda x, y: (x, y))
    named = tried(
        heads(*names), *labels, function=lambda x, y: (x, {names[0]: y[1], names[1]: y[0]})
    )
    assert named.outputs.names == names


def test_outputs_in_outputs_are_refused_in_words() -> None:
    made = heads("zed", "abc", listed=True)
    nested = keras.Model(made.inputs, {"both": made.outputs})
    nested.compile("sgd", "mse")
    with pytest.raises(errors.UnsupportedModel, match=r"'both' is a list of 2: give each tensor"):
        tried(nested, "zed")


def test_other_models_take_labels_in_order() -> None:
    assert tried(heads("zed", "abc", listed=True), "abc", "zed").function is None
    function = tried(heads("abc", "zed"), "one", "two").function
    assert function is not None
    assert function("x", (1, 2)) == ("x", (1, 2))
    made = heads("zed", "abc")
    own = OfItsOwn(made.inputs, made._outputs_struct)
    own.compile("sgd", "mse")
    assert tried(own, "one", "two").function is None


def test_a_list_of_losses_is_as_keras_sorts_the_outputs() -> None:
    outputs = Outputs((Output("zed", ()), Output("abc", ())), named=True)
    assert of_each_output(["of abc", "of zed"], outputs) == ["of zed", "of abc"]
    listed = Outputs(outputs.tensors)
    assert of_each_output(["of zed", "of abc"], listed) == ["of zed", "of abc"]


def test_columns_are_named_after_their_outputs() -> None:
    outputs = Outputs((Output("zed", ()), Output("abc", (3,))), named=True)
    params: dict[str, Any] = {"prediction_col": "prediction", "probability_col": None}

    def made(labels: Any, raw: Any, of: Outputs = outputs) -> list[tuple[str, str]]:
        found = output_columns(of, {**params, "label_cols": labels, "output_cols": raw})
        return list(zip(found.raw, found.outputs.names, strict=True))

    zed, abc = ("zed__output", "zed"), ("abc__output", "abc")
    assert made(["zed", "abc"], None) == [zed, abc]
    assert made(["abc", "zed"], None) == [abc, zed]
    assert made(["one", "two"], None) == [zed, abc]
    assert made(None, ["p", "q"]) == [("p", "zed"), ("q", "abc")]
    assert made(["abc", "zed"], ["p", "q"]) == [("p", "abc"), ("q", "zed")]
    assert made(["zed", "abc"], ["abc", "zed"]) == [("abc", "abc"), ("zed", "zed")]
    listed = Outputs(outputs.tensors)
    assert made(["abc", "zed"], None, listed) == [("abc__output", "zed"), ("zed__output", "abc")]


def without_sign(x: Any, y: Any, weight: Any) -> Any:
    return keras.ops.abs(x), y, weight


def turned(x: Any, y: Any) -> Any:
    if keras.ops.sum(x) < 0.0:  # A condition of the graph, by AutoGraph.
        x = -x
    return x, y


def test_the_users_function_is_still_made_a_graph() -> None:
    import tensorflow as tf

    function = tried(heads("zed", "abc"), "zed", "abc", function=turned).function
    batch = np.full((1, 2), -1.0), (np.array([1.0]), np.array([2.0]))
    ((x, y),) = tf.data.Dataset.from_tensors(batch).map(function)
    assert (float(x[0, 0]), float(y["zed"][0]), float(y["abc"][0])) == (1.0, 1.0, 2.0)


@pytest.mark.parametrize("function", [None, without_sign], ids=["", "transformation_fn"])
def test_a_model_learns_predicts_and_is_judged_by_name(
    spark: Any, tmp_path: Any, function: Any
) -> None:
    made = [([0.0] * 4, 100.0, -10.0, 1.0) for _ in range(64)]
    df = spark.createDataFrame(made, ["x", "zed", "abc", "w"]).repartition(2)
    model = StromEstimator(
        model=heads("zed", "abc"),
        optimizer=keras.optimizers.SGD(0.1),
        loss=dict.fromkeys(["zed", "abc"], "mse"),
        loss_weights={"zed": 1.0, "abc": 0.5},
        feature_cols=["x"],
        label_cols=["zed", "abc"],
        sample_weight_col="w",
        transformation_fn=function,
        batch_size=4,
        epochs=6,
        num_proc=1,
        verbose=0,
    ).fit(df)
    given = model.keras.predict(np.zeros((1, 4)), verbose=0)
    assert given["zed"][0, 0] > 50
    assert given["abc"][0, 0] < -5
    model.save(str(tmp_path / "model"))
    elsewhere = StromModel(model=model.keras, feature_cols=["x"], label_cols=["abc", "zed"])
    for one in (model, StromModel.load(str(tmp_path / "model")), elsewhere):
        row = one.transform(df).first()
        assert row["zed__output"] == pytest.approx(given["zed"][0, 0], rel=1e-3)
        assert row["abc__output"] == pytest.approx(given["abc"][0, 0], rel=1e-3)
        expected = (row["zed"] - row["zed__output"]) ** 2
        expected += 0.5 * (row["abc"] - row["abc__output"]) ** 2
        assert one.score(df).first()["score"] == pytest.approx(expected, rel=1e-3)
        assert one.evaluate(df)["loss"] == pytest.approx(expected, rel=1e-3)


def test_what_an_earlier_version_has_saved_is_looked_at_anew() -> None:
    model = heads("zed", "abc")
    outputs = Outputs((Output("zed", ()), Output("abc", ()))).to_json()
    del outputs["named"]
    full = StromModel(model=model, feature_cols=["x"])
    metadata, files = full._contents()
    metadata = json.loads(json.dumps({**metadata, "outputs": outputs}))
    assert StromModel._restored(metadata, files.__getitem__)._outputs is None
