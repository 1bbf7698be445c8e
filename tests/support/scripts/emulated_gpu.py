"""What keras-strom's tests rely on in the emulated GPU; `touch` ends the process by a signal."""

import ctypes
import os
import sys

import numpy as np

from tests.support import emulated_gpu

emulated_gpu.load(2, delay=0 if "touch" in sys.argv else 1000)

import keras  # noqa: E402
import pytest  # noqa: E402
import tensorflow as tf  # noqa: E402


def train(device: str) -> list[np.ndarray]:
    keras.utils.set_random_seed(1)
    x, y = np.random.normal(size=(256, 20)), np.random.normal(size=(256, 3))
    with tf.device(device):
        model = keras.Sequential(
            [keras.Input((20,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(3)]
        )
        model.compile("adam", "mse", jit_compile=False)
        assert all(device in weight.value.device.lower() for weight in model.weights)
        model.fit(x, y, batch_size=64, verbose=0)
    return model.get_weights()


def rows(device: str) -> list[np.ndarray]:
    with tf.device(device):
        table = tf.Variable(tf.reshape(tf.range(12.0), [4, 3]))
        table.scatter_sub(tf.IndexedSlices(tf.ones([3, 3]), tf.constant([1, 3, 1])))
        table.scatter_update(tf.IndexedSlices(tf.zeros([1, 3]), tf.constant([0])))
        seen = table.sparse_read(tf.constant([3, 0]))
    return [table.numpy(), seen.numpy()]


def address(tensor: tf.Tensor) -> int:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    capsule = tf.experimental.dlpack.to_dlpack(tensor)
    return ctypes.c_void_p.from_address(pointer(capsule, b"dltensor")).value or 0


def main() -> None:
    assert len(tf.config.list_physical_devices("GPU")) == 2
    if "touch" in sys.argv:
        with tf.device("/gpu:1"):
            tensor = tf.identity(tf.constant([1.0, 2.0]))
        assert tensor.numpy()[1] == 2
        os.write(1, b"reading")
        ctypes.string_at(address(tensor), 4)
        os.write(1, b", and it can be read")
        return
    for run in (train, rows):
        here, there = run("cpu:0"), run("gpu:1")
        assert all(map(np.array_equal, here, there)), run
    assert emulated_gpu.counts().launches > 0
    emulated_gpu.lose(0)
    with pytest.raises(tf.errors.InternalError, match="DEVICE_LOST"), tf.device("/gpu:0"):
        tf.identity(tf.constant(1.0)).numpy()


main()
