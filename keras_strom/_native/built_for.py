"""What the native libraries were built for, compared with what is here, in words.

build.json, which setup.py writes beside the libraries, names the TensorFlows whose operators there
are. Nothing here imports TensorFlow: one that two packages have mixed up may end the process.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import struct
from collections.abc import Sequence

from keras_strom import errors
from keras_strom._native import tensorflows

#: What to do where the operators are missing or unfit.
REBUILD = "rebuild them with `pip install --no-build-isolation -e .`"
_FROM_SOURCE = "build keras-strom from its source (docs/install.md)"

# The packages that bring the module tensorflow.
_PACKAGES = (
    "tensorflow",
    "tensorflow-cpu",
    "tf-nightly",
    "tf-nightly-cpu",
    "intel-tensorflow",
    "tensorflow-rocm",
)

# ELF's e_machine by what `platform.machine()` calls it.
_MACHINES = {3: "i686", 40: "armv7l", 62: "x86_64", 183: "aarch64", 243: "riscv64"}


@dataclasses.dataclass(frozen=True)
class Record:
    """What build.json says.

    Attributes:
        tensorflows: the version of each TensorFlow that there are operators for, oldest first.
        compiler: its name and version.
    """

    tensorflows: tuple[str, ...]
    compiler: str


def read_record(path: pathlib.Path) -> Record:
    """Reads build.json.

    Raises:
        InternalError: it is missing, or of another version of keras-strom.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
        versions = found["tensorflow"]
        if not isinstance(versions, list) or not versions:
            raise TypeError(f"tensorflow is {versions!r}, no list of versions")
        return Record(tuple(map(str, versions)), str(found.get("compiler", "?")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise errors.InternalError(
            f"{path} does not say which TensorFlow the operations were built for "
            f"({type(error).__name__}): {REBUILD}"
        ) from error


def operators_for(record: Record, installed: str) -> str:
    """The file name of the operators for the `installed` TensorFlow, `tf.__version__`.

    Raises:
        UnsupportedTensorFlow: there are none for its minor release.
    """
    minors = [tensorflows.minor(version) for version in record.tensorflows]
    try:
        if tensorflows.minor(installed) in minors:
            return tensorflows.library_name(installed)
    except ValueError:
        pass
    built = ", ".join(minors)
    raise errors.UnsupportedTensorFlow(
        f"keras-strom's operations were built for TensorFlow {built}, found {installed}: "
        f'run `pip install "tensorflow=={minors[-1]}.*"`, or build keras-strom from its source '
        "for the TensorFlow that is here with `pip install --no-build-isolation .`"
    )


def look_at_tensorflow(record_path: pathlib.Path, path: Sequence[str]) -> None:
    """Refuses, before it is imported, a TensorFlow that cannot work.

    Where there is no build.json, or a TensorFlow that pip does not know, nothing is said: what uses
    the operators tells.

    Args:
        record_path: build.json.
        path: `sys.path`.

    Raises:
        UnsupportedTensorFlow: of another release, or mixed up of two.
    """
    versions = installed_versions(path)
    if len(set(versions.values())) > 1:
        both = " and ".join(f"{name} {version}" for name, version in versions.items())
        raise errors.UnsupportedTensorFlow(
            f"TensorFlow is installed twice in one place, as {both}, which have overwritten each "
            f"other's files: run `pip uninstall -y {' '.join(versions)}`, then install one of them"
        )
    if versions and record_path.exists():
        operators_for(read_record(record_path), next(iter(versions.values())))


def installed_versions(path: Sequence[str]) -> dict[str, str]:
    """The version of each package that brings the module tensorflow where that is imported from.

    Args:
        path: `sys.path`, or folders like those on it; the first that has such a package counts, for
            it hides the others.
    """
    for folder in path:
        found = {
            name: one.version
            for name in _PACKAGES
            for one in importlib.metadata.distributions(name=name, path=[folder])
        }
        if found:
            return found
    return {}


def why_not_loaded(path: pathlib.Path, words: str) -> errors.StromError:
    """The error for a library that the dynamic linker refuses with `words`."""
    if (made_for := machine_of(path)) not in (None, platform.machine()):
        return errors.UnsupportedSystem(
            f"{path.name} is for {made_for}, and this machine is {platform.machine()}: install "
            f"keras-strom on this machine itself, or {_FROM_SOURCE}"
        )
    if "wrong ELF class" in words:
        return errors.UnsupportedSystem(
            f"{path.name} is for 64 bits, and this Python has {8 * struct.calcsize('P')}: take a "
            "Python of 64 bits, which TensorFlow needs too"
        )
    if (c_library := glibc_version()) is None:
        return errors.UnsupportedSystem(
            f"{path.name} needs the GNU C library, and this system has another one (musl, as in "
            "Alpine Linux), on which TensorFlow does not run either: take an image with glibc, "
            "such as Debian's"
        )
    if lacking := re.search(r"version [`'](GLIBC_|GLIBCXX_|CXXABI_)([\d.]+)'", words):
        if lacking[1] == "GLIBC_":
            return errors.UnsupportedSystem(
                f"{path.name} needs glibc {lacking[2]}, and this system has {c_library}: take a "
                f"newer system, or {_FROM_SOURCE}"
            )
        return errors.UnsupportedSystem(
            f"{path.name} needs a newer libstdc++.so.6 ({lacking[1]}{lacking[2]}) than the one "
            f"that was found first ({words}): take that off LD_LIBRARY_PATH, or {_FROM_SOURCE}"
        )
    return errors.InternalError(
        f"{path} cannot be loaded ({words}): build it with `pip install --no-build-isolation -e .`"
    )


def machine_of(path: pathlib.Path) -> str | None:
    """What an ELF file was made for, as `platform.machine()` says it; None for any other file."""
    with path.open("rb") as file:
        header = file.read(20)
    if len(header) < 20 or header[:4] != b"\x7fELF":
        return None
    (number,) = struct.unpack("<H" if header[5] == 1 else ">H", header[18:20])
    return _MACHINES.get(number, f"ELF machine {number}")


def glibc_version() -> str | None:
    """The GNU C library's version; None where there is another C library."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):
        return None
    return version if name == "glibc" else None
