"""Outcomes of a long benchmark, kept in a file as they come, so that it can be run in pieces.

A run that was cut off, or was of fewer seeds, is gone on with by `--resume`: what was trained with
the same settings is not trained again. Whether the code is still the same is for the user to know.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

Outcome = TypeVar("Outcome")


class Kept(Generic[Outcome]):
    """A file of outcomes, one a line, by the text of all that each depends on.

    Args:
        path: of the file.
        read: makes an outcome, which is a dataclass, of its fields as JSON gives them.
        resume: whether to begin with what the file holds; else it is begun anew, and the old one
            stays as NAME.before.
    """

    def __init__(
        self, path: pathlib.Path, read: Callable[[Mapping[str, Any]], Outcome], *, resume: bool
    ) -> None:
        self._path = path
        self._outcomes: dict[str, Outcome] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if not resume and path.exists():
            path.replace(path.with_name(f"{path.name}.before"))  # Hours may be in it.
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                self._outcomes[entry["training"]] = read(entry["outcome"])

    def get(self, key: str) -> Outcome | None:
        """What is kept of it; None = nothing."""
        return self._outcomes.get(key)

    def put(self, key: str, outcome: Outcome) -> None:
        """Keeps it, in the file too."""
        self._outcomes[key] = outcome
        entry = {"training": key, "outcome": dataclasses.asdict(outcome)}  # type: ignore[call-overload]
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
