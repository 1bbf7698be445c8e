"""A model that an emulated GPU has room for, but not for what sharing takes beside it."""

from unittest import mock

import keras
import pytest

from tests.support import emulated_gpu

emulated_gpu.load(memory=512 << 20)

import numpy as np  # noqa: E402

from keras_strom import StromStrategy, errors  # noqa: E402
from keras_strom.job import machine_limits  # noqa: E402
from keras_strom.strategy import device_memory  # noqa: E402


def dense(strategy: StromStrategy, units: int) -> keras.Model:
    with strategy.scope():
        layer = keras.layers.Dense(units, use_bias=False)
        model = keras.Sequential([keras.Input((10240,)), layer])
        model.compile("sgd", "mse", jit_compile=False)
    return model


def main() -> None:
    zeros = np.zeros((2, 10240)), np.zeros((2, 4096))
    model = dense(StromStrategy(always_encode=True, local_steps=2), 128)
    words = r"10\.5 MB for what 1310720 parameters were before it and before 2 local steps"
    limits = {"/job:localhost/replica:0/task:0/device:GPU:0": 1 << 20}
    with (
        mock.patch.object(device_memory, "_limits", return_value=limits),
        pytest.raises(errors.UnsupportedModel, match=words),
    ):
        model.fit(zeros[0], zeros[1][:, :128], verbose=0)
    model = dense(StromStrategy(always_encode=True), 4096)
    words = r"GPU:0 has too little memory .* 167\.8 MB for what 41943040 parameters"
    with pytest.raises(errors.UnsupportedModel, match=words):
        model.fit(*zeros, verbose=0)
    words = r"this machine has too little memory .* take 335\.5 MB, .* and 314\.6 MB are left"
    container = {"memory.max": str(300 << 20), "memory.current": "0"}
    with (
        mock.patch.object(device_memory, "_limits", dict),
        mock.patch.object(machine_limits, "_read", lambda name: container.get(name, "")),
        pytest.raises(errors.UnsupportedModel, match=words),
    ):
        model.fit(*zeros, verbose=0)


main()
