"""Versions, what was built for them, and what TensorFlow sees.

    python -m keras_strom.doctor.software

TensorFlow is imported in a process of its own: on a processor that it was not built for, or beside
libraries that it does not fit, it ends its process without an exception.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator

import keras_strom
from keras_strom.doctor.finding import Finding, Grade, of_errors
from keras_strom.job import environment
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.job.gpus import visible

_PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "numpy", "pyspark")
_PROGRAM = ("-m", "keras_strom.doctor.software")
_IMPORT_SECONDS = 300.0
_LAST_WORDS = 400


def findings() -> Iterator[Finding]:
    """Takes seconds, those of TensorFlow's import."""
    installed = ", ".join(f"{name} {version}" for name, version in versions().items())
    yield Finding("versions", Grade.GOOD, installed)
    yield of_errors("environment", _environment)
    yield from _in_another_process()


def main() -> None:
    """Prints what needs TensorFlow, as JSON."""
    found = [of_errors("Keras", _keras)]
    if found[0].grade is Grade.GOOD:
        found += [of_errors("native code", _native), _devices()]
    sys.stdout.write(json.dumps([one.to_json() for one in found]))


def versions() -> dict[str, str]:
    """What is installed here, by its name."""
    found = {"keras-strom": keras_strom.__version__, "Python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _environment() -> Finding:
    place = ClusterEnvironment.from_environ()
    if place.size == 1:
        own = "no place in a job" if place.ip is None else f"KERAS_STROM_IP={place.ip}"
        return Finding("environment", Grade.GOOD, f"the KERAS_STROM_* variables name {own}")
    place.load_credentials()
    return Finding(
        "environment",
        Grade.GOOD,
        f"the KERAS_STROM_* variables name worker {place.rank} of {place.size}, and only their "
        "owner can read its credentials",
    )


def _in_another_process() -> list[Finding]:
    quiet = {**environment.inherited(), "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(
            [sys.executable, *_PROGRAM],
            env=quiet,
            capture_output=True,
            text=True,
            timeout=_IMPORT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        words = f"importing TensorFlow and Keras takes longer than {_IMPORT_SECONDS:g} s"
        return [Finding("Keras", Grade.BAD, words, "is the disk that holds them slow?")]
    if done.returncode != 0:
        return [_crash(done.returncode, done.stderr.strip()[-_LAST_WORDS:])]
    found = done.stdout.splitlines()[-1]  # Libraries, and what a site imports, may print before.
    return [Finding.from_json(one) for one in json.loads(found)]


def _crash(code: int, words: str) -> Finding:
    ended = f"with code {code}" if code > 0 else f"by {signal.Signals(-code).name}"
    remedy = ""
    if code == -signal.SIGILL:
        needed = "with AVX" if platform.machine() == "x86_64" else "newer than this one"
        remedy = f"TensorFlow needs a processor {needed}; build it for this one, or use another"
    return Finding(
        "Keras",
        Grade.BAD,
        f"importing TensorFlow and Keras ends the process {ended}: {words}",
        remedy,
    )


def _keras() -> Finding:
    try:
        import keras
        import tensorflow as tf
    except ImportError as error:
        words = f"TensorFlow and Keras cannot be imported: {error}"
        return Finding("Keras", Grade.BAD, words, 'pip install "keras-strom[tensorflow]"')
    backend = keras.config.backend()
    if backend != "tensorflow":
        return Finding("Keras", Grade.BAD, f"runs on {backend}", "set KERAS_BACKEND=tensorflow")
    return Finding("Keras", Grade.GOOD, f"{keras.__version__} runs on TensorFlow {tf.__version__}")


def _native() -> Finding:
    from keras_strom._native.built_for import read_record
    from keras_strom._native.codec import kernels
    from keras_strom._native.library import DIRECTORY, library
    from keras_strom._native.ops import operations

    library()
    operations()
    built = read_record(DIRECTORY / "build.json")
    return Finding(
        "native code",
        Grade.GOOD,
        f"built with {built.compiler} for TensorFlow {', '.join(built.tensorflows)}; "
        f"this processor encodes with {kernels()[-1]}",
    )


def _devices() -> Finding:
    import tensorflow as tf

    gpus = len(tf.config.list_physical_devices("GPU"))
    if gpus == 0 and (cards := visible(environment.inherited())):
        return Finding(
            "devices",
            Grade.WARNING,
            f"CPU; there are {len(cards)} NVIDIA cards here of which TensorFlow sees none",
            "pip install 'tensorflow[and-cuda]' in the place of tensorflow-cpu, to train on them",
        )
    if gpus == 0:
        return Finding("devices", Grade.GOOD, "CPU; TensorFlow sees no GPU")
    words = f"{gpus} GPU{'s' * (gpus > 1)}; several workers of a machine take one each"
    return Finding("devices", Grade.GOOD, words)


if __name__ == "__main__":
    main()
