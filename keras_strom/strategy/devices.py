"""The local devices of a worker: which of TensorFlow's strategies runs its steps.

On one device that is `OneDeviceStrategy`. On several it is `MirroredStrategy`: each has a copy of
the variables and a part of the batch, gradients are added up inside the process, and the worker
still sends one message a step.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import tensorflow as tf

from keras_strom import errors


class _OneDevice(tf.distribute.OneDeviceStrategy):  # type: ignore[misc]
    """Made with a list of devices that has one element."""

    def __init__(self, devices: Sequence[str]) -> None:
        super().__init__(devices[0])


class _SeveralDevices(tf.distribute.MirroredStrategy):  # type: ignore[misc]
    """Made with a list of devices."""

    def __init__(self, devices: Sequence[str]) -> None:
        # TensorFlow's default, collectives, breaks the second strategy of a process: each numbers
        # its reductions from the same start.
        super().__init__(list(devices), tf.distribute.ReductionToOneDevice())


@functools.cache
def over_devices(strategy: type, count: int) -> type:
    """A class that is `strategy` and at the same time TensorFlow's for `count` local devices.

    Args:
        strategy: a subclass of `tf.distribute.Strategy`; its `super().__init__` takes the devices.
        count: how many there are.
    """
    base = _OneDevice if count == 1 else _SeveralDevices
    names = {"__module__": strategy.__module__, "__doc__": strategy.__doc__}
    return type(strategy.__name__, (strategy, base), names)


def local_devices(devices: object) -> tuple[str, ...]:
    """The devices that the option `devices` names, each once.

    Args:
        devices: None for the CPU, a device's name, or several.

    Raises:
        InvalidOption: names that TensorFlow does not know here, or devices that cannot be used.
    """
    names = ["/cpu:0"] if devices is None else [devices] if isinstance(devices, str) else devices
    if not isinstance(names, Sequence) or not names or not all(isinstance(n, str) for n in names):
        raise errors.InvalidOption(
            f"devices={devices!r} must be a device name such as '/cpu:0' or a list of such names"
        )
    indices = [_cpu_index(name) for name in names]
    if len(set(indices)) < len(indices):
        raise errors.InvalidOption(f"devices={devices!r} names a device twice")
    if max(indices) > 0 and max(indices) >= (available := _cpu_devices()):
        raise errors.InvalidOption(
            f"devices={devices!r}: this process has {available} CPU device(s); "
            "tf.config.set_logical_device_configuration makes several of one"
        )
    return tuple(names)


def _cpu_devices() -> int:
    """How many this process has; asking starts TensorFlow, so its options must be set by then."""
    return len(tf.config.list_logical_devices("CPU"))


def _cpu_index(name: str) -> int:
    try:
        device = tf.DeviceSpec.from_string(name)
    except ValueError as error:
        raise errors.InvalidOption(f"devices: {name!r} is no device name: {error}") from error
    if device.device_type not in (None, "CPU"):
        raise errors.InvalidOption(
            f"devices: {name!r}: this version shares variables that live on the CPU only"
        )
    return device.device_index or 0
