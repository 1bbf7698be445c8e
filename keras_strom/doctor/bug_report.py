"""All that a bug report needs to say of a machine: `keras-strom --version --verbose`.

What also matters to a run (the environment, Keras, the native code, devices) is what the doctor
finds. A part that is broken is told as such, and never keeps the others from being told.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras_strom
from keras_strom.doctor import software
from keras_strom.doctor.finding import Grade
from keras_strom.job import environment
from keras_strom.job.machine_limits import available_memory, usable_cores

# Beside those of which a run needs the same version everywhere.
_PACKAGES = (
    *("cloudpickle", "pandas", "pyarrow", "safetensors", "protobuf", "h5py", "tfx"),
    *("ml-pipelines-sdk", "tensorflow-io", "horovod", "aiohttp", "prometheus-client"),
)
# Their values decide how TensorFlow, Keras and Spark run, and are no secrets.
_SHOWN = (
    *("CUDA_VISIBLE_DEVICES", "JAVA_HOME", "KERAS_BACKEND", "KERAS_HOME", "LD_LIBRARY_PATH"),
    *("LD_PRELOAD", "MALLOC_ARENA_MAX", "OMP_NUM_THREADS", "PYSPARK_DRIVER_PYTHON"),
    *("PYSPARK_PYTHON", "PYTHONPATH", "SPARK_CONF_DIR", "SPARK_HOME", "SPARK_LOCAL_IP"),
    *("TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS", "TF_NUM_INTEROP_THREADS"),
    *("TF_NUM_INTRAOP_THREADS", "TF_XLA_FLAGS", "XLA_FLAGS"),
)
# Of a processor's abilities those by which TensorFlow and the codec choose their code.
_ABILITIES = (
    *("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512bw", "avx512vbmi2", "amx_tile"),
    *("asimd", "sve"),
)
_JAVA_SECONDS = 30.0
_PROCESSOR = Path("/proc/cpuinfo")
_NVIDIA = Path("/proc/driver/nvidia/version")

#: In place of what cannot be told.
BROKEN = "broken"


def collect() -> dict[str, Any]:
    """What there is on this machine, by part; takes seconds, those of TensorFlow's import.

    Returns:
        For `json.dumps`: of each part a text, a list of texts, or a dict of them. A part that
        cannot be told is `{"broken": why}`. There are no values of KERAS_STROM_* variables.

    Example:
        >>> collect()["Python"]["version"] == platform.python_version()
        True
    """
    parts: dict[str, Callable[[], Any]] = {
        "keras-strom": _own,
        "build": _build,
        "Python": _python,
        "system": _system,
        "processor": _processor,
        "codec": _kernels,
        "memory": _memory,
        "packages": _packages,
        "GPU driver": _gpu_driver,
        "Java": _java,
        "variables": _variables,
        "findings": _findings,
    }
    return {name: _told(tell) for name, tell in parts.items()}


def _told(tell: Callable[[], Any]) -> Any:
    try:
        return tell()
    except Exception as error:  # Whatever it is, the other parts are worth being told.
        return {BROKEN: f"{type(error).__name__}: {error}"}


def text(report: dict[str, Any]) -> str:
    """The same for people: a line for each part, and for each of several findings."""
    lines = list(_lines(report))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {words}".rstrip() for name, words in lines)


def _lines(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, told in report.items():
        if isinstance(told, dict) and told.keys() == {BROKEN}:
            yield name, f"cannot be told: {told[BROKEN]}"
        elif name == "findings":
            yield from (_finding(one) for one in told)
        elif isinstance(told, dict):
            yield name, ", ".join(f"{key} {_inline(value)}" for key, value in told.items())
        else:
            yield name, _inline(told)


def _finding(fields: dict[str, str]) -> tuple[str, str]:
    mark = "" if fields["grade"] == Grade.GOOD.value else f"{fields['grade'].upper()}: "
    remedy = f" -> {fields['remedy']}" if fields["remedy"] else ""
    return fields["check"], " ".join(f"{mark}{fields['words']}{remedy}".split())


def _inline(told: Any) -> str:
    return " ".join(map(str, told)) if isinstance(told, list) else str(told)


# ------------------------------------------------------------------ the parts


def _own() -> dict[str, str]:
    folder = str(Path(keras_strom.__file__).parent)
    return {"version": keras_strom.__version__, "in": folder}


def _build() -> dict[str, Any]:
    from keras_strom._native.library import DIRECTORY

    record: dict[str, Any] = json.loads((DIRECTORY / "build.json").read_text("utf-8"))
    return record


def _python() -> dict[str, str]:
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "executable": sys.executable,
    }


def _system() -> dict[str, str]:
    name = "unknown"
    with contextlib.suppress(OSError):
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    return {
        "name": name,
        "kernel": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()) or "unknown",
    }


def _processor() -> dict[str, Any]:
    fields = {}
    for line in _PROCESSOR.read_text().splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    able = (fields.get("flags") or fields.get("Features") or "").split()
    return {
        "model": fields.get("model name", "unknown"),
        "cores": f"{usable_cores():g} of {os.cpu_count()}",
        "abilities": [name for name in _ABILITIES if name in able],
    }


def _kernels() -> dict[str, Any]:
    from keras_strom._native.codec import kernels

    return {"kernels": list(kernels())}


def _memory() -> str:
    of_system = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    available = available_memory()
    free = "?" if available is None else f"{available / 2**30:.1f}"
    return f"{free} of {of_system / 2**30:.1f} GiB are free"


def _packages() -> dict[str, str]:
    found = software.versions()
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _gpu_driver() -> str:
    return _NVIDIA.read_text().splitlines()[0] if _NVIDIA.exists() else "none of NVIDIA's"


def _java() -> str:
    home = environment.variable("JAVA_HOME")
    java = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    if java is None:
        return "none" if home is None else f"none in JAVA_HOME={home}"
    said = subprocess.run(
        [java, "-version"], capture_output=True, text=True, timeout=_JAVA_SECONDS, check=False
    )
    lines = [line for line in said.stderr.splitlines() if "version" in line]
    return f"{lines[0] if lines else said.stderr.strip()} ({java})"


def _variables() -> dict[str, str]:
    shown = {name: value for name in _SHOWN if (value := environment.variable(name)) is not None}
    return {**shown, **dict.fromkeys(environment.own_names(), "(set)")}


def _findings() -> list[dict[str, str]]:
    """Of the doctor, those that `packages` does not tell already."""
    return [one.to_json() for one in software.findings() if one.check != "versions"]
