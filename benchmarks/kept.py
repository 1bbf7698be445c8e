"""Outcomes of a long benchmark, kept in a file as they come, so that it can be run in pieces.

A run that was cut off, or was of fewer seeds, is gone on with by `--resume`: what was trained with
the same settings is not trained again. Whether the code is still the same is for the user to know;
of what was trained at another revision, with other changes to it, or on another processor, the
report says so.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from benchmarks.report import Report, describe_machine

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
        self._origins: dict[str, str] = {}
        self._given: set[str] = set()
        path.parent.mkdir(parents=True, exist_ok=True)
        if not resume and path.exists():
            path.replace(path.with_name(f"{path.name}.before"))  # Hours may be in it.
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                self._outcomes[entry["training"]] = read(entry["outcome"])
                self._origins[entry["training"]] = entry.get("origin", "not known")

    def get(self, key: str) -> Outcome | None:
        """What is kept of it; None = nothing."""
        self._given.add(key)
        return self._outcomes.get(key)

    def tell_origins(self, result: Report) -> None:
        """Adds a row for each other revision or processor, of whose outcomes some were given."""
        given = [self._origins[key] for key in self._given if key in self._origins]
        for origin, outcomes in sorted(collections.Counter(given).items()):
            if origin != _origin(result.machine):
                result.row(origin, group="Kept of other code or machines", trained=outcomes)

    def put(self, key: str, outcome: Outcome) -> None:
        """Keeps it, in the file too."""
        self._outcomes[key] = outcome
        self._origins[key] = self._own
        fields = dataclasses.asdict(outcome)  # type: ignore[call-overload]
        entry = {"training": key, "origin": self._own, "outcome": fields}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    @functools.cached_property
    def _own(self) -> str:
        return _origin(describe_machine())


def _origin(machine: Mapping[str, Any]) -> str:
    return f"revision {machine['revision']}, {machine['processor']}, {machine['cores']} cores"
