"""Which TFX is installed here: the whole of it, its light SDK, or none."""

from __future__ import annotations

import importlib.util


def has_tfx() -> bool:
    """Whether the whole TFX is here."""
    return _is_here("tfx") and _is_here("tfx.components") and _is_here("tfx.components.trainer")


def require_sdk() -> None:
    """Checks that pipelines can be made here.

    Raises:
        ImportError: they cannot; the message says what to install.
    """
    if not (_is_here("tfx") and _is_here("tfx.dsl") and _is_here("tfx.dsl.components")):
        raise ImportError(
            "StromTrainer needs TFX: `pip install tfx` (Python 3.9 or 3.10), or for a pipeline "
            "without TFX's own components `pip install ml-pipelines-sdk`"
        )
    if not has_tfx() and _is_here("setuptools"):
        # The SDK refuses to make its standard artifacts then; its own words do not tell why.
        raise ImportError(
            "StromTrainer cannot work with ml-pipelines-sdk where setuptools is installed, as the "
            "SDK's standard artifacts refuse to: `pip uninstall setuptools`, or install tfx"
        )


def _is_here(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # ValueError: the module is there without a spec.
        return False
