"""GPUs of the host's memory for a TensorFlow without any: tests/native/emulated_gpu.

TensorFlow loads devices once, and they stay until the process ends; so tests use them in
processes of their own, which call `load` before anything else of TensorFlow.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import os
import pathlib
import shutil
import subprocess
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests" / "native" / "emulated_gpu"
BUILD = ROOT / "build" / "emulated_gpu"


class NotHereError(Exception):
    """It cannot be built on this machine; the message says why."""


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


def load(devices: int = 1, memory: int = 1 << 30, delay: int = 0) -> None:
    """Gives this process's TensorFlow its GPUs; before TensorFlow has listed any device.

    Args:
        devices: how many.
        memory: of each, in bytes.
        delay: how long new work waits on a stream without other work, in microseconds.

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
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise NotHereError("the emulated GPU needs a C++ compiler")
    sources = sorted(SOURCES.glob("*.cc"))
    # Other warnings than TensorFlow's headers' are of interest.
    flags = [flag.replace("-I", "-isystem", 1) for flag in tf.sysconfig.get_compile_flags()]
    link = [*tf.sysconfig.get_link_flags(), "-pthread"]
    digest = hashlib.sha256(" ".join([tf.__version__, compiler, *flags]).encode())
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.read_bytes())
    target = BUILD / digest.hexdigest()[:16] / "libstrom_emulated_gpu.so"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _only_one(target.parent / "lock"):
        if not target.exists():
            ccache = [found] if (found := shutil.which("ccache")) else []
            common = ["-std=c++17", "-O1", "-fPIC", "-Wall", "-Wextra", *flags]
            running = [
                subprocess.Popen(
                    [
                        *ccache,
                        compiler,
                        *common,
                        "-c",
                        str(source),
                        "-o",
                        str(_object(target, source)),
                    ]
                )
                for source in sources
            ]
            if any(process.wait() for process in running):
                raise AssertionError("the emulated GPU does not compile; see above")
            new = target.with_suffix(".new")
            objects = [str(_object(target, source)) for source in sources]
            subprocess.run([compiler, "-shared", "-o", str(new), *objects, *link], check=True)
            new.rename(target)
    return target


def _object(target: pathlib.Path, source: pathlib.Path) -> pathlib.Path:
    return target.with_name(source.stem + ".o")


@contextlib.contextmanager
def _only_one(path: pathlib.Path) -> Any:
    """Other processes wait meanwhile."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
