"""What both ways out of Spark share: rows are checked, encoded and put into splits in its tasks.

The one pass over a DataFrame also counts its faults, so bad data is refused before a worker starts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from keras_strom import errors
from keras_strom.checks import whole_number

from .columns import REPAIR, ColumnSpec, Fields
from .exported import TRAIN, VALIDATION
from .tensors import Allowed, Faults, counted, decode, encode, odd_values

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_ARROW_BATCH_BYTES = 64 << 20
# What a value is taken to weigh where only the data knows: a picture, a few words.
_BINARY_BYTES = 256 << 10
_STRING_BYTES = 64

_VALIDATION_COLUMN = "_strom_validation"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowPlan:
    """What becomes of the rows.

    Attributes:
        specs: the columns, in order.
        fraction: of the rows to hold out as validation data; None = none.
        marked: whether a last column marks the rows to hold out.
        seed: of the choice.
        allowed: labels that the loss takes, by column.
    """

    specs: Mapping[str, ColumnSpec]
    fraction: float | None = None
    marked: bool = False
    seed: int = 0
    allowed: Mapping[str, Allowed] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        whole_number("seed", self.seed, least=0)


@dataclasses.dataclass(frozen=True)
class ValueChecks:
    """What is asked of the values.

    Attributes:
        allowed: of label columns that a loss takes some numbers of only.
        harms: whether a value in each of a column's rows spoils the training; None = that cannot
            be told.
    """

    allowed: Mapping[str, Allowed]
    harms: Callable[[str, float], bool | None]

    def harmful(self, faults: Faults, name: str, spec: ColumnSpec) -> Faults:
        """The faults of a column without the NaN and infinity that the model can take.

        Those of which that cannot be told are a warning.
        """
        nans = self.harms(name, np.nan) if faults.nans else False
        infinities = self.harms(name, np.inf) if faults.infinities else False
        unknown = Faults(
            nans=faults.nans if nans is None else 0,
            infinities=faults.infinities if infinities is None else 0,
        )
        if unknown:
            warnings.warn(
                f"{unknown.describe(name, spec)}: whether that spoils the training cannot be told, "
                "for loss or gradients are not finite on rows of zeros or ones either",
                RuntimeWarning,
                stacklevel=2,
            )
        return dataclasses.replace(
            faults,
            nans=faults.nans if nans else 0,
            infinities=faults.infinities if infinities else 0,
        )


def marks(df: DataFrame, validation: float | str | None) -> list[Column]:
    """The column that marks validation rows, where `validation` names one, for `columns.select`.

    Raises:
        InvalidData: no such column, or one that holds something else.
        InvalidOption: neither a fraction nor a name.
    """
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types

    if validation is None:
        return []
    if isinstance(validation, str):
        fields = Fields(df)
        found = fields.of(validation)
        if not found:
            raise errors.InvalidData(
                f"no validation column {validation!r} in the DataFrame; it has "
                f"{', '.join(map(repr, df.columns))}"
            )
        fields.refuse_several([validation])
        if not isinstance(found[0].dataType, types.BooleanType | types.NumericType):
            raise errors.InvalidData(
                f"the validation column {validation!r} must be Boolean or 0 and 1, not "
                f"{found[0].dataType.simpleString()}"
            )
        name = validation.replace("`", "``")
        return [F.col(f"`{name}`").cast("double").alias(_VALIDATION_COLUMN)]
    if not isinstance(validation, float) or not 0.0 < validation < 1.0:
        raise errors.InvalidOption(
            f"validation={validation!r} must be a fraction between 0.0 and 1.0, or a column's name"
        )
    return []


class CheckedRows:
    """The rows of one partition, on their way out.

    Attributes:
        faults: what is wrong with which columns so far.

    Args:
        plan: what becomes of them.
        partition: which one, for the choice of validation rows.
    """

    def __init__(self, plan: RowPlan, partition: int) -> None:
        self._plan = plan
        self._held_out = _HeldOut(plan, partition)
        self.faults: dict[str, Faults] = {}

    def encode(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """(split, rows as they are stored); after the first fatal fault the rest is counted."""
        for batch in batches:
            if not batch.num_rows:
                continue
            mask = self._held_out.mask(batch, self._add)
            arrays = []
            for index, (name, spec) in enumerate(self._plan.specs.items()):
                array, fault = encode(batch.column(index), spec)
                self._add(name, fault)
                if array is not None:
                    self._add(name, self._odd_values(name, array, spec))
                arrays.append(array)
            if any(fault.is_fatal for fault in self.faults.values()):
                continue
            encoded = pa.RecordBatch.from_arrays(arrays, names=list(self._plan.specs))
            if mask is None:
                yield TRAIN, encoded
            else:
                yield TRAIN, encoded.filter(pa.array(~mask))
                yield VALIDATION, encoded.filter(pa.array(mask))

    def faults_as_json(self) -> dict[str, dict[str, Any]]:
        """For `check_faults` on the driver."""
        return {name: dataclasses.asdict(fault) for name, fault in self.faults.items()}

    def _odd_values(self, name: str, array: pa.Array, spec: ColumnSpec) -> Faults:
        if spec.dtype not in ("float32", "int32", "int64"):
            return Faults()
        values = decode(pa.chunked_array([array]), spec, name, "")
        return odd_values(values, self._plan.allowed.get(name))

    def _add(self, name: str, fault: Faults) -> None:
        if fault:
            self.faults[name] = self.faults.get(name, Faults()) + fault


def check_faults(
    reports: Iterable[Mapping[str, Mapping[str, Any]]],
    specs: Mapping[str, ColumnSpec],
    validation: float | str | None,
    checks: ValueChecks | None = None,
) -> None:
    """Refuses data with nulls, misshapen rows, or values that the training does not take.

    Args:
        reports: each partition's `faults_as_json`.
        specs: the columns.
        validation: as the user gave it.
        checks: of the values; None = NaN and infinity may be.

    Raises:
        InvalidData: names each such column, and how many rows.
    """
    totals: dict[str, Faults] = {}
    for report in reports:
        for name, fault in report.items():
            totals[name] = totals.get(name, Faults()) + Faults(**fault)
    words: list[str] = []
    for name in specs:
        if name in totals:
            faults, allowed = totals[name], None
            if checks is None:
                faults = dataclasses.replace(faults, nans=0, infinities=0)
            else:
                faults = checks.harmful(faults, name, specs[name])
                allowed = checks.allowed.get(name)
            words += filter(None, [faults.describe(name, specs[name], allowed)])
    mark = totals.get(_VALIDATION_COLUMN)
    if mark is not None and mark.nulls:
        words.append(f"the validation column {validation!r} has {counted(mark.nulls)} with nulls")
    if mark is not None and mark.misshapen:
        words.append(
            f"the validation column {validation!r} has {mark.misshapen} values other than 0 and 1"
        )
    if words:
        raise errors.InvalidData(f"{'; '.join(words)}: {REPAIR}")


@contextlib.contextmanager
def tasks(session: SparkSession, specs: Mapping[str, ColumnSpec]) -> Iterator[None]:
    """Runs a job over the rows: Arrow batches of bounded size, and the tasks' errors as ours.

    Spark hands over 10000 rows at once whatever they weigh, and pictures weigh too much for that.
    Errors of the DataFrame's own pass through.

    Args:
        session: the DataFrame's.
        specs: its columns.

    Raises:
        StromError: what a task has raised.
    """
    row_bytes = sum(_bytes_of(spec) for spec in specs.values())
    with _rows_at_once(session, max(1, _ARROW_BATCH_BYTES // row_bytes)):
        try:
            yield
        except Exception as error:
            cause = explain(error)
            if cause is error:
                raise
            raise cause from None


@dataclasses.dataclass
class _RowsAtOnce:
    """A session's setting while passes are under way.

    Attributes:
        usual: what it is without them; 0 or less = no bound.
        now: what it is.
        wanted: the rows that each of them takes at once.
    """

    usual: int
    now: int
    wanted: list[int] = dataclasses.field(default_factory=list)

    def keep_to_all(self, session: SparkSession) -> None:
        """Sets what suits all; nothing where that is so, as in a session that is stopped by now."""
        bounds = [*self.wanted, self.usual] if self.usual > 0 else self.wanted
        least = min(bounds, default=self.usual)
        if least != self.now:
            session.conf.set(_ARROW_ROWS, str(least))
            self.now = least


_rows_of_session: dict[int, _RowsAtOnce] = {}
_rows_lock = threading.Lock()


@contextlib.contextmanager
def _rows_at_once(session: SparkSession, rows: int) -> Iterator[None]:
    """Has Spark hand over so many rows at once, or fewer where the session says so.

    All passes of a session, which threads may run at the same time, share its setting.
    """
    with _rows_lock:
        if id(session) not in _rows_of_session:
            usual = int(session.conf.get(_ARROW_ROWS) or 0)
            _rows_of_session[id(session)] = _RowsAtOnce(usual, usual)
        shared = _rows_of_session[id(session)]
        shared.wanted.append(rows)
        shared.keep_to_all(session)
    try:
        yield
    finally:
        with _rows_lock:
            shared.wanted.remove(rows)
            if not shared.wanted:
                del _rows_of_session[id(session)]
            shared.keep_to_all(session)


def explain(error: Exception) -> Exception:
    """An error of ours that a task has raised, out of the traceback that Spark made of it.

    Returns:
        That error, or `error` itself where it is none of ours.
    """
    found = re.search(r"^keras_strom\.errors\.(\w+): (.*)$", str(error), re.MULTILINE)
    kind = getattr(errors, found.group(1), None) if found else None
    if found is None or not isinstance(kind, type) or not issubclass(kind, errors.StromError):
        return error
    return kind(found.group(2))


def _bytes_of(spec: ColumnSpec) -> int:
    """Of one value; a guess where their lengths differ."""
    if spec.dtype == "string":
        return _BINARY_BYTES if spec.kind == "binary" else _STRING_BYTES
    return spec.size * np.dtype(spec.dtype).itemsize


class _HeldOut:
    """Chooses the rows of one partition that are validation data.

    A fraction is kept to exactly in every stretch of rows, not just on average: of the first n rows
    n times the fraction are chosen, give or take one, at random places within each batch.
    """

    def __init__(self, plan: RowPlan, partition: int) -> None:
        self._plan = plan
        self._random = np.random.default_rng((plan.seed, partition))
        self._debt = self._random.random()

    def mask(
        self, batch: pa.RecordBatch, add_fault: Callable[[str, Faults], None]
    ) -> np.ndarray[Any, Any] | None:
        """Which of the next rows are held out; None = there is no validation data."""
        if self._plan.marked:
            marks = batch.column(_VALIDATION_COLUMN)
            values = marks.fill_null(0.0).to_numpy(zero_copy_only=False)
            wrong = int(np.count_nonzero((values != 0) & (values != 1)))
            add_fault(_VALIDATION_COLUMN, Faults(nulls=marks.null_count, misshapen=wrong))
            return np.asarray(values == 1)
        if self._plan.fraction is None:
            return None
        self._debt += batch.num_rows * self._plan.fraction
        count, self._debt = int(self._debt), self._debt % 1.0
        mask = np.zeros(batch.num_rows, bool)
        mask[self._random.permutation(batch.num_rows)[:count]] = True
        return mask
