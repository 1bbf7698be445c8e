"""What workers do: run a script, or call a function."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable
from typing import Any

from keras_strom import errors

# As who knows mpirun writes it: keras-strom run python train.py
_PYTHON = re.compile(r"python[0-9.]*")


@dataclasses.dataclass(frozen=True)
class Script:
    """A Python file and its arguments, run as `python path arguments...`."""

    path: str
    arguments: tuple[str, ...] = ()

    def check(self) -> None:
        """Looks whether it is there, and no program.

        Raises:
            InvalidOption: there is no name, or no such file, nobody here may read it, or it is a
                folder, Python itself or another program.
        """
        if not self.path:
            raise errors.InvalidOption(
                "the script's name is empty; was a variable of the shell not set?"
            )
        is_file = os.path.isfile(self.path)
        if _is_program(self.path) if is_file else _PYTHON.fullmatch(self.path):
            raise errors.InvalidOption(
                f"{self.path} is a program, and no Python file: workers are started by the Python "
                "that runs this command; give the script alone"
            )
        if os.path.isdir(self.path):
            raise errors.InvalidOption(f"{self.path} is a folder; give the script in it")
        if not is_file:
            raise errors.InvalidOption(f"no such script: {self.path}")


def _is_program(path: str) -> bool:
    """Whether a file has what no Python file has, a null byte, where programs have many."""
    try:
        with open(path, "rb") as file:
            return b"\0" in file.read(64)
    except OSError as error:
        raise errors.InvalidOption(f"the script cannot be read: {error}") from None


@dataclasses.dataclass(frozen=True)
class Function:
    """A call, pickled by cloudpickle: `pickle.loads(payload)` is (function, args, kwargs).

    Attributes:
        payload: the pickled call.
        name: of the function, for those who watch.
    """

    payload: bytes
    name: str = "a function"

    @classmethod
    def of(cls, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Function:
        """The call `function(*args, **kwargs)`.

        Raises:
            InvalidOption: cloudpickle is not installed.
        """
        try:
            import cloudpickle
        except ImportError as error:
            raise errors.InvalidOption(
                "cloudpickle, with which a function travels to its workers, is not installed here: "
                "pip install cloudpickle"
            ) from error
        name = getattr(function, "__name__", cls.name)
        return cls(cloudpickle.dumps((function, args, kwargs)), name)
