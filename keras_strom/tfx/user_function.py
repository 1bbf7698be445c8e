"""The user's `run_fn`, carried from the pipeline to the workers.

A `module_file` travels as text, with the other Python files beside it, which it may import; so
workers need not see the file. A `run_fn` given by its name must be installed on the workers.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from keras_strom import errors
from keras_strom.tfx.options import to_json


@dataclasses.dataclass(frozen=True)
class UserFunction:
    """A function by name, and the files it comes in.

    Attributes:
        module: its module's name.
        name: its own.
        sources: Python files, name -> text; empty = the module is installed on the workers.

    Example:
        >>> UserFunction("model", "run_fn", {"model.py": "def run_fn(fn_args): ..."}).module
        'model'
    """

    module: str
    name: str
    sources: dict[str, str]

    @classmethod
    def of_path(cls, path: str) -> UserFunction:
        """The function called `package.module.function`, which is installed on the workers."""
        module, _, name = path.rpartition(".")
        if not (module and all(part.isidentifier() for part in path.split("."))):
            raise errors.InvalidOption(
                f'run_fn={path!r} must be a name such as "package.module.function"'
            )
        return cls(module, name, {})

    def to_json(self) -> str:
        """The text that travels."""
        return to_json("run_fn", dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> UserFunction:
        """Reads `to_json`'s text."""
        return cls(**json.loads(text))

    def load(self, folder: str) -> Callable[[Any], Any]:
        """Imports the function on a worker.

        Args:
            folder: where the sources are written; it must outlive the function.

        Raises:
            InvalidOption: there is no such module or function.
        """
        module = self._import_sources(folder) if self.sources else self._import_installed()
        function = getattr(module, self.name, None)
        if not callable(function):
            raise errors.InvalidOption(f"module {self.module} has no function {self.name}")
        loaded: Callable[[Any], Any] = function
        return loaded

    def _import_sources(self, folder: str) -> Any:
        for name, text in self.sources.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        # Last, so that a file beside the module hides nothing that is installed; the module itself
        # is taken from its file, whatever else has its name.
        sys.path.append(folder)
        path = os.path.join(folder, f"{self.module}.py")
        spec = importlib.util.spec_from_file_location(self.module, path)
        if spec is None or spec.loader is None:
            raise errors.InternalError(f"{path} cannot be imported")
        module = importlib.util.module_from_spec(spec)
        sys.modules[self.module] = module
        spec.loader.exec_module(module)
        return module

    def _import_installed(self) -> Any:
        try:
            return importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            # A module that it imports in turn may be missing just as well; then say so.
            if error.name is None or not f"{self.module}.".startswith(f"{error.name}."):
                raise
            raise errors.InvalidOption(
                f"run_fn {self.module}.{self.name}: a worker finds no module {error.name}; install "
                "it where Spark's executors run, or give its file as module_file="
            ) from error
