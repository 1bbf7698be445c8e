"""What executors do with a trained model: predict, measure and score, a batch at a time.

A Python worker of Spark loads the model once and keeps it for the partitions that follow. Rows come
and go as Arrow batches; nothing here goes over them one by one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keras_strom import errors
from keras_strom.tracebacks import first_words

from ..data.columns import REPAIR, Columns, ColumnSpec
from ..data.tensors import decode, encode
from .keras_losses import chosen
from .labels import of_each_output, of_outputs
from .outputs import OutputColumns, Outputs, nested
from .serialization import PackedModel

if TYPE_CHECKING:
    from pyspark import Broadcast

#: The last column, in which a row's own columns travel, whatever their names and types.
ROW = "_keras_strom_row"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inference:
    """What an executor is payload; the same value for all of them.

    Attributes:
        model: the model.
        columns: what the rows hold that the model is given.
        specs: of `columns.names` and `trained.names`, with examples of those alone that rows lack.
        trained: what the model has been trained on, labels and weight included.
        outputs: of the model.
        batch_size: rows a step.
        transformation_fn: as in training.
    """

    model: PackedModel
    columns: Columns
    specs: Mapping[str, ColumnSpec]
    trained: Columns
    outputs: Outputs
    batch_size: int
    transformation_fn: Callable[..., Any] | None


@dataclasses.dataclass(frozen=True)
class InPlan:
    """Stands for a broadcast where there is none (Spark Connect): the value travels in the plan."""

    value: bytes


@dataclasses.dataclass(frozen=True)
class BroadcastPayload:
    """A value on its way to executors: an `Inference`, or an `Averaging` of parameter averaging.

    Attributes:
        key: tells models apart, so that a Python worker loads each once.
        pickled: by cloudpickle, since a broadcast knows pickle only.
    """

    key: str
    pickled: Broadcast[bytes] | InPlan


@contextlib.contextmanager
def taking_labels() -> Iterator[None]:
    """What the loss or a metric raises, as ours.

    Raises:
        InvalidData: in its place.
    """
    try:
        yield
    except errors.StromError:
        raise
    except Exception as error:  # Whatever a loss makes of labels.
        words = first_words((str(error).strip() or type(error).__name__).splitlines())
        raise errors.InvalidData(
            f"the loss or a metric does not take the labels: {words}"
        ) from error


def predict(
    payload: BroadcastPayload, made: OutputColumns, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Adds the model's outputs to rows of features and `ROW`."""
    inference, model = _loaded_once(payload)

    def outputs(x: Any, *_: Any) -> list[np.ndarray[Any, Any]]:
        return [np.asarray(one) for one in in_order_of(made.outputs, model.predict_on_batch(x))]

    for batch in batches:
        pieces = [outputs(*piece) for piece in _pieces(inference, batch)]
        tensors = [np.concatenate(parts) for parts in zip(*pieces, strict=True)]
        if not tensors:
            continue
        yield _with_columns(batch, made.names, made.arrays(tensors))


def measure(
    payload: BroadcastPayload, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """One row: what the model's metrics have counted in this partition, pickled.

    Or the `InvalidData` that it has met: no other attempt of the task would do better.
    """
    counted: list[npt.NDArray[Any]] | errors.InvalidData | None
    try:
        counted = _counted(payload, batches)
    except errors.InvalidData as error:
        counted = error
    if counted is not None:
        state = pa.array([pickle.dumps(counted)], pa.binary())
        yield pa.RecordBatch.from_arrays([state], names=["state"])


def _counted(
    payload: BroadcastPayload, batches: Iterator[pa.RecordBatch]
) -> list[npt.NDArray[Any]] | None:
    """What the model's metrics have counted; None = there are no rows."""
    inference, model = _loaded_once(payload)
    steps = 0
    for batch in batches:
        for piece in _pieces(inference, batch):
            with taking_labels():
                if steps == 0:
                    model.reset_metrics()
                    model.test_on_batch(*piece)
                else:
                    # From Keras 3.15 on `test_on_batch` forgets what metrics have counted before.
                    x, y, weight = keras.utils.unpack_x_y_sample_weight(piece)
                    model.test_function(iter([(x, y, weight)]))
            steps += 1
    return [np.asarray(variable) for variable in metric_state(model)] if steps else None


def score(
    payload: BroadcastPayload, name: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Adds each row's loss to rows of features, labels and `ROW`."""
    inference, model = _loaded_once(payload)
    for batch in batches:
        given = list(_pieces(inference, batch))
        with taking_labels():
            pieces = [losses(model, inference.outputs, *piece) for piece in given]
        if pieces:
            yield _with_columns(batch, (name,), [nested(np.concatenate(pieces))])


def metric_state(model: keras.Model) -> list[Any]:
    """The variables that the model's metrics count in, the loss's first."""
    return [variable for metric in model.metrics for variable in metric.variables]


def metric_results(model: keras.Model) -> dict[str, Any]:
    """What the model's metrics say now, by name: a float, or an array where it has several."""
    results: dict[str, Any] = {}
    for name, value in model.get_metrics_result().items():
        found = value if isinstance(value, Mapping) else {name: value}
        results |= {
            one: float(result) if np.ndim(result) == 0 else np.asarray(result)
            for one, result in found.items()
        }
    return results


def flat(structure: Any) -> list[Any]:
    """A model's outputs in their order: a dict's as they stand in it."""
    if isinstance(structure, Mapping):
        return list(structure.values())
    return list(structure) if isinstance(structure, list | tuple) else [structure]


def in_order_of(outputs: Outputs, predicted: Any) -> list[Any]:
    """What a model gives, in the order of `outputs`: a dict's by their names."""
    if isinstance(predicted, Mapping):
        return [predicted[name] for name in outputs.names]
    return flat(predicted)


def examples(
    columns: Columns,
    arrays: Mapping[str, np.ndarray[Any, Any]],
    transformation_fn: Callable[..., Any] | None,
) -> tuple[Any, ...]:
    """Columns as (x, y[, weight]), as the reader gives them in training.

    Args:
        columns: which there are.
        arrays: [rows, *shape] by name.
        transformation_fn: is applied to them.
    """
    import tensorflow as tf

    values = columns.arrange([tf.constant(arrays[name]) for name in columns.names])
    if transformation_fn is None:
        return values
    changed = transformation_fn(*values)
    return changed if isinstance(changed, tuple) else (changed,)


def zeros(spec: ColumnSpec, rows: int) -> np.ndarray[Any, Any]:
    """Examples of a column that hold nothing, or, of bytes and strings, what is known of a row."""
    if spec.dtype == "string":
        return np.full(rows, spec.example, object)
    return np.zeros((rows, *spec.shape), spec.dtype)


_loaded: dict[str, tuple[Inference, keras.Model]] = {}


def _loaded_once(payload: BroadcastPayload) -> tuple[Inference, keras.Model]:
    if payload.key not in _loaded:
        inference: Inference = pickle.loads(payload.pickled.value)
        _loaded.clear()
        _loaded[payload.key] = inference, inference.model.load()
    return _loaded[payload.key]


def _pieces(inference: Inference, batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """A batch in steps of `batch_size` rows, as (x, y[, weight])."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    words: list[str] = []
    # By place: Spark may give a batch's columns other names than the DataFrame's.
    for name, column in zip(inference.columns.names, batch.columns, strict=False):
        spec = inference.specs[name]
        encoded, faults = encode(column, spec)
        if encoded is None:
            words.append(faults.describe(name, spec))
        else:
            arrays[name] = decode(pa.chunked_array([encoded]), spec, name, "")
    if words:
        raise errors.InvalidData(f"{'; '.join(words)}: {REPAIR}")
    for begin in range(0, batch.num_rows, inference.batch_size):
        rows = min(inference.batch_size, batch.num_rows - begin)
        part = {name: array[begin : begin + rows] for name, array in arrays.items()}
        columns = inference.columns
        if inference.transformation_fn is not None:
            # It takes what it took in training; what it makes of these labels is not looked at.
            columns = inference.trained
            absent = [name for name in columns.names if name not in part]
            part |= {name: zeros(inference.specs[name], rows) for name in absent}
        yield examples(columns, part, inference.transformation_fn)


def _with_columns(
    batch: pa.RecordBatch, names: Sequence[str], arrays: Sequence[pa.Array]
) -> pa.RecordBatch:
    row = batch.column(batch.num_columns - 1)
    kept = [row.field(index) for index in range(row.type.num_fields)]
    fields = [row.type.field(index).name for index in range(row.type.num_fields)]
    return pa.RecordBatch.from_arrays([*kept, *arrays], names=[*fields, *names])


def losses(
    model: keras.Model, outputs: Outputs, x: Any, y: Any = None, weight: Any = None
) -> np.ndarray[Any, Any]:
    """Each example's loss, float32 [rows]: the outputs' losses by their weights, summed.

    What Keras masks in an example (padding, with `mask_zero=True`) does not count in it.

    Raises:
        InvalidData: there are no labels for a loss, or not one for each output.
        UnsupportedModel: a loss gives one number for all rows.
    """
    predicted = in_order_of(outputs, model.predict_on_batch(x))
    total = np.zeros(len(predicted[0]), "float32")
    losses_of = of_each_output(model.loss, outputs)
    weights = of_each_output(model.get_compile_config()["loss_weights"], outputs)
    labels = of_outputs(y, outputs, model.loss)
    if labels is None:
        raise errors.InvalidData(
            f"there is not one label for each of the outputs {', '.join(outputs.names)}"
        )
    rated = weight if isinstance(weight, Mapping | list | tuple) else [weight] * len(predicted)
    ratings = of_outputs(rated, outputs, model.loss) if rated is weight else rated
    if ratings is None:
        raise errors.InvalidData(
            f"there is not one sample weight for each of the outputs {', '.join(outputs.names)}"
        )
    compared = False
    masks = _masks(model, outputs, x)
    for loss, factor, y_true, y_pred, rating, mask in zip(
        losses_of, weights, labels, predicted, ratings, masks, strict=True
    ):
        if loss is not None and y_true is not None:
            loss = chosen(loss, y_pred.shape[1:], y_true.shape[1:])
            values = keras.ops.convert_to_numpy(_without_reduction(loss)(y_true, y_pred))
            if values.shape[:1] != total.shape:
                raise errors.UnsupportedModel(
                    f"the loss {loss!r} gives one number for all rows of a batch, and score() "
                    "needs one for each: leave out its mean over the rows, which Keras takes itself"
                )
            factor = 1.0 if factor is None else factor
            total += factor * _means(_weighed(values, rating), mask)
            compared = True
    if not compared:
        raise errors.InvalidData(
            "no output has both a label and a loss, so rows have none: see what model.compile and "
            "transformation_fn are given"
        )
    return total


def _masks(model: keras.Model, outputs: Outputs, x: Any) -> list[Any]:
    """Of each output what of it counts, bool [rows, ...]; None = all. `predict` does not tell."""

    def of_rows(end: int | None) -> list[Any]:
        part = keras.tree.map_structure(lambda one: keras.ops.convert_to_tensor(one[:end]), x)
        given = in_order_of(outputs, model(part, training=False))
        found = (getattr(one, "_keras_mask", None) for one in given)
        return [None if one is None else keras.ops.convert_to_numpy(one) for one in found]

    unmasked = [None] * len(outputs.names)
    if not any(map(_makes_a_mask, model._flatten_layers(include_self=False))):
        return unmasked
    # Seldom does a mask get as far as an output, and one row tells.
    return unmasked if all(one is None for one in of_rows(1)) else of_rows(None)


def _makes_a_mask(layer: Any) -> bool:
    """Whether Keras's masks begin at a layer, or may do at one of the user's."""
    if isinstance(layer, keras.layers.Masking) or getattr(layer, "mask_zero", False):
        return True
    own = type(layer).compute_mask is not keras.layers.Layer.compute_mask
    return own and not type(layer).__module__.startswith("keras.")


def _means(values: np.ndarray[Any, Any], mask: Any) -> np.ndarray[Any, Any]:
    """The mean of each row of losses [rows, ...], of those that `mask` leaves; 0 of none."""
    flat = values.reshape(len(values), -1)
    if mask is None:
        return np.asarray(flat.mean(axis=1))
    mask = mask.reshape(*mask.shape, *[1] * (values.ndim - mask.ndim))
    kept = np.broadcast_to(mask, values.shape).reshape(flat.shape)
    return np.asarray((flat * kept).sum(axis=1) / np.maximum(kept.sum(axis=1), 1))


def _weighed(values: np.ndarray[Any, Any], weight: Any) -> np.ndarray[Any, Any]:
    """Losses [rows, ...] times weights of the rows, or of each of a row's losses, as in Keras."""
    if weight is None:
        return values
    factors = keras.ops.convert_to_numpy(weight)
    if factors.ndim == values.ndim + 1 and factors.shape[-1] == 1:
        factors = factors[..., 0]
    factors = factors.reshape(*factors.shape, *[1] * (values.ndim - factors.ndim))
    weighed: np.ndarray[Any, Any] = values * factors
    return weighed


def _without_reduction(loss: Any) -> Callable[[Any, Any], Any]:
    loss = keras.losses.get(loss)
    if isinstance(loss, keras.Loss):
        # Keras makes a copy of what is registered only, and of what get_config tells.
        unreduced = object.__new__(type(loss))
        vars(unreduced).update(vars(loss), reduction="none")
        return unreduced  # type: ignore[no-any-return]

    def of_function(y_true: Any, y_pred: Any) -> Any:
        y_pred = keras.ops.convert_to_tensor(y_pred)
        if len(y_true.shape) == len(y_pred.shape) - 1 and y_pred.shape[-1] == 1:
            if len(y_true.shape) > 1:  # As in Keras: labels of steps, and one number for each.
                return loss(y_true, keras.ops.squeeze(y_pred, -1))
            y_true = keras.ops.expand_dims(y_true, -1)
        return loss(y_true, y_pred)

    return of_function
