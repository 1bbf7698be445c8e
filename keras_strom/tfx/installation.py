"""Which TFX is installed here: the whole of it, its light SDK, or none. Loads none of it."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os


def has_tfx() -> bool:
    """Whether the whole TFX is here."""
    return _has_part("components/trainer")


def require_sdk() -> None:
    """Checks that pipelines can be made here.

    Raises:
        ImportError: they cannot; the message says what to install.
    """
    if not _has_part("dsl/components"):
        raise ImportError(
            "StromTrainer needs TFX: `pip install tfx` (Python 3.9 or 3.10), or for a pipeline "
            "without TFX's own components `pip install ml-pipelines-sdk`"
        )
    if not has_tfx() and _find("setuptools") is not None:
        # The SDK refuses to make its standard artifacts then; its own words do not tell why.
        raise ImportError(
            "StromTrainer cannot work with ml-pipelines-sdk where setuptools is installed, as the "
            "SDK's standard artifacts refuse to: `pip uninstall setuptools`, or install tfx"
        )


def _has_part(folder: str) -> bool:
    spec = _find("tfx")
    places = spec.submodule_search_locations if spec is not None else None
    return any(os.path.isdir(os.path.join(place, folder)) for place in places or ())


def _find(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ValueError:  # Someone has put something else in the module's place.
        return None
