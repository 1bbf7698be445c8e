"""The TensorFlow releases that keras-strom's operators are made for: the one list.

A new minor release of TensorFlow is one line of `TENSORFLOWS`. setup.py takes the extras'
requirements from it, `make release` the operators that a wheel carries, `make test-release` what
it installs. Without any import but the standard library's, for setup.py runs this file by itself.
"""

from __future__ import annotations

import re

#: The last patch of each minor release, oldest first. Operators fit every patch of their minor.
TENSORFLOWS = (
    "2.16.2",
    "2.17.1",
    "2.18.1",
    "2.19.1",
    "2.20.0",
    "2.21.0",
)

#: The Pythons that the wheel is tested with; the libraries do not use Python's own interface.
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def minor(version: str) -> str:
    """The minor release of a TensorFlow: "2.21" of "2.21.0" and of "2.21.0-rc1".

    Raises:
        ValueError: it begins with no two numbers.
    """
    found = re.match(r"\d+\.\d+", version)
    if not found:
        raise ValueError(f"{version!r} is no version of TensorFlow")
    return found[0]


def library_name(version: str) -> str:
    """The file of the operators for a TensorFlow, beside libstrom.so."""
    return f"_strom_ops_{minor(version)}.so"


def requirement(package: str) -> str:
    """What an extra asks of pip: every minor release of the list, and no later one."""
    major, last = minor(TENSORFLOWS[-1]).split(".")
    return f"{package} >={minor(TENSORFLOWS[0])}, <{major}.{int(last) + 1}"
