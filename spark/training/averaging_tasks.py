"""What a Spark task does in parameter averaging: some steps of training, or a part of evaluation.

A task is a pure function of what is broadcast, its rank and its steps, so Spark may run it again,
or twice, wherever it likes. What a Python worker keeps between tasks (model, rows) only saves time.
"""

from __future__ import annotations

import dataclasses
import functools
import pickle
import socket
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from keras_strom import errors

from ..data.exported import TRAIN, VALIDATION
from ..data.passes import ChunkCache, Passes, Stretch, batches, stretches
from ..inference.prediction import BroadcastPayload
from ..runner.resources import hide_gpus
from ..runner.timeline import Recorder
from .contribution import Contribution, add
from .local_model import LocalModel, State
from .worker_training import TrainingPlan

if TYPE_CHECKING:
    from pyspark import Broadcast

# Rows that an evaluation holds at the same time: so many, or as many as these bytes hold.
_ROWS_AT_ONCE = 1 << 13
_BYTES_AT_ONCE = 64 << 20


@dataclasses.dataclass(frozen=True)
class Averaging:
    """What does not change during a training.

    Attributes:
        plan: what is trained.
        workers: how many shares the data has.
        save_updater: whether optimizer state is averaged.
        hides_gpus: whether tasks train on the CPU, whatever GPUs there are.
    """

    plan: TrainingPlan
    workers: int
    save_updater: bool
    hides_gpus: bool = False

    @classmethod
    def of(cls, payload: BroadcastPayload) -> Averaging:
        """In a task: what was broadcast, in a process that from now on has the GPUs it should.

        Raises:
            InvalidOption: GPUs are to be hidden, and this process works on them already.
        """
        averaging: Averaging = pickle.loads(payload.pickled.value)
        if averaging.hides_gpus:
            hide_gpus()
        return averaging


_Work = TypeVar("_Work", bound=Callable[..., Any])


def _tells_where(work: _Work) -> _Work:
    """A task of the rank that is its last argument, whose errors say so, and on which host it was.

    Spark's own words do not.
    """

    @functools.wraps(work)
    def told(*given: Any) -> Any:
        try:
            return work(*given)
        except errors.StromError:
            raise  # The driver raises it again, with its own words.
        except Exception:
            rank: int = given[-1]
            host = socket.gethostname()
            raise errors.WorkerFailed(rank, host, traceback.format_exc()) from None

    return told  # type: ignore[return-value]


@_tells_where
def initial_state(payload: BroadcastPayload, rank: int) -> State:
    """The first state of a model that a function makes, which belongs to no rank: -1."""
    averaging = Averaging.of(payload)
    import keras

    keras.utils.set_random_seed(averaging.plan.seed)
    return LocalModel(averaging.plan, save_updater=averaging.save_updater).state(0)


@_tells_where
def train_round(
    payload: BroadcastPayload, state: Broadcast[State], begin: int, end: int, rank: int
) -> Contribution:
    """Trains steps [begin, end) of worker `rank`, from a state that all begin with."""
    recorder = Recorder(rank)
    worker = _worker(payload, recorder)
    plan, local = worker.averaging.plan, worker.local
    recorder.enter("read")
    rows = Passes(
        plan.data,
        rank=rank,
        size=worker.averaging.workers,
        seed=plan.seed if plan.shuffle else None,
        cache=worker.cache,
    )
    # All workers have equally many steps a pass, as many as the one with the fewest rows.
    steps = plan.data.steps(worker.averaging.workers, plan.batch_size, TRAIN)
    count = min(rows.rows, steps * plan.batch_size)
    parts = [rows.take(one) for one in stretches(begin, end, count, plan.batch_size)]
    recorder.enter("train")
    local.begin_round(state.value)
    local.seed(plan.seed, rank, begin)
    data = batches(plan.data, parts, plan.batch_size, local.code.transformation_fn)
    logs = local.fit(data)
    values, counts = local.values(), local.counts()
    recorder.leave()
    return Contribution(
        rank=rank,
        examples=sum(len(arrays[0]) for arrays in parts),
        values=values,
        counts=counts,
        logs=logs,
        phases=tuple(recorder.phases),
    )


@_tells_where
def evaluate_share(
    payload: BroadcastPayload, state: Broadcast[State], rows: int, size: int, rank: int
) -> Contribution:
    """Evaluates a part of the validation data, the first `rows` of which are divided in `size`."""
    recorder = Recorder(rank)
    worker = _worker(payload, recorder)
    plan, local = worker.averaging.plan, worker.local
    recorder.enter("evaluate")
    local.assign_weights(state.value)
    local.seed(plan.seed, rank, state.value.step)
    passes = Passes(
        plan.data,
        VALIDATION,
        rank=rank,
        size=size,
        seed=None,
        only_first=rows,
        cache=worker.cache,
    )
    share = passes.rows
    row_bytes = max(1, plan.data.size_bytes(VALIDATION) // plan.data.rows(VALIDATION))
    held = min(_ROWS_AT_ONCE, _BYTES_AT_ONCE // row_bytes)
    at_once = max(1, held // plan.val_batch_size) * plan.val_batch_size
    whole: Contribution | None = None
    for begin in range(0, share, at_once):
        part = passes.take(Stretch(0, begin, min(begin + at_once, share)))
        data = batches(plan.data, [part], plan.val_batch_size, local.code.transformation_fn)
        logs = local.evaluate(data)
        counted = Contribution(
            rank=rank, examples=len(part[0]), values=(), counts=local.counts(), logs=logs
        )
        whole = add(whole, counted)
    recorder.leave()
    assert whole is not None, "a share has rows"
    return dataclasses.replace(whole, phases=tuple(recorder.phases))


@dataclasses.dataclass(frozen=True)
class _Worker:
    """What a Python worker keeps for the tasks that follow."""

    averaging: Averaging
    local: LocalModel
    cache: ChunkCache


_loaded: dict[str, Any] = {}


def _worker(payload: BroadcastPayload, recorder: Recorder) -> _Worker:
    if payload.key not in _loaded:
        with recorder.phase("load"):
            averaging = Averaging.of(payload)
            local = LocalModel(averaging.plan, save_updater=averaging.save_updater)
        _loaded.clear()
        _loaded[payload.key] = _Worker(averaging, local, ChunkCache())
    worker: _Worker = _loaded[payload.key]
    return worker
