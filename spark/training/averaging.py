"""ParameterAveraging: rounds of local training, and after each the average of all workers.

The driver holds the model. A round is one Spark job of plain tasks: the state is broadcast, every
worker trains a few steps from it, and a tree of additions brings the weighted sums back, whose mean
is the next state. Validation is a job too, each worker on its part; callbacks run in the driver.
What tasks do is in `averaging_tasks`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from keras_strom import errors
from keras_strom.checks import flag, whole_number

from ..data.connect import context_of
from ..runner.slots import Size, Waiting, WantedSize, choose_workers
from .contribution import Contribution, add, add_counts
from .method import TrainingJob, TrainingMethod

if TYPE_CHECKING:
    import keras
    from pyspark import Broadcast, SparkContext

    from .local_model import State
    from .worker_training import Trained


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParameterAveraging(TrainingMethod):
    """Workers train a few steps each on their own; then all take the average, and so on.

    Synchronous, and made of Spark's own parts alone: no relay, no ports, no barrier. Spark runs a
    task again that was lost, with the same result, for a round depends on nothing but what is
    broadcast and the worker's rows; there may be more workers than slots. The average is weighed by
    the examples that each worker has trained on, so with plain or momentum SGD and
    `averaging_frequency=1` K workers do what one does with batches K times as large.

    Data must lie in files: with the estimator's `store=`, or `fit_on_parquet`.

    Args:
        averaging_frequency: steps of each worker between two averages. The last round of an epoch
            may have fewer.
        aggregation_depth: levels of the tree that adds up; more take load off the driver where
            there are many workers.
        save_updater: average the optimizer's state as well (momentum and the like); False = every
            round begins with a new optimizer at the learning rate of the steps so far, with the
            loss scale of the rounds before; this halves what travels, or more.

    Raises:
        InvalidOption: a value that makes no sense.
        UnsupportedModel: by `fit`: of more than 2 GiB, the optimizer's state included.

    Example:
        >>> estimator = StromEstimator(  # doctest: +SKIP
        ...     ..., training=ParameterAveraging(averaging_frequency=10), store="/mnt/shared/strom")
    """

    averaging_frequency: int = 5
    aggregation_depth: int = 2
    save_updater: bool = True

    needs_files: ClassVar[bool] = True

    def __post_init__(self) -> None:
        whole_number("averaging_frequency", self.averaging_frequency, least=1)
        whole_number("aggregation_depth", self.aggregation_depth, least=1)
        flag("save_updater", self.save_updater)

    def check(self, params: Mapping[str, Any]) -> None:
        """Refuses what is of the relay only."""
        for name, why in _NOT_AVERAGINGS.items():
            if params[name] is not None and params[name] is not False:
                raise errors.InvalidOption(
                    f"{name} has no effect with training={self!r}, {why}: leave it out, or train "
                    "with GradientSharing()"
                )
        if params["use_gpu"] is True:
            raise errors.InvalidOption(
                f"use_gpu=True has no effect with training={self!r}, whose tasks use what "
                "TensorFlow sees there: leave it out, or train with GradientSharing()"
            )

    def choose_size(self, context: SparkContext, wanted: WantedSize, timeout: float) -> Size:
        """`num_proc`, or every slot; workers beyond the slots take turns, on one at least."""
        waiting = Waiting(timeout)
        if wanted.num_proc is None:
            return Size(workers=choose_workers(context, None, waiting))
        choose_workers(context, 1, waiting)
        return Size(workers=wanted.num_proc)

    def train(self, job: TrainingJob) -> Trained:
        """Trains in rounds; what the callbacks see is the average of all workers."""
        with _Driver(self, job) as driver:
            return driver.train()


_NOT_AVERAGINGS = {
    "strategy": "which shares no updates",
    "network": "which shares no updates",
    "min_proc": "whose workers take turns on the slots that there are",
    "max_proc": "whose workers take turns on the slots that there are",
    "dashboard": "whose workers run no process of their own that could tell of itself",
    "max_failures": "whose tasks Spark runs again as spark.task.maxFailures says",
    "drain_seconds": "whose tasks hand nothing over",
}


# PySpark counts the bytes of a value in 31 bits; some are pickle's own.
_MOST_BYTES = (1 << 31) - (1 << 20)


class _Driver:
    """One training: the model, its callbacks, and the jobs that Spark runs for it."""

    def __init__(self, method: ParameterAveraging, job: TrainingJob) -> None:
        import cloudpickle

        from ..inference.prediction import BroadcastPayload
        from .averaging_tasks import Averaging
        from .local_model import LocalModel

        self._method = method
        self._job = job
        self._plan = plan = job.plan
        self._workers = job.size.workers
        self._context = context_of(job.spark)
        self._recorder = job.recorder
        self._recorder.enter("load")
        self._local = LocalModel(plan, save_updater=method.save_updater)
        refuse_too_large(method, self._local.model, self._workers)
        averaging = Averaging(
            plan, self._workers, method.save_updater, hides_gpus=job.use_gpu is False
        )
        self._averaging = self._context.broadcast(cloudpickle.dumps(averaging))
        self._payload = BroadcastPayload(uuid.uuid4().hex, self._averaging)
        self._step = 0
        self._recorder.leave()

    def __enter__(self) -> _Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self._averaging.destroy()

    def train(self) -> Trained:
        """All epochs."""
        import keras

        from .worker_training import Backup, joined, leave, logged

        plan, local = self._plan, self._local
        if not plan.model.file:
            self._draw_first_weights()
        with tempfile.TemporaryDirectory() as directory:
            callbacks = local.code.made_callbacks()
            backup = None
            if plan.run is not None:
                backup = Backup(plan.run, Path(directory))
                backup.fetch()
                callbacks.append(backup)
            callbacks = keras.callbacks.CallbackList(
                callbacks,
                add_history=True,
                add_progbar=plan.verbose != 0,
                model=local.model,
                verbose=plan.verbose,
                epochs=plan.epochs,
                steps=self._steps_per_epoch(),
            )
            with self._recorder.phase("run"):
                self._train_epochs(callbacks)
            history = logged(local.model.history.history)
            if backup is not None:
                history = joined(backup.before, history)
        with self._recorder.phase("save"):
            return leave(plan, local.model, history)

    def _train_epochs(self, callbacks: Any) -> None:
        """What Keras's `fit` does, with a round for several steps."""
        from keras_strom.sharing.progress import first_epoch_of

        model, steps = self._local.model, self._steps_per_epoch()
        model.stop_training = False
        callbacks.on_train_begin()
        logs: dict[str, Any] = {}
        # Where an interrupted training was; its backup has been restored by now.
        for epoch in range(first_epoch_of(model) or 0, self._plan.epochs):
            callbacks.on_epoch_begin(epoch)
            counts: Sequence[Any] = ()
            for begin in range(0, steps, self._method.averaging_frequency):
                end = min(begin + self._method.averaging_frequency, steps)
                callbacks.on_train_batch_begin(begin)
                found = self._round(epoch * steps + begin, epoch * steps + end)
                counts = add_counts(counts, found.counts)
                logs = self._local.results(counts, found.mean_logs())
                callbacks.on_train_batch_end(end - 1, logs)
                if model.stop_training:
                    break
            logs = logs | self._validate(callbacks)
            callbacks.on_epoch_end(epoch, logs)
            if model.stop_training:
                break
        self._local.finish()
        callbacks.on_train_end(logs)

    def _round(self, begin: int, end: int) -> Contribution:
        """Steps [begin, end) of every worker."""
        from .averaging_tasks import train_round

        with self._broadcast(self._local.state(begin)) as state:
            work = functools.partial(train_round, self._payload, state, begin, end)
            whole = self._run(work, self._workers)
        self._local.end_round(whole.means(), end - begin)
        self._step = end
        return whole

    def _validate(self, callbacks: Any) -> dict[str, Any]:
        from ..data.exported import VALIDATION
        from .averaging_tasks import evaluate_share

        plan = self._plan
        rows = plan.data.rows(VALIDATION)
        if not rows:
            return {}
        if plan.validation_steps_per_epoch is not None:
            rows = min(rows, plan.validation_steps_per_epoch * plan.val_batch_size)
        callbacks.on_test_begin()
        size = min(rows, self._workers)
        weights = dataclasses.replace(self._local.state(self._step), optimizer=())
        with self._broadcast(weights) as state:
            work = functools.partial(evaluate_share, self._payload, state, rows, size)
            whole = self._run(work, size)
        logs = self._local.results(whole.counts, whole.mean_logs())
        callbacks.on_test_end(logs)
        return {f"val_{name}": value for name, value in logs.items()}

    def _run(self, work: Callable[[int], Contribution], tasks: int) -> Contribution:
        """One Spark job: a task for each rank, and what all of them add up to."""
        ranks = self._context.parallelize(range(tasks), tasks)
        depth = self._method.aggregation_depth
        with _explained():
            whole: Contribution | None = ranks.map(work).treeAggregate(None, add, add, depth)
        assert whole is not None, "there is a task"
        self._recorder.add(sorted(whole.phases, key=lambda phase: phase.begin))
        return whole

    @contextlib.contextmanager
    def _broadcast(self, state: State) -> Iterator[Broadcast[State]]:
        """A state, for a job; executors forget it afterwards."""
        broadcast = self._context.broadcast(state)
        try:
            yield broadcast
        finally:
            broadcast.destroy()

    def _draw_first_weights(self) -> None:
        """Has an executor make the model: the driver's own random numbers stay untouched."""
        from .averaging_tasks import initial_state

        work = functools.partial(initial_state, self._payload)
        with _explained():
            drawn: State = self._context.parallelize([-1], 1).map(work).first()
        self._local.assign_weights(drawn)

    def _steps_per_epoch(self) -> int:
        plan = self._plan
        return plan.train_steps_per_epoch or plan.data.steps(self._workers, plan.batch_size)


def refuse_too_large(method: ParameterAveraging, model: keras.Model, workers: int) -> None:
    """Refuses a model whose contributions, or sums of them, a Python worker cannot hand on.

    Args:
        method: how the workers train.
        model: compiled, with all its variables.
        workers: how many.

    Raises:
        UnsupportedModel: the message says how large they are, and what would fit.
    """
    # In a sum numbers are float64.
    sums = _hands_on_sums(workers, method.aggregation_depth)
    weights = _size_bytes(model.weights, in_sum=sums)
    optimizer = _size_bytes(model.optimizer.variables, in_sum=sums) if method.save_updater else 0
    size = weights + optimizer
    if size <= _MOST_BYTES:
        return
    remedies = []
    if method.save_updater and weights <= _MOST_BYTES:
        remedies.append("leave the optimizer's state out (save_updater=False)")
    kept = model.optimizer.variables if method.save_updater else ()
    if sums and _size_bytes([*model.weights, *kept], in_sum=False) <= _MOST_BYTES:
        remedies.append("have the driver alone make sums (aggregation_depth=1)")
    remedies.append("train with GradientSharing()")
    raise errors.UnsupportedModel(
        f"{'a sum of contributions' if sums else 'a contribution'} to a round of training="
        f"{method!r} has {_gib(size)} (weights {_gib(weights)}, the optimizer's state "
        f"{_gib(optimizer)}{', in float64' if sums else ''}), and Spark's Python workers hand on "
        f"2 GiB at most: {', or '.join(remedies)}"
    )


def _hands_on_sums(workers: int, depth: int) -> bool:
    """Whether `treeAggregate` has tasks that add up: what its rule comes to."""
    return depth > 1 and workers > 4


def _size_bytes(variables: Iterable[Any], *, in_sum: bool) -> int:
    """Of the values of a model's or an optimizer's variables, in float64 where a sum has them."""
    import tensorflow as tf

    size = 0
    for one in variables:
        kind = tf.as_dtype(one.dtype)
        size += math.prod(one.shape) * (8 if in_sum and kind.is_floating else int(kind.size))
    return size


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


# What a task has raised that knew where it was; the traceback follows.
_TOLD = (
    r"^keras_strom\.errors\.WorkerFailed: "
    r"(?:worker (?P<rank>\d+)|a worker without a rank) on (?P<host>\S+) failed: "
)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """What a task has raised, out of the words that Spark made of it.

    Raises:
        StromError: the task's own.
        ConnectionClosed: Spark's session was stopped, or its job cancelled.
        ExecutorMismatch: it was run by another Python, or among other packages, than the driver.
        WorkerFailed: a task has failed as often as Spark lets it.
    """
    from ..data.checked import explain
    from ..runner.executors import refuse_mismatch
    from ..runner.runner import ended_from_outside, root_cause

    try:
        yield
    except Exception as error:
        text = str(error)
        if words := ended_from_outside(text):
            raise errors.ConnectionClosed(words) from None
        rank, (host, cause) = -1, root_cause(text)
        if told := re.search(_TOLD, text, re.MULTILINE):
            rank, host = int(told["rank"] or -1), told["host"]
            cause = root_cause(text[told.end() :])[1]
        elif (explained := explain(error)) is not error:
            raise explained from None
        refuse_mismatch(host, cause)
        raise errors.WorkerFailed(rank, host, cause) from None
