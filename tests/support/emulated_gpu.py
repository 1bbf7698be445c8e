"""GPUs of the host's memory for a TensorFlow without any: tests/native/emulated_gpu.

TensorFlow loads devices once, and they stay until the process ends; so tests use them in
processes of their own, which call `load` before anything else of TensorFlow.
"""

from __future__ import annotations

import ctypes
import functools
import pathlib
from typing import Any

from tests.support import compiled
from tests.support.compiled import ROOT, NotHereError

SOURCES = ROOT / "tests" / "native" / "emulated_gpu"
NATIVE = ROOT / "custom_ops"


class Counts(ctypes.Structure):
    """strom_emulated_gpu_counts: what has happened in all devices together."""

    _fields_ = (
        ("to_device", ctypes.c_int64),
        ("from_device", ctypes.c_int64),
        ("within", ctypes.c_int64),
        ("launches", ctypes.c_int64),
        ("waits", ctypes.c_int64),
        ("pinned", ctypes.c_int64),
    )


def load(devices: int = 1, memory: int = 1 << 30, delay: int = 0, kernels: bool = False) -> None:
    """Gives this process's TensorFlow its GPUs; before TensorFlow has listed any device.

    Args:
        devices: how many.
        memory: of each, in bytes.
        delay: how long new work waits on a stream without other work, in microseconds.
        kernels: whether the codec's kernels run there, as by libstrom_cuda.so, in their emulation.

    Raises:
        NotHereError: they cannot be built here.
    """
    path = build()
    # By the same path TensorFlow finds the same library, with this configuration.
    library = _library(path)
    library.strom_emulated_gpu_configure(
        ctypes.c_int32(devices), ctypes.c_int64(memory), ctypes.c_int32(delay)
    )
    from tensorflow.python.framework import load_library

    load_library.load_pluggable_device_library(str(path))
    if kernels:
        _library(build_kernels())


def counts() -> Counts:
    """What has happened so far; of a process that has called `load`."""
    result = Counts()
    _library(build()).strom_emulated_gpu_count(ctypes.byref(result))
    return result


def lose(device: int = 0) -> None:
    """From now on nothing works on it any more."""
    _library(build()).strom_emulated_gpu_lose(ctypes.c_int32(device))


@functools.cache
def _library(path: pathlib.Path) -> Any:
    import tensorflow as tf  # noqa: F401  the library needs what it has loaded

    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


@functools.cache
def build() -> pathlib.Path:
    """The library for the TensorFlow that is installed; compiled where that is not done yet.

    Raises:
        NotHereError: there is no compiler, or TensorFlow has GPUs of its own.
    """
    import tensorflow as tf

    if tf.test.is_built_with_cuda():
        raise NotHereError("this TensorFlow has another kind of GPU, built into it")
    # Other warnings than TensorFlow's headers' are of interest.
    flags = [flag.replace("-I", "-isystem", 1) for flag in tf.sysconfig.get_compile_flags()]
    return compiled.shared_library(
        "strom_emulated_gpu",
        sorted(SOURCES.glob("*.cc")),
        flags=["-std=c++17", "-O1", f"-DOF_TENSORFLOW={tf.__version__}", *flags],
        link=[*tf.sysconfig.get_link_flags(), "-pthread"],
        depends=sorted(SOURCES.iterdir()),
    )


@functools.cache
def build_kernels() -> pathlib.Path:
    """libstrom_cuda.so with its kernels in the emulation; compiled where that is not done yet.

    Raises:
        NotHereError: there is no compiler, or the package's own libraries are not built here.
    """
    core = [ROOT / "build" / "native" / f"libstrom_core_{room}.a" for room in ("codec", "base")]
    if not all(path.exists() for path in core):
        raise NotHereError("the libraries of core are not built (make native)")
    sources = [NATIVE / "cuda" / "emulated_codec.cc", NATIVE / "cuda" / "emulation.cc"]
    sources += [NATIVE / "capi" / "strom_cuda.cc", NATIVE / "capi" / "error.cc"]
    return compiled.shared_library(
        "strom_cuda_emulated",
        sources,
        flags=["-std=c++20", "-O2", "-ffp-contract=off", "-fvisibility=hidden", f"-I{NATIVE}"],
        link=[*map(str, core), f"-Wl,--version-script={NATIVE}/cuda/names.map", "-pthread"],
        depends=[
            *core,
            *(NATIVE / "cuda").iterdir(),
            *(NATIVE / "capi").glob("*.h"),
            *NATIVE.glob("core/*/*.h"),
        ],
    )
