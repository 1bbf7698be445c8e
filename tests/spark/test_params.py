"""What the Params of an estimator take besides what they are documented with."""

from __future__ import annotations

import pickle

import keras
import numpy as np
import pytest

pytest.importorskip("pyspark")

from keras_strom import errors
from keras_strom.spark import StromEstimator
from keras_strom.spark.training.worker_training import Code


def test_numbers_of_numpy_are_taken_as_grids_have_them() -> None:
    given = {"batch_size": np.int64(8), "validation": np.float32(0.25), "shuffle": np.False_}
    estimator = StromEstimator(**given)
    for name, value in (("batch_size", 8), ("validation", 0.25), ("shuffle", False)):
        found = estimator.getOrDefault(name)
        assert (type(found), found) == (type(value), value)
    with pytest.raises(errors.InvalidOption, match=r"epochs=2\.5"):
        StromEstimator(epochs=np.float64(2.5))


def test_an_estimator_can_be_pickled() -> None:
    estimator = StromEstimator(epochs=3, label_cols=["age"])
    again = pickle.loads(pickle.dumps(estimator))
    assert again.extractParamMap() == estimator.extractParamMap()
    with pytest.raises(errors.InvalidOption, match="epochs=0"):
        again.setParams(epochs=0)


def test_a_function_that_makes_no_list_of_callbacks_is_named() -> None:
    stops = keras.callbacks.EarlyStopping()
    for made, expected in ((None, []), ((stops,), [stops]), ([stops], [stops])):
        assert Code(callbacks=lambda made=made: made).made_callbacks() == expected
    for made in (stops, ["EarlyStopping"]):
        with pytest.raises(errors.InvalidOption, match=r"callbacks=.* has made .*, no list of"):
            Code(callbacks=lambda made=made: made).made_callbacks()
