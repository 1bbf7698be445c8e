"""The local devices of a worker: which they are, and which TensorFlow strategy runs its steps.

On one device that is `OneDeviceStrategy`. On several it is `MirroredStrategy`: each has a copy of
the variables and a part of the batch, gradients are added up inside the process, and the worker
still sends one message a step.

Where the user names none, a worker takes the GPUs that it sees, as TensorFlow does; several workers
of one machine that see the same ones take one each, by their local ranks.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_strom import errors
from keras_strom.job.environment import ClusterEnvironment, inherited
from keras_strom.job.gpus import visible

_logger = logging.getLogger("keras_strom")

_NEEDS = (
    "It needs tensorflow[and-cuda] in the place of tensorflow-cpu, and NVIDIA's driver, and "
    "CUDA_VISIBLE_DEVICES may hide GPUs or name some that are not there"
)

# How many GPUs this process saw before it hid all but one from TensorFlow, by that one.
_seen_before: dict[Any, int] = {}


class _OneDevice(tf.distribute.OneDeviceStrategy):  # type: ignore[misc]
    """Made with a list of devices that has one element."""

    def __init__(self, devices: Sequence[str]) -> None:
        super().__init__(devices[0])


class _SeveralDevices(tf.distribute.MirroredStrategy):  # type: ignore[misc]
    """Made with a list of devices."""

    def __init__(self, devices: Sequence[str]) -> None:
        # TensorFlow's default, collectives, breaks the second strategy of a process: each numbers
        # its reductions from the same start.
        super().__init__(list(devices), _reduction(devices))


def _reduction(devices: Sequence[str]) -> tf.distribute.CrossDeviceOps:
    """By NVIDIA's library for it between GPUs, where this TensorFlow has that."""
    if _type_and_index(devices[0])[0] == "GPU" and _has_nccl() and not _divides_cards():
        return tf.distribute.NcclAllReduce()
    return tf.distribute.ReductionToOneDevice()


def _has_nccl() -> bool:
    from tensorflow.python.framework import kernels

    return bool(kernels.get_registered_kernels_for_op("NcclAllReduce").kernel)


def _divides_cards() -> bool:
    """Whether logical GPUs share a card, which NVIDIA's library refuses."""
    return len(tf.config.list_logical_devices("GPU")) != len(tf.config.get_visible_devices("GPU"))


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


def local_devices(devices: object, environment: ClusterEnvironment) -> tuple[str, ...]:
    """The devices that the option `devices` names, each once; TensorFlow is told how to use them.

    Args:
        devices: None for the GPUs that are this worker's, or the CPU where there are none; or a
            device's name, or several of one kind.
        environment: of the worker, which says whether it shares its GPUs.

    Raises:
        InvalidOption: names that TensorFlow does not know here, or devices that cannot be used; or
            the worker needs a GPU and TensorFlow sees none.
    """
    if devices is None:
        own = _own_gpus(environment)
        if not own:
            _miss_gpus(environment)
        return own or ("/cpu:0",)
    names = [devices] if isinstance(devices, str) else devices
    if not isinstance(names, Sequence) or not names or not all(isinstance(n, str) for n in names):
        raise errors.InvalidOption(
            f"devices={devices!r} must be a device name such as '/gpu:0' or a list of such names"
        )
    kinds, indices = zip(*map(_type_and_index, names), strict=True)
    if len(set(kinds)) > 1:
        raise errors.InvalidOption(
            f"devices={devices!r} mixes CPU and GPU, of which a worker has one kind: leave out the "
            "CPU, or give it to a worker of its own"
        )
    if len(set(indices)) < len(indices):
        raise errors.InvalidOption(f"devices={devices!r} names a device twice")
    if kinds[0] == "GPU":
        _check_gpus(devices, max(indices))
        if _shares_cards(environment):
            _let_memory_grow(tf.config.get_visible_devices("GPU"))
    elif environment.shares_gpus:
        _leave_gpus()
    if kinds[0] == "CPU" and max(indices) > 0 and max(indices) >= (available := _cpu_devices()):
        raise errors.InvalidOption(
            f"devices={devices!r}: this process has {available} CPU device(s); "
            "tf.config.set_logical_device_configuration makes several of one"
        )
    return tuple(names)


def _own_gpus(environment: ClusterEnvironment) -> tuple[str, ...]:
    """Those of the GPUs that this process sees which are this worker's; none: ()."""
    seen = tf.config.get_visible_devices("GPU")
    if not seen:
        return ()
    own = seen
    count = _seen_before.get(seen[0], 1) if len(seen) == 1 else len(seen)
    if environment.shares_gpus:
        own = [seen[environment.local_rank % len(seen)]]
        if len(seen) > 1 and _is_set(tf.config.set_visible_devices, own, "GPU"):
            _seen_before[own[0]] = count
            seen = own  # Of the others TensorFlow would take the memory, too.
    if _shares_cards(environment, count):
        _let_memory_grow(own)
    return _names(own, seen)


def _names(own: Sequence[Any], seen: Sequence[Any]) -> tuple[str, ...]:
    """TensorFlow's names of the logical devices that `own` are, of all that it sees."""
    divisions = [tf.config.get_logical_device_configuration(gpu) for gpu in seen]
    gpus = [gpu for gpu, parts in zip(seen, divisions, strict=True) for _ in parts or (None,)]
    names = [f"/gpu:{index}" for index in range(len(gpus))]
    if any(divisions):
        names = [device.name for device in tf.config.list_logical_devices("GPU")]
    return tuple(name for name, gpu in zip(names, gpus, strict=True) if gpu in own)


def _miss_gpus(environment: ClusterEnvironment) -> None:
    """Says what keeps TensorFlow from GPUs that there are, or refuses to go on without."""
    if environment.needs_gpu:
        raise errors.InvalidOption(
            f"worker {environment.rank} is to train on a GPU (use_gpu=True, or "
            f"KERAS_STROM_NEEDS_GPU=1), and TensorFlow sees none in its process. {_NEEDS}"
        )
    if cards := visible(inherited()):
        _logger.warning(
            "worker %d trains on the CPU: TensorFlow sees none of the GPUs that its process may "
            "use (%s). %s. StromStrategy(devices='/cpu:0') says that it is meant so",
            environment.rank,
            ", ".join(cards),
            _NEEDS,
        )


def _leave_gpus() -> None:
    """TensorFlow would take all the memory of GPUs on which others train and this worker not."""
    if tf.config.get_visible_devices("GPU") and not _is_set(
        tf.config.set_visible_devices, [], "GPU"
    ):
        _logger.warning(
            "TensorFlow was in use before StromStrategy was made, so GPUs that others use and this "
            "worker does not cannot be hidden from it any more, and it may take their memory; make "
            "the strategy first, or set CUDA_VISIBLE_DEVICES=-1"
        )


def _shares_cards(environment: ClusterEnvironment, seen: int = 1) -> bool:
    """Whether another worker may have the same card, where all of a machine see so many."""
    return environment.shares_gpus and (
        environment.gpus is not None or environment.local_size > seen
    )


def _let_memory_grow(gpus: Sequence[Any]) -> None:
    """TensorFlow takes memory when it needs it, where it would take all of a card at the start."""
    for gpu in gpus:
        if tf.config.get_logical_device_configuration(gpu):
            continue  # The user has said how much each takes.
        if not _is_set(tf.config.experimental.set_memory_growth, gpu, True):
            _logger.warning(
                "TensorFlow was in use before StromStrategy was made, so how it takes the memory "
                "of %s, which other workers share, cannot be set any more; make the strategy "
                "first, or set TF_FORCE_GPU_ALLOW_GROWTH=true",
                gpu.name,
            )
            return


def _is_set(setting: Any, *arguments: Any) -> bool:
    """Applies a setting of TensorFlow; False: its runtime has started, so that it is too late."""
    try:
        setting(*arguments)
    except RuntimeError:
        return False
    return True


def _check_gpus(devices: object, last: int) -> None:
    seen = tf.config.get_visible_devices("GPU")
    if not seen:
        raise errors.InvalidOption(
            f"devices={devices!r}: TensorFlow sees no GPU in this process. {_NEEDS}; on Spark "
            "use_gpu=True gives workers theirs"
        )
    count = len(seen)
    if any(map(tf.config.get_logical_device_configuration, seen)):
        count = len(tf.config.list_logical_devices("GPU"))
    if last >= count:
        raise errors.InvalidOption(
            f"devices={devices!r}: this process sees {count} GPU(s), '/gpu:0' to "
            f"'/gpu:{count - 1}'; CUDA_VISIBLE_DEVICES says which"
        )


def _cpu_devices() -> int:
    """How many this process has; asking starts TensorFlow, so its options must be set by then."""
    return len(tf.config.list_logical_devices("CPU"))


def _type_and_index(name: str) -> tuple[str, int]:
    try:
        device = tf.DeviceSpec.from_string(name)
    except ValueError as error:
        raise errors.InvalidOption(f"devices: {name!r} is no device name: {error}") from error
    if device.device_type not in (None, "CPU", "GPU"):
        raise errors.InvalidOption(
            f"devices: {name!r}: keras-strom trains on devices of the kinds CPU and GPU only"
        )
    return device.device_type or "CPU", device.device_index or 0
