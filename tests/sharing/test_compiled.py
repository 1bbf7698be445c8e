"""What models were compiled with, as all workers must have it."""

from __future__ import annotations

import functools
import math
from typing import Any

import keras
import numpy as np
import pytest

from keras_strom.sharing.compiled import compiled_options


def _options(outputs: int = 1, **arguments: Any) -> str:
    inputs = keras.Input((2,))
    names = [f"out{number}" for number in range(outputs)]
    model = keras.Model(inputs, {name: keras.layers.Dense(1, name=name)(inputs) for name in names})
    model.compile(arguments.pop("optimizer", "sgd"), **arguments)
    return compiled_options([model])


def test_optimizer_loss_and_metrics_are_named() -> None:
    metrics = ["accuracy", keras.metrics.AUC()]
    found = _options(loss="mse", metrics=metrics, weighted_metrics=["mae"])
    assert found == (
        " optimizer=SGD loss=mean_squared_error metrics=accuracy,AUC,mean_absolute_error"
    )
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    assert _options(optimizer=scaled) == " optimizer=Adam"


def test_a_model_that_is_not_compiled_adds_nothing() -> None:
    assert compiled_options([keras.Sequential([keras.layers.Dense(1)])]) == ""


@pytest.mark.parametrize(
    "loss",
    ["mse", "MeanSquaredError", keras.losses.mean_squared_error, keras.losses.MeanSquaredError()],
)
def test_one_loss_has_one_name_however_it_was_given(loss: Any) -> None:
    assert _options(loss=loss) == " optimizer=SGD loss=mean_squared_error"


def _made_anew() -> tuple[list[Any], list[Any]]:
    """Losses and metrics that no other call makes: each worker has its own."""
    factor = keras.Variable(2.0)

    def weighted(y: Any, predicted: Any) -> Any:
        return factor * keras.losses.mean_squared_error(y, predicted)

    class Own(keras.losses.Loss):  # type: ignore[misc]
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return y_true - y_pred

    partial = functools.partial(keras.losses.huber, delta=2.0)
    by_lambda = lambda y, predicted: y - predicted  # noqa: E731
    mean = keras.metrics.MeanMetricWrapper(weighted)
    return [weighted, Own(), by_lambda, partial], [by_lambda, mean, partial, keras.metrics.AUC()]


def test_what_each_worker_makes_anew_is_no_difference() -> None:
    for own, others in zip(*[_made_anew()[0] for _ in range(2)], strict=True):
        assert _options(loss=own) == _options(loss=others)
    own, others = (_made_anew()[1] for _ in range(2))
    assert _options(metrics=own) == _options(metrics=others)


def test_an_own_class_may_have_anything_under_the_name_of_a_wrappers_function() -> None:
    class FalseOnes(keras.metrics.Metric):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.fn = self.add_weight((), "zeros", name="fn")
            self._fn = keras.metrics.FalseNegatives()

        def result(self) -> Any:
            return self.fn

    class Weighted(keras.losses.Loss):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.fn = np.ones(3)

        def call(self, y_true: Any, y_pred: Any) -> Any:
            return y_true - y_pred

    assert _options(loss=Weighted(), metrics=[FalseOnes()]) == (
        " optimizer=SGD loss=Weighted metrics=FalseOnes"
    )


def test_a_custom_loop_may_differ_in_losses_and_metrics() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    assert compiled_options([model], trains_by_fit=False) == " optimizer=SGD"


def test_losses_of_outputs_are_told_apart_by_output() -> None:
    one = _options(2, loss={"out0": "mse", "out1": "mae"})
    assert one == " optimizer=SGD loss=mean_squared_error,mean_absolute_error"
    assert one == _options(2, loss={"out1": "mae", "out0": "mse"})
    assert one != _options(2, loss={"out0": "mae", "out1": "mse"})


def test_many_outputs_have_a_short_text_that_tells_all_of_them() -> None:
    losses = {f"out{number}": "mse" for number in range(300)}
    one = _options(300, loss=losses)
    assert len(one) < 300
    assert one != _options(300, loss={**losses, "out299": "mae"})


def _adapted(words: list[str], numbers: list[float]) -> str:
    texts, values = keras.Input((), dtype="string"), keras.Input((1,))
    words_layer = keras.layers.TextVectorization(output_sequence_length=2)
    bins = keras.layers.Discretization(num_bins=2)
    words_layer.adapt(words)
    bins.adapt(np.array(numbers)[:, None])
    return compiled_options([keras.Model([texts, values], [words_layer(texts), bins(values)])])


def test_layers_that_have_adapted_to_other_data_are_told_apart() -> None:
    one = _adapted(["a b", "b"], [1.0, 2.0, 3.0, 4.0])
    assert one.startswith(" adapted=")
    assert "StringLookup:" in one
    assert "Discretization:" in one
    assert one == _adapted(["b", "a b"], [1.0, 2.0, 3.0, 4.0])
    assert one != _adapted(["a", "a b"], [1.0, 2.0, 3.0, 4.0])
    assert one != _adapted(["a b", "b"], [10.0, 20.0, 30.0, 40.0])


def test_words_of_another_encoding_and_words_that_are_learnt_anew() -> None:
    layer = keras.layers.StringLookup()
    model = keras.Sequential([layer])
    found = []
    for words in ([b"\xe9t\xe9", b"a"], [b"b", b"a", b"c"], [b"d", b"a", b"c"]):
        layer.adapt(np.array(words))
        found.append(compiled_options([model]))
    assert len(set(found)) == 3


@pytest.mark.parametrize("numbers", [[2001.0, 2002.0, 2003.0, 2004.0], [1e9, 2e9, 3e9, 4e9]])
def test_boundaries_are_told_apart_by_their_range(numbers: list[float]) -> None:
    one = _adapted(["a"], numbers)
    assert one == _adapted(["a"], [number * (1 + 1e-8) for number in numbers])
    moved = (numbers[1] - numbers[0]) / 10
    assert one != _adapted(["a"], [number + moved for number in numbers])


def test_the_weights_of_words_count_too() -> None:
    found = []
    for texts in (["a b", "a b", "b"], ["a b", "a", "b b"]):
        layer = keras.layers.TextVectorization(output_mode="tf_idf")
        layer.adapt(texts)
        found.append(compiled_options([keras.Sequential([layer])]))
    assert len(set(found)) == 2


def test_boundaries_may_be_infinite() -> None:
    found = []
    for middle in (0.0, 0.0, 1.0):
        layer = keras.layers.Discretization(bin_boundaries=[-math.inf, -1.0, middle, math.inf])
        found.append(compiled_options([keras.Sequential([layer])]))
    assert found[0] == found[1] != found[2]


def test_layers_that_have_adapted_to_nothing_are_the_same() -> None:
    layers = [keras.layers.StringLookup(), keras.layers.Discretization(num_bins=2)]
    layers += [keras.layers.TextVectorization(output_mode="tf_idf")]
    assert len({compiled_options([keras.Sequential(layers)]) for _ in range(2)}) == 1
