"""What one worker reads of exported data, whichever library reads it for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from .columns import ColumnSpec
from .exported import ExportedData, Piece

#: Some rows: an array [rows, *shape] a column, in the order of `columns.names`.
Arrays = tuple[np.ndarray[Any, Any], ...]


@dataclasses.dataclass(frozen=True)
class ReadPlan:
    """What one worker reads.

    Attributes:
        exported: the data.
        pieces: this worker's row groups.
        window: mix the rows within so many; None = keep the order.
        seed: of the mixing.
    """

    exported: ExportedData
    pieces: Sequence[Piece]
    window: int | None
    seed: tuple[int, ...]

    @property
    def specs(self) -> list[ColumnSpec]:
        """Of the columns, in the order of `columns.names`."""
        return [self.exported.specs[name] for name in self.exported.columns.names]
