"""Whether a GPU has room for what sharing takes there, asked before the first step."""

from __future__ import annotations

from collections import Counter

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.eager import context

from keras_strom import errors
from keras_strom.job.machine_limits import available_memory
from keras_strom.sharing.flat_space import FlatSpace

_FLOAT_BYTES = 4
# What the op keeps of a parameter in the host's memory beside its residual: what it was when the op
# left it, and what is being fetched (custom_ops/tf/host_copies.h).
_HOST_BYTES = 2 * _FLOAT_BYTES


def check_memory(space: FlatSpace, local_steps: int = 1) -> None:
    """Refuses a training for whose steps a GPU's memory is too small.

    While a step runs, what the shared variables were before it lies beside what they are after it;
    of several local steps what they were before the first one, too, on the first device. Residuals
    and messages are in the host's memory, and so are copies that travel. What other processes have
    taken of a card is not known here.

    Args:
        space: the variables that are shared.
        local_steps: H, steps of the optimizer from one message to the next.

    Raises:
        TooLittleMemory: with the figures.
    """
    needed: Counter[str] = Counter()
    for entry in space.entries:
        for variable in (entry.primary, *entry.copies):
            needed[variable.device] += entry.size * _FLOAT_BYTES
        if local_steps > 1:
            needed[entry.primary.device] += entry.size * _FLOAT_BYTES
    if not any("device:GPU" in name for name in needed):
        return
    limits = _limits()
    too = " it" if local_steps == 1 else f" it and before {local_steps} local steps"
    for name, wanted in needed.items():
        limit = limits.get(name, 0)
        if "device:GPU" not in name or limit <= 0:
            continue
        short = name.rpartition("device:")[2]
        used = tf.config.experimental.get_memory_info(short)["current"]
        if used + wanted > limit:
            raise errors.TooLittleMemory(
                f"device {short} has too little memory for sharing: a step needs "
                f"{_in_megabytes(wanted)} for what {space.size} parameters were before{too}, "
                f"and of the {_in_megabytes(limit)} that TensorFlow may use there "
                f"{_in_megabytes(used)} are taken; take fewer workers a card or a larger card, or "
                'train on the CPU: StromStrategy(devices="/cpu:0")'
            )
    wanted, there = space.size * _HOST_BYTES, available_memory()
    if there is not None and wanted > there:
        raise errors.TooLittleMemory(
            f"this machine has too little memory for a training on GPUs: copies of {space.size} "
            f"parameters take {_in_megabytes(wanted)}, beside their residuals, and "
            f"{_in_megabytes(there)} are left; take fewer workers a machine"
        )


def _limits() -> dict[str, int]:
    """Bytes that TensorFlow may use of each device, by the device's full name."""
    found = pywrap_tfe.TFE_ContextListDevices(context.context()._handle)
    try:
        return {
            pywrap_tfe.TF_DeviceListName(found, i): int(
                pywrap_tf_session.TF_DeviceListMemoryBytes(found, i)
            )
            for i in range(pywrap_tfe.TF_DeviceListCount(found))
        }
    finally:
        pywrap_tfe.TF_DeleteDeviceList(found)


def _in_megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
