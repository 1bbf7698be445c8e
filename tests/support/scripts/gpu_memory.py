"""A model that an emulated GPU has room for, but not for what sharing takes beside it."""

from unittest import mock

import keras
import pytest

from tests.support import emulated_gpu

emulated_gpu.load(memory=512 << 20)

import numpy as np  # noqa: E402

from keras_strom import StromStrategy, errors  # noqa: E402
from keras_strom.strategy import device_memory  # noqa: E402


def main() -> None:
    strategy = StromStrategy(always_encode=True)
    with strategy.scope():
        layer = keras.layers.Dense(4096, use_bias=False)
        model = keras.Sequential([keras.Input((10240,)), layer])
        model.compile("sgd", "mse", jit_compile=False)
    zeros = np.zeros((2, 10240)), np.zeros((2, 4096))
    words = r"GPU:0 has too little memory .* 167\.8 MB for what 41943040 parameters"
    with pytest.raises(errors.UnsupportedModel, match=words):
        model.fit(*zeros, verbose=0)
    words = r"this machine has too little memory .* take 335\.5 MB, .* and 314\.6 MB are left"
    with (
        mock.patch.object(device_memory, "_limits", dict),
        mock.patch.object(device_memory, "_available", return_value=300 << 20),
        pytest.raises(errors.UnsupportedModel, match=words),
    ):
        model.fit(*zeros, verbose=0)


main()
