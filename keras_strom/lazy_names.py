"""Public names of a package whose import is to load nothing: each is imported at its first use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """A package's `__getattr__` (PEP 562).

    Args:
        package: its `__name__`.
        modules: of each public name the module of the package that defines it.
    """

    def get(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(importlib.import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)  # From now on it is found without this function.
        return value

    return get
