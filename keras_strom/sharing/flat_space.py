"""The flat space: the float32 variables of a strategy one after another, as every worker sees them.

Entries are appended in the order in which the program creates them, which is the same on every
worker, and never move. The layout's hash over shapes and dtypes lets the master refuse a worker
whose program differs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_strom._native.library import layout_hash

Floats = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class Entry:
    """One variable's place: flat elements [offset, offset + size)."""

    variable: Any
    offset: int
    size: int

    @property
    def place(self) -> slice:
        """Its elements of the flat space."""
        return slice(self.offset, self.offset + self.size)

    @property
    def primary(self) -> Any:
        """The `tf.Variable` on the worker's first device, which the native ops work on."""
        return self._on_devices[0]

    @property
    def copies(self) -> list[Any]:
        """Those on its other devices, where there are any; they follow the primary."""
        return self._on_devices[1:]

    @property
    def _on_devices(self) -> list[Any]:
        several = isinstance(self.variable, tf.distribute.DistributedValues)
        return list(self.variable.values) if several else [self.variable]


def ranges_of(entries: Iterable[Entry]) -> list[tuple[int, int]]:
    """(offset, size) of what they cover in the flat space, neighbours merged.

    Args:
        entries: in flat order.
    """
    ranges: list[tuple[int, int]] = []
    for entry in entries:
        if ranges and sum(ranges[-1]) == entry.offset:
            begin, size = ranges.pop()
            ranges.append((begin, size + entry.size))
        elif entry.size:
            ranges.append((entry.offset, entry.size))
    return ranges


class FlatSpace:
    """An append-only list of float32 variables.

    Whose changes are sent shows only when an optimizer touches a variable: a trainable one that
    none ever touches has a place and a common start, but its changes stay here.

    Example:
        >>> space = FlatSpace()
        >>> space.add(tf.Variable([1.0, 2.0]))  # doctest: +SKIP
    """

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._sent: set[int] = set()
        self._changed_by_rows: set[int] = set()
        self._receivers: set[int] = set()
        self._agreed: int | None = None
        self._trained: set[int] = set()
        self.size = 0

    def __contains__(self, variable: Any) -> bool:
        return id(variable) in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, variable: Any) -> None:
        """Appends `variable`; does nothing when it has a place already.

        The space keeps the variable alive: a place must never be taken over by another one.
        """
        if variable in self:
            return
        size = int(np.prod(variable.shape, dtype=np.int64))
        self._entries[id(variable)] = Entry(variable, self.size, size)
        self.size += size

    def touch(self, variable: Any) -> None:
        """From now on the changes of `variable` are sent."""
        self._sent.add(id(variable))

    def change_rows(self, variable: Any) -> None:
        """A step changes rows of `variable` in place: TensorFlow copies it at each read then."""
        self._changed_by_rows.add(id(variable))

    def has_changed_rows(self, variable: Any) -> bool:
        """Whether any step so far changes rows of `variable` in place."""
        return id(variable) in self._changed_by_rows

    @property
    def entries(self) -> list[Entry]:
        """All entries in ascending offset order."""
        return list(self._entries.values())

    def entries_of(self, variables: Iterable[Any]) -> list[Entry]:
        """The entries of those of `variables` that have a place."""
        return [self._entries[id(v)] for v in variables if v in self]

    def expect(self, variable: Any) -> None:
        """Has `variable` take what other workers send, even before its changes are sent here.

        Another worker may be ahead and have trained it already, for example where steps alternate
        between two models.
        """
        self._receivers.add(id(variable))

    def agree(self) -> None:
        """Fixes what takes part: variables added later do not, until it is called again."""
        self._agreed = self.size

    def is_agreed(self, variable: Any) -> bool:
        """Whether a variable that has a place may take part."""
        entry = self._entries[id(variable)]
        return self._agreed is None or entry.offset + entry.size <= self._agreed

    @property
    def participants(self) -> list[Entry]:
        """The entries that a step passes to the core, in ascending offset order.

        Variables without elements are not among them, so no two have the same offset.
        """
        keys = self._sent | self._receivers
        return [
            entry
            for key, entry in self._entries.items()
            if entry.size and key in keys and self.is_agreed(entry.variable)
        ]

    def train(self, entries: list[Entry]) -> None:
        """A training of these variables begins; those of earlier models take part in steps, too."""
        self._trained = {entry.offset for entry in entries if entry.size}

    @property
    def trained(self) -> list[Entry]:
        """Of the participants those that the latest training is about; all where it said none."""
        found = [entry for entry in self.participants if entry.offset in self._trained]
        return found or self.participants

    def is_sent(self, entry: Entry) -> bool:
        """Whether the changes of `entry` are sent."""
        return id(entry.variable) in self._sent

    def hash(self) -> int:
        """Names the layout; equal on two workers when all shapes and dtypes are."""
        return layout_hash([("float32", tuple(e.variable.shape)) for e in self._entries.values()])

    def read(self) -> Floats:
        """A copy of all values, flat."""
        values = np.empty(self.size, np.float32)
        for entry in self._entries.values():
            values[entry.place] = entry.variable.numpy().ravel()
        return values

    def assign(self, values: Floats, entries: list[Entry]) -> None:
        """Assigns the variables of `entries` from the flat `values` of the whole space."""
        for entry in entries:
            entry.variable.assign(values[entry.place].reshape(entry.variable.shape))


def update_copies(entries: list[Entry]) -> Any:
    """Gives the variables on the worker's other devices the values of those on its first."""
    return tf.group(
        *(
            copy.assign(entry.primary.read_value(), read_value=False)
            for entry in entries
            for copy in entry.copies
        )
    )
