"""What lies ready to be read: the files of each split, their row groups, and what they hold.

A plain value without Spark or TensorFlow: the driver makes it (`export`, `direct`, `files`), and it
travels to the workers, or rests in the store as JSON.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_strom import errors

from .columns import Columns, ColumnSpec
from .store import Store, StoreRun

_VERSION = 1
# Rows, or bytes, of one file: more than any has, and few enough to be added up.
_MOST = 1 << 48

TRAIN = "train"
VALIDATION = "validation"


@dataclasses.dataclass(frozen=True)
class DataFile:
    """One file.

    Attributes:
        path: below the data's store.
        rows: of each row group, in the file's order; a TFRecord file is one group.
        size_bytes: of its rows, uncompressed.
    """

    path: str
    rows: tuple[int, ...]
    size_bytes: int

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> DataFile:
        """What `dataclasses.asdict` gave.

        Raises:
            KeyError, TypeError, ValueError: it gave something else.
        """
        rows = tuple(map(_count, value["rows"]))
        return cls(_text(value["path"]), rows, _count(value["size_bytes"]))


@dataclasses.dataclass(frozen=True)
class Piece:
    """Rows [begin, end) of one row group of one file."""

    path: str
    group: int
    begin: int
    end: int

    @property
    def rows(self) -> int:
        """How many."""
        return self.end - self.begin


@dataclasses.dataclass(frozen=True)
class ExportedData:
    """Data that workers can read.

    Attributes:
        store: where the files are.
        columns: which columns make an example.
        specs: what each of `columns.names` holds.
        splits: the files of "train" and, where there is one, of "validation".
        format: "parquet" or "tfrecord".
    """

    store: Store
    columns: Columns
    specs: Mapping[str, ColumnSpec]
    splits: Mapping[str, tuple[DataFile, ...]]
    format: str = "parquet"

    def rows(self, split: str = TRAIN) -> int:
        """The number of rows of a split; 0 where it does not exist."""
        return sum(sum(file.rows) for file in self.splits.get(split, ()))

    def size_bytes(self, split: str = TRAIN) -> int:
        """The uncompressed size of a split."""
        return sum(file.size_bytes for file in self.splits.get(split, ()))

    def rows_of(self, rank: int, size: int, split: str = TRAIN) -> int:
        """The number of rows that worker `rank` of `size` reads: all workers' differ by 1 at most.

        Raises:
            InvalidData: there are fewer rows than workers, or there is no such split.
        """
        if not 0 <= rank < size:
            raise errors.InvalidOption(f"rank={rank} must be at least 0 and below size={size}")
        self.check_rows(size, split)
        total = self.rows(split)
        return (rank + 1) * total // size - rank * total // size

    def share(
        self,
        rank: int,
        size: int,
        split: str = TRAIN,
        *,
        seed: int | None = None,
        rows: int | None = None,
    ) -> list[Piece]:
        """The rows of worker `rank` of `size`.

        The row groups stand in a row, and each worker takes the next part of it, so a row group
        may be cut between two of them. Together they read every row exactly once.

        Args:
            rank: this worker.
            size: the number of workers.
            split: which data.
            seed: of the row groups' order, the same on all workers, so that sorted data is spread
                over all of them; None = the files' order.
            rows: the first so many in that order are divided, and no more read; None = all.

        Raises:
            InvalidData: there are fewer rows than workers, or there is no such split.
        """
        self.rows_of(rank, size, split)  # Refuses what makes no sense.
        whole = self.rows(split) if rows is None else rows
        groups = [
            (file.path, index, count)
            for file in self.splits[split]
            for index, count in enumerate(file.rows)
        ]
        order = np.arange(len(groups))
        if seed is not None:
            order = np.random.default_rng(seed).permutation(len(groups))
        begin, end = rank * whole // size, (rank + 1) * whole // size
        ends = np.cumsum([groups[index][2] for index in order])
        pieces = []
        for place in range(int(np.searchsorted(ends, begin, side="right")), len(groups)):
            path, index, count = groups[order[place]]
            first = int(ends[place]) - count
            if first >= end:
                break
            if count:
                pieces.append(Piece(path, index, max(begin - first, 0), min(end - first, count)))
        return pieces

    def steps(self, size: int, batch_size: int, split: str = TRAIN) -> int:
        """Batches an epoch that every one of `size` workers can make, the last one smaller."""
        self.check_rows(size, split)
        return -(-(self.rows(split) // size) // batch_size)

    def check_shares(self, workers: int, *, all_validate: bool) -> None:
        """Refuses data of which some worker gets no row.

        Args:
            workers: how many there are.
            all_validate: whether each of them gets all held-out rows, and not its share.

        Raises:
            InvalidData: there are fewer rows than are shared out.
        """
        for split in self.splits:
            self.check_rows(1 if all_validate and split == VALIDATION else workers, split)

    def check_rows(self, workers: int, split: str = TRAIN) -> None:
        """Refuses a split that gives some worker no row.

        Raises:
            InvalidData: there are fewer rows than workers, or there is no such split.
        """
        if split not in self.splits:
            raise errors.InvalidData(f"there is no {split} data, only {', '.join(self.splits)}")
        rows = self.rows(split)
        if not rows and split == TRAIN:
            raise errors.InvalidData("there are no rows to train on")
        if not rows:
            raise errors.InvalidData(
                "there are no rows to validate on: the column of validation= marks none, or its "
                "share of so few rows is none"
            )
        if rows < workers:
            remedy = "choose fewer workers" if split == TRAIN else "make the validation part larger"
            raise errors.InvalidData(
                f"{rows} row{'s' * (rows > 1)} of {split} data for {workers} workers: each needs "
                f"one; {remedy}"
            )

    def to_json(self) -> str:
        """All but the store, whose options may hold keys; `from_json` reads it."""
        value = {
            "version": _VERSION,
            "columns": dataclasses.asdict(self.columns),
            "specs": {name: spec.to_json() for name, spec in self.specs.items()},
            "splits": {
                split: [dataclasses.asdict(file) for file in files]
                for split, files in self.splits.items()
            },
            "format": self.format,
        }
        return json.dumps(value)

    @classmethod
    def from_json(cls, text: str | bytes, store: Store) -> ExportedData:
        """The value that `to_json` wrote, with the store that its files are in.

        Raises:
            InvalidData: it is something else, or was written by another version.
        """
        try:
            value: dict[str, Any] = json.loads(text)
            if value["version"] != _VERSION:
                raise errors.InvalidData(
                    f"the data's index has version {value['version']!r}, not {_VERSION}: export "
                    "again"
                )
            columns = Columns(**value["columns"])
            return cls(
                store=store,
                columns=columns,
                specs={name: ColumnSpec.from_json(value["specs"][name]) for name in columns.names},
                splits={
                    split: tuple(map(DataFile.from_json, files))
                    for split, files in value["splits"].items()
                },
                format=_text(value["format"]),
            )
        except errors.InvalidData:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise errors.InvalidData(f"no index of exported data: {error!r}") from error

    def save(self, run: StoreRun) -> None:
        """Writes it to `run.data_index`."""
        run.store.write_bytes(run.data_index, self.to_json().encode())

    @classmethod
    def load(cls, run: StoreRun) -> ExportedData:
        """What `save` wrote to a run.

        Raises:
            StoreUnavailable: there is none.
        """
        return cls.from_json(run.store.read_bytes(run.data_index), run.store)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MOST:
        raise ValueError(f"{value!r} counts nothing")
    return value


def _text(value: Any) -> str:
    """What can be a path, so without halves of surrogate pairs."""
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"{value!r} is no text")
    value.encode()
    return value
