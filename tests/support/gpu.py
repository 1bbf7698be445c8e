"""The GPU on which its tests run: a card where TensorFlow has one, elsewhere the emulated one.

`load` comes before anything else of TensorFlow in a process of its own.
"""

from __future__ import annotations

import os

from tests.support import emulated_gpu
from tests.support.compiled import NotHereError


def is_card() -> bool:
    """Whether this process's TensorFlow computes on a card; the first call looks for one."""
    import tensorflow as tf

    return bool(tf.test.is_built_with_cuda() and tf.config.list_physical_devices("GPU"))


def require() -> None:
    """Makes what `load` needs.

    Raises:
        NotHereError: there is no card, and none can be emulated.
    """
    if not is_card():
        emulated_gpu.build()


def load(devices: int = 1, memory: int = 1 << 30, delay: int = 0, kernels: bool = False) -> None:
    """Gives this process its GPUs.

    Args:
        devices: how many; where there are fewer cards, parts of the first one.
        memory: of each, in bytes.
        delay: how late an emulated GPU's streams are, in microseconds.
        kernels: whether steps may stay on the device.

    Raises:
        NotHereError: there is no card, and none can be emulated.
    """
    if not is_card():
        return emulated_gpu.load(devices, memory, delay, kernels)
    import tensorflow as tf

    cards = tf.config.list_physical_devices("GPU")
    if not kernels:
        os.environ["KERAS_STROM_GPU_STEP"] = "off"
    if devices > len(cards):
        parts = [tf.config.LogicalDeviceConfiguration(memory_limit=max(memory >> 20, 1024))]
        tf.config.set_logical_device_configuration(cards[0], parts * devices)
    else:
        for card in cards:
            tf.config.experimental.set_memory_growth(card, True)
    # Two runs of a step give the same bits, and those of float32.
    tf.config.experimental.enable_op_determinism()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    tf.keras.utils.set_random_seed(0)


__all__ = ["NotHereError", "is_card", "load", "require"]
