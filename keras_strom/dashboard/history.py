"""Loss and metrics of every worker over time, in bounded memory: older moments grow coarser."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

_MOST_METRICS = 40


class History:
    """One row of values a moment for each metric: a worker's value or NaN.

    All moments are equally far apart. When there are `moments` of them every second one goes, and
    the distance doubles.

    Args:
        workers: how many there may be.
        moments: how many are kept.
        seconds: from one moment to the next, at first.

    Example:
        >>> history = History(workers=2)
        >>> history.note(1.0, {0: {"loss": 0.5}})
        >>> history.of("loss", [0, 1])["values"]
        [[0.5], [None]]
    """

    def __init__(self, workers: int, moments: int = 240, seconds: float = 1.0) -> None:
        self._workers = workers
        self._moments = moments
        self._seconds = seconds
        self._times: list[float] = []
        self._rows: dict[str, list[array[float] | None]] = {}  # None = nobody had a value.

    @property
    def metrics(self) -> list[str]:
        """Their names, in the order in which they came."""
        return list(self._rows)

    def note(self, now: float, values: Mapping[int, Mapping[str, float]]) -> None:
        """Takes a moment's values by rank, where it is time for one.

        Args:
            now: seconds, never less than before.
            values: of each worker by rank, by metric.
        """
        if self._times and now - self._times[-1] < 0.999 * self._seconds:
            return
        self._times.append(now)
        for rows in self._rows.values():
            rows.append(None)
        for rank, metrics in values.items():
            for name, value in metrics.items():
                if name not in self._rows:
                    if len(self._rows) >= _MOST_METRICS:
                        continue
                    self._rows[name] = [None] * len(self._times)
                row = self._rows[name][-1]
                if row is None:
                    row = self._rows[name][-1] = array("f", [math.nan]) * self._workers
                row[rank] = value
        if len(self._times) >= self._moments:
            self._thin()

    def of(self, metric: str, ranks: Sequence[int]) -> dict[str, Any]:
        """A metric of some workers: `times`, and `values` with a list for each of `ranks`."""
        rows = self._rows.get(metric, [None] * len(self._times))
        return {
            "times": [round(moment, 2) for moment in self._times],
            "values": [
                [None if row is None else _finite(row[rank]) for row in rows] for rank in ranks
            ],
        }

    def spread(self, metric: str) -> dict[str, Any]:
        """A metric over all workers: `times`, and `values`: the least, the median, the largest."""
        rows = self._rows.get(metric, [None] * len(self._times))
        found: list[list[float | None]] = [[], [], []]
        for row in rows:
            known = sorted(value for value in row or () if math.isfinite(value))
            picked = (known[0], known[len(known) // 2], known[-1]) if known else (None,) * 3
            for values, value in zip(found, picked, strict=True):
                values.append(None if value is None else _finite(value))
        return {"times": [round(moment, 2) for moment in self._times], "values": found}

    def _thin(self) -> None:
        self._seconds *= 2
        del self._times[1::2]
        for rows in self._rows.values():
            # A value that came only now and then (an epoch's end) is not lost with its moment.
            kept = []
            for at in range(0, len(rows), 2):
                pair = rows[at : at + 2]
                kept.append(next((row for row in pair if row is not None), None))
            rows[:] = kept


def _finite(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None
