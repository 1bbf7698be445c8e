"""The joint model of MPCA SGD, SparkNet and EASGD, owned by libstrom.so: the master's arithmetic.

For benchmarks and tests; in a job the master holds it itself. The equations are those of MPCA SGD
(Langer, Hall, He and Rahayu): x~ is the joint model, v~ its trajectory, x* the target.
"""

from __future__ import annotations

import ctypes
import dataclasses

import numpy as np
import numpy.typing as npt

from keras_strom._native.library import check, declare
from keras_strom._native.local_model import MethodStruct, RangeStruct
from keras_strom.method import MethodNumbers

Floats = npt.NDArray[np.float32]

_HANDLE = ctypes.c_int64
_INT64 = ctypes.c_int64
_FLOATS = ctypes.POINTER(ctypes.c_float)


@dataclasses.dataclass(frozen=True)
class JointValues:
    """Copies of what a joint model holds, each [size] and float32.

    Attributes:
        joint: x~.
        trajectory: v~, in parameters a cycle.
        target: x*, to which workers are pulled.
    """

    joint: Floats
    trajectory: Floats
    target: Floats


class JointModel:
    """The joint model, by shards. Calls on one are serialised by the library.

    Args:
        method: what is done with snapshots.
        start: [size] values to begin with.

    Example:
        >>> from keras_strom import SparkNet
        >>> model = JointModel(SparkNet().numbers(workers=2), np.zeros(16, np.float32))
        >>> model.add(0, np.ones(16, np.float32), steps=5)
        >>> model.update(0)
        >>> float(model.read().joint[0])
        1.0
    """

    def __init__(self, method: MethodNumbers, start: Floats) -> None:
        handle = _HANDLE()
        start = np.ascontiguousarray(start, np.float32)
        create = declare(
            "strom_joint_model_create",
            ctypes.POINTER(MethodStruct),
            _FLOATS,
            _INT64,
            ctypes.POINTER(_HANDLE),
        )
        numbers = MethodStruct.of(method)
        check(create(ctypes.byref(numbers), _pointer(start), start.size, ctypes.byref(handle)))
        self.handle: int = handle.value
        self._size = int(start.size)

    def shard(self, shard: int) -> tuple[int, int]:
        """Where it lies: offset and size."""
        out = RangeStruct()
        function = declare(
            "strom_joint_model_shard", _HANDLE, ctypes.c_int32, ctypes.POINTER(RangeStruct)
        )
        check(function(self.handle, shard, ctypes.byref(out)))
        return int(out.offset), int(out.size)

    def add(self, offset: int, values: Floats, steps: int) -> None:
        """A worker's snapshot of elements from `offset` on, with `steps` own steps behind it."""
        values = np.ascontiguousarray(values, np.float32)
        function = declare("strom_joint_model_add", _HANDLE, _INT64, _FLOATS, _INT64, _INT64)
        check(function(self.handle, offset, _pointer(values), values.size, steps))

    def move(self, offset: int, difference: Floats) -> None:
        """EASGD: moves the joint model by `difference`, from element `offset` on."""
        difference = np.ascontiguousarray(difference, np.float32)
        function = declare("strom_joint_model_move", _HANDLE, _INT64, _FLOATS, _INT64)
        check(function(self.handle, offset, _pointer(difference), difference.size))

    def update(self, shard: int) -> None:
        """(9), (8), (4), (5): takes the mean of what was added to the shard into it."""
        check(declare("strom_joint_model_update", _HANDLE, ctypes.c_int32)(self.handle, shard))

    def read(self) -> JointValues:
        """Copies of x~, v~ and x*."""
        values = JointValues(*(np.empty(self._size, np.float32) for _ in range(3)))
        function = declare("strom_joint_model_read", _HANDLE, _FLOATS, _FLOATS, _FLOATS)
        arrays = (values.joint, values.trajectory, values.target)
        check(function(self.handle, *map(_pointer, arrays)))
        return values

    def alpha(self) -> tuple[float, int]:
        """The pull that is due, and the cycles that every shard has finished."""
        alpha, cycles = ctypes.c_double(), _INT64()
        function = declare(
            "strom_joint_model_alpha",
            _HANDLE,
            ctypes.POINTER(ctypes.c_double),
            ctypes.POINTER(_INT64),
        )
        check(function(self.handle, ctypes.byref(alpha), ctypes.byref(cycles)))
        return alpha.value, cycles.value

    def close(self) -> None:
        """Frees it. Idempotent."""
        handle, self.handle = self.handle, 0
        if handle:
            check(declare("strom_joint_model_close", _HANDLE)(handle))


def pull(x: Floats, target: Floats, alpha: float) -> None:
    """(7), in place: x += alpha (target - x), each operation rounded to float32.

    Args:
        x: contiguous float32 values of any shape.
        target: as many.
        alpha: 0 leaves x as it is, 1 makes it the target.

    Raises:
        ValueError: `x` and `target` differ in size, or one is no contiguous float32 array.
    """
    for array in (x, target):
        if array.dtype != np.float32 or not array.flags.c_contiguous:
            raise ValueError("a pull takes contiguous arrays of float32")
    if x.size != target.size:
        raise ValueError(f"a pull of {x.size} values to a target of {target.size}")
    function = declare("strom_pull", _FLOATS, _FLOATS, _INT64, ctypes.c_float, ctypes.c_void_p)
    check(function(_pointer(x), _pointer(target), x.size, alpha, None))


def _pointer(array: Floats) -> ctypes._Pointer[ctypes.c_float]:
    return array.ctypes.data_as(_FLOATS)
