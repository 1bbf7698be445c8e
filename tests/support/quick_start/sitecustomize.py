"""Run by every Python that the tests start, so that importing Keras takes a third less.

Python looks for garbage after 700 new objects; imports make a million of them, and no garbage.
Keras imports matplotlib in case somebody plots, and scikit-learn in case somebody wraps a model for
it; whoever else imports them has them.
"""

import gc
import importlib.abc
import sys
from collections.abc import Sequence

gc.set_threshold(200_000, 20, 100)


class _NotForKeras(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        if name in ("matplotlib", "sklearn") and _importer().startswith("keras."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _importer() -> str:
    """The module whose import statement runs."""
    frame = sys._getframe(2)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("importlib."):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


sys.meta_path.insert(0, _NotForKeras())
