"""A worker's rows through tensorflow-io's operators, for those who must: `reader="tfio"`.

They read one row of one column at a time, so this is much slower than pyarrow. Its wheels fit one
TensorFlow version each; where the operators do not load, the error says so.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from keras_strom import errors

from .read_plan import ReadPlan

if TYPE_CHECKING:
    import tensorflow as tf

_BLOCK_ROWS = 1 << 12


def examples(plan: ReadPlan) -> tf.data.Dataset:
    """The rows in blocks, as `fit`'s elements; mixed anew in every iteration where asked for.

    Raises:
        InvalidOption: the operators cannot be loaded, or do not read such columns.
    """
    import tensorflow as tf

    names = list(plan.exported.columns.names)
    tensors = [name for name in names if plan.exported.specs[name].shape]
    if tensors:
        raise errors.InvalidOption(
            f"reader='tfio' reads numbers and strings only, not {', '.join(map(repr, tensors))}: "
            "use reader='pyarrow'"
        )
    library = _load()
    parts = [
        library.IODataset.from_parquet(path, columns=names).skip(begin).take(end - begin)
        for path, begin, end in _stretches(plan)
    ]
    rows = functools.reduce(lambda left, right: left.concatenate(right), parts)
    if plan.window is not None:
        # Python's hash of integers is the same everywhere.
        seed = hash(plan.seed) & 0x7FFFFFFF
        rows = rows.shuffle(plan.window, seed, reshuffle_each_iteration=True)

    def convert(row: dict[str, tf.Tensor]) -> tuple[Any, ...]:
        values = [
            row[name] if spec.dtype == "string" else tf.cast(row[name], spec.dtype)
            for name, spec in zip(names, plan.specs, strict=True)
        ]
        return plan.exported.columns.arrange(values)

    return rows.batch(_BLOCK_ROWS).map(convert, num_parallel_calls=2).prefetch(2)


def _load() -> Any:
    """tensorflow-io, once its operators have been seen to work."""
    try:
        import tensorflow_io
        from tensorflow_io.python.ops import core_ops

        core_ops.io_parquet_readable_info  # noqa: B018 - the library is loaded by asking for it.
    except (ImportError, AttributeError, NotImplementedError, OSError) as error:
        import tensorflow as tf

        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise errors.InvalidOption(
            f"reader='tfio': tensorflow-io does not load with TensorFlow {tf.__version__} "
            f"({reason}); install the release made for it, or use reader='pyarrow'"
        ) from error
    return tensorflow_io


def _stretches(plan: ReadPlan) -> list[tuple[str, int, int]]:
    """The pieces as rows [begin, end) of whole files."""
    first: dict[tuple[str, int], int] = {}
    for files in plan.exported.splits.values():
        for file in files:
            row = 0
            for group, rows in enumerate(file.rows):
                first[file.path, group] = row
                row += rows
    return [
        (piece.path, start + piece.begin, start + piece.end)
        for piece in plan.pieces
        for start in [first[piece.path, piece.group]]
    ]
