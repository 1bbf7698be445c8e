"""The end of a training step beside a joint model: what runs in the graph after the optimizer.

A worker trains on x_i, its local model. The joint model x~ is the master's, and consists of the
variables that are trained. What a step exchanges, and when, is decided in libstrom.so; here is
what Keras's side has to know: which variables take part, and that whoever looks at them between
steps sees x~. The names are those of `keras_strom.method`.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_strom import errors
from keras_strom._native.library import nanoseconds
from keras_strom._native.local_model import LocalModel
from keras_strom._native.ops import operations
from keras_strom.method import MPCA, Method
from keras_strom.sharing.flat_space import Entry, FlatSpace, ranges_of, update_copies
from keras_strom.sharing.model_checks import is_overwritten, path_of
from keras_strom.sharing.optimizers import learning_rates_of, scales_loss
from keras_strom.sharing.pull_statistics import PULL_LENGTH, PullStatistics
from keras_strom.sharing.step_trace import StepTrace
from keras_strom.sharing.training_step import JointPlan, TrainingStep

if TYPE_CHECKING:
    from keras_strom.relay.training_relay import TrainingWorker

_logger = logging.getLogger("keras_strom")

# Larger variables are watched only where a step changes no smaller one: the optimizer writes a
# watched variable into another buffer.
_WATCHED_ELEMENTS = 16384

# Each shard has so many elements at least: it begins at a multiple of them.
_SHARD_ELEMENTS = 16

# Of gradients that leave together while others are still being computed.
_BUCKET_ELEMENTS = 1 << 18

# A smaller embedding is pulled in less time than the words would take to read.
_LARGE = 1 << 20

_RATES_DIFFER = (
    "the learning rates of an optimizer's parts are not those of the other workers in this step: "
    "within an epoch change them on all workers alike, or on worker 0 when an epoch ends, or take "
    'method=AllReduce(average="updates")'
)

# In the place of a joint model's number: no training runs.
_NO_JOINT = -1

# Figures that a step leaves as they were where it has not pulled, or has not measured how far.
_ALPHA = PullStatistics._fields.index("alpha")
_TARGET = PullStatistics._fields.index("target")
_IS_ALPHA = np.arange(PULL_LENGTH) == _ALPHA
_IS_MEASURED = np.asarray([name in ("distance", "target") for name in PullStatistics._fields])


@dataclasses.dataclass(frozen=True, kw_only=True)
class PullOptions:
    """What a step does; fixed when the strategy is made.

    Attributes:
        method: how workers train together.
        rank: this worker's.
        workers: K.
        wait_timeout: seconds that a step waits for the joint model, where the method has it wait.
        compiled: whether XLA runs the optimizer.
    """

    method: Method
    rank: int
    workers: int
    wait_timeout: float
    compiled: bool = False

    @property
    def text(self) -> str:
        """The options that must be equal on all workers."""
        return f"method={self.method.text}"

    @property
    def meets(self) -> bool:
        """Whether an epoch ends where all workers have ended it."""
        return self.method.numbers(self.workers).has_rounds

    @property
    def staleness(self) -> None:
        """No updates are shared, so none is late."""


def _as_one(rates: list[Any]) -> Any:
    """A float32 that tells several learning rates from others; of one it is that."""
    weights = np.exp(np.arange(len(rates))).astype(np.float32)
    values = [tf.cast(rate.read_value(), tf.float32) for rate in rates]
    return tf.add_n([w * value for w, value in zip(weights, values, strict=True)] or [0.0])


class _Taken(NamedTuple):
    """A gradient: its place among those given, and that of its variable in the joint model."""

    place: int
    offset: int
    entry: Entry


def _replaced(gradients: list[Any], taken: list[_Taken], others: list[Any]) -> list[Any]:
    """`gradients` with `others` in the place of those taken, of their types."""
    changed = {
        place: tf.cast(other, gradients[place].dtype)
        for (place, _, _), other in zip(taken, others, strict=True)
    }
    return [changed.get(place, gradient) for place, gradient in enumerate(gradients)]


class _Joint:
    """Which variables a joint model consists of, one behind the other.

    Args:
        entries: in flat order.

    Attributes:
        offsets: of each variable in the joint model.
        size: elements.
        ranges: (offset, size) in the flat space, neighbours merged.
    """

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries
        sizes = [entry.size for entry in entries]
        self.offsets = [int(offset) for offset in np.cumsum([0, *sizes])[:-1]]
        self.size = sum(sizes)
        self.ranges = ranges_of(entries)

    def tensors(self) -> list[Any]:
        """The values of the variables; they share the buffers, nothing is copied."""
        return [entry.primary.read_value() for entry in self.entries]

    def flat(self, tensors: list[Any]) -> npt.NDArray[np.float32]:
        """Values as the joint model has them."""
        values = np.empty(self.size, np.float32)
        for offset, entry, tensor in zip(self.offsets, self.entries, tensors, strict=True):
            values[offset : offset + entry.size] = tensor.numpy().ravel()
        return values

    def assign(self, values: npt.NDArray[np.float32]) -> None:
        """Assigns all variables from the values of the joint model."""
        for offset, entry in zip(self.offsets, self.entries, strict=True):
            part = values[offset : offset + entry.size]
            entry.primary.assign(part.reshape(entry.primary.shape))
        update_copies(self.entries)


@dataclasses.dataclass(frozen=True)
class _Shown:
    """While the variables show the joint model: the worker's own values, and what they show."""

    own: list[Any]
    joint: npt.NDArray[np.float32]


def _buckets(sizes: list[int]) -> list[list[int]]:
    """Variables, by their place, whose gradients leave together, in the order of backpropagation.

    The first variables, whose gradients come last, are in none: they leave with the step's end.
    """
    buckets = []
    end, elements = len(sizes), 0
    for place in reversed(range(1, len(sizes))):
        elements += sizes[place]
        if elements >= _BUCKET_ELEMENTS:
            buckets.append(list(range(place, end)))
            end, elements = place, 0
    return buckets


class PulledStep(TrainingStep):
    """One worker's step towards the joint model, in graphs and eagerly.

    Args:
        options: of the strategy.
        space: its variables.
        local: what libstrom.so holds of the worker's side.
    """

    def __init__(self, options: PullOptions, space: FlatSpace, local: LocalModel) -> None:
        super().__init__(PULL_LENGTH, space)
        self._options = options
        self._local = local
        self._joint: _Joint | None = None
        self._worker: TrainingWorker | None = None
        self._shown: _Shown | None = None
        self._warned: set[int] = set()
        self._cycles: dict[int, int] = {}  # That a joint model has finished in trainings before.
        self._cycles_of_checkpoint = 0
        self._cycles_so_far = 0  # Of the latest joint model, or of a checkpoint.
        with tf.init_scope(), tf.device("/cpu:0"):
            # Which of the joint models so far is that of now: a step knows its own.
            self._joint_now = tf.Variable(_NO_JOINT, dtype=tf.int64, trainable=False)
        self._numbers: dict[tuple[int, ...], int] = {}

    @property
    def method(self) -> Method:
        """How workers train together."""
        return self._options.method

    @property
    def is_replica(self) -> bool:
        """Only where all optimizers get the same gradients."""
        return self.has_one_state

    @property
    def has_one_state(self) -> bool:
        """Whether all optimizers get the same gradients."""
        return self.method.averages_gradients

    # ------------------------------------------------------------ steps

    def exchange(self, optimizer: Any, gradients: list[Any], variables: list[Any]) -> list[Any]:
        """The mean of all workers' gradients. They step with the learning rate of the lowest rank.

        Of an optimizer with several a sum travels: where one differs within an epoch, the step
        fails.
        """
        joint = self._joint
        if joint is None or not self.has_one_state:
            return gradients
        taken = self._places(joint, gradients, variables)
        if not taken:
            return gradients
        rates = learning_rates_of(optimizer)
        with tf.device("/cpu:0"):
            dense = self._dense(gradients, taken)
            rate = _as_one(rates)
            exchange = {
                "rate": rate,
                "iteration": self._step,
                "joint_now": self._joint_now,
                "model": self._local.handle,
                "joint": self._number_of(joint),
            }
            given = [
                operations().strom_give_early(
                    gradients=[dense[place] for place in bucket],
                    offsets=[taken[place].offset for place in bucket],
                    names=[path_of(taken[place].entry.variable) for place in bucket],
                    **exchange,
                )
                for bucket in _buckets([one.entry.size for one in taken])
            ]
            with tf.control_dependencies([op for op in given if op is not None]):
                means, common = operations().strom_mean_gradient(
                    gradients=dense,
                    offsets=[offset for _, offset, _ in taken],
                    names=[path_of(entry.variable) for _, _, entry in taken],
                    may_overflow=scales_loss(optimizer),
                    timeout_ns=nanoseconds(self._options.wait_timeout),
                    **exchange,
                )
            if len(rates) > 1:
                tf.debugging.assert_equal(rate, common, message=_RATES_DIFFER)
        if len(rates) == 1:
            rates[0].assign(tf.cast(common, rates[0].dtype))
        return _replaced(gradients, taken, means)

    def penalize(self, optimizer: Any, gradients: list[Any], variables: list[Any]) -> list[Any]:
        """Adds the pull to them, where the method has it there: equation 6 of MPCA SGD.

        Raises:
            UnsupportedOptimizer: it would scale the pull down.
        """
        joint = self._joint
        if joint is None or not self.method.pulls_by_gradient:
            return gradients
        taken = self._places(joint, gradients, variables)
        if not taken:
            return gradients
        if optimizer.loss_scale_factor is not None:
            raise errors.UnsupportedOptimizer(
                f"{type(optimizer).__name__}(loss_scale_factor={optimizer.loss_scale_factor:g}) "
                'scales the pull of MPCA(penalty="gradient") down, too; scale the loss with '
                'LossScaleOptimizer, or pull by penalty="shift"'
            )
        with tf.device("/cpu:0"):
            penalized = operations().strom_penalty(
                variables=[entry.primary.handle for _, _, entry in taken],
                gradients=self._dense(gradients, taken),
                model=self._local.handle,
                offsets=[offset for _, offset, _ in taken],
            )
        return _replaced(gradients, taken, penalized)

    def _places(self, joint: _Joint, gradients: list[Any], variables: list[Any]) -> list[_Taken]:
        """The gradients of the joint model's variables, in its order."""
        places = {
            id(variable): place
            for place, (variable, gradient) in enumerate(zip(variables, gradients, strict=False))
            if gradient is not None
        }
        return [
            _Taken(places[id(entry.variable)], offset, entry)
            for offset, entry in zip(joint.offsets, joint.entries, strict=True)
            if id(entry.variable) in places
        ]

    def _dense(self, gradients: list[Any], taken: list[_Taken]) -> list[Any]:
        for place, _, entry in taken:
            if isinstance(gradients[place], tf.IndexedSlices):
                self._warn_if_large(entry.variable)
        return [
            tf.cast(tf.convert_to_tensor(gradients[place]), tf.float32) for place, _, _ in taken
        ]

    def close(self, trace: StepTrace) -> None:
        """Exchanges and pulls what the method says, where the optimizer has stepped.

        Raises:
            UnsupportedModel: the step changes what is no part of the joint model.
        """
        joint = self._joint
        if joint is None or not joint.entries:
            return
        self._check(trace, joint)
        entries = joint.entries
        watched = self._watched(trace, entries)
        with tf.device("/cpu:0"):
            statistics = operations().strom_pull(
                variables=[entry.primary.handle for entry in entries],
                before=[trace.before(entries[place]) for place in watched],
                iteration=self._step,
                joint_now=self._joint_now,
                model=self._local.handle,
                offsets=joint.offsets,
                names=[path_of(entry.variable) for entry in entries],
                watched=watched,
                joint=self._number_of(joint),
                compare_contents=self._options.compiled,
                timeout_ns=nanoseconds(self._options.wait_timeout),
            )
            self._note(statistics)
            if any(entry.copies for entry in entries):
                tf.cond(statistics[0] > 0, lambda: update_copies(entries), tf.no_op)

    def _check(self, trace: StepTrace, joint: _Joint) -> None:
        """Refuses what would be trained and not exchanged; warns of what costs a lot."""
        parts = {id(entry.variable) for entry in joint.entries}
        for entry in self._space.entries:
            if id(entry.variable) in trace.touched - parts:
                raise errors.UnsupportedModel(
                    f"the optimizer updates {path_of(entry.variable)!r}, which is no part of "
                    f"{type(self.method).__name__}'s joint model: that has the trainable variables "
                    "of the model that fit trains, or of the models that strategy.begin is given. "
                    "Make its layer a part of that model, or name its model in strategy.begin"
                )
        for variable in trace.looked_up:
            self._warn_if_large(variable)

    def _warn_if_large(self, looked_up: Any) -> None:
        size = int(looked_up.shape.num_elements())
        if size < _LARGE or id(looked_up) in self._warned:
            return
        self._warned.add(id(looked_up))
        _logger.warning(
            "%s has %.1f million elements, of which a step looks up a few rows, but method=%s "
            "exchanges and pulls all of them. Sharing updates (method=None) goes by the rows with "
            "SGD, Adagrad and RMSprop without momentum",
            path_of(looked_up),
            size / 1e6,
            type(self.method).__name__,
        )

    def _watched(self, trace: StepTrace, entries: list[Entry]) -> list[int]:
        """The variables, by their place, that tell whether the optimizer has stepped."""
        touched = trace.touched
        changed = [i for i, e in enumerate(entries) if id(e.variable) in touched and e.size]
        if not changed:  # A function that was traced before announces nothing.
            return [i for i, entry in enumerate(entries) if self._space.is_sent(entry)]
        small = [i for i in changed if entries[i].size <= _WATCHED_ELEMENTS]
        return small or [min(changed, key=lambda i: entries[i].size)]

    def _note(self, statistics: Any) -> None:
        has_pulled = tf.constant(~_IS_ALPHA) | (statistics[_ALPHA] > 0)
        has_measured = tf.constant(~_IS_MEASURED) | (statistics[_TARGET] > 0)
        takes = (statistics[0] > 0) & has_pulled & has_measured
        self._last.assign(tf.where(takes, statistics, self._last))
        self._totals.assign_add(statistics)

    @property
    def cycles(self) -> int:
        """Cycles that the joint model has finished, as the master has told last.

        Between trainings those of the latest one, or of the checkpoint that is to be gone on from.
        """
        return self._cycles_so_far if self._worker is None else self._worker.joint_cycles()

    def begin_after(self, cycles: int) -> None:
        """The joint model of the next training has finished so many: its schedules go on.

        Raises:
            InvalidOption: no whole number, or a negative one.
        """
        super().begin_after(cycles)
        self._cycles_of_checkpoint = self._cycles_so_far = cycles

    @property
    def last(self) -> PullStatistics:
        """The latest step; of the pull itself the latest step that had one."""
        return PullStatistics(*self._last.numpy().tolist())

    @property
    def totals(self) -> PullStatistics:
        """Sums since `begin`, of what can be summed."""
        return PullStatistics(*self._totals.numpy().tolist())

    # ------------------------------------------------------------ a generation

    def begin(self) -> None:
        """Starts the counters of a new generation, which has no joint model before `plan`."""
        super().begin()
        self._last.assign(tf.zeros_like(self._last))
        self._joint = self._worker = self._shown = None

    def plan(self, trained: list[Entry]) -> JointPlan:
        """The joint model has all that is trained; none where that is nothing.

        What each step replaces is no part of it: that has no history to pull, and a scale that is
        extrapolated is soon below 0. Only the mean of gradients has it, so that all have one state.

        Raises:
            UnsupportedModel: it is too small to be cut into shards.
        """
        if not self.has_one_state:
            trained = [entry for entry in trained if not is_overwritten(entry.variable)]
        joint = _Joint(trained)
        if not joint.size:
            return JointPlan()
        if isinstance(self.method, MPCA) and joint.size < _SHARD_ELEMENTS * self.method.phases:
            raise errors.UnsupportedModel(
                f"the model has {joint.size} trained elements; MPCA(phases={self.method.phases}) "
                f"needs {_SHARD_ELEMENTS * self.method.phases}, {_SHARD_ELEMENTS} for each of its "
                "shards: take fewer phases"
            )
        self._joint = joint
        number = self._number_of(joint)
        self._joint_now.assign(number)
        for entry in trained:
            self._space.expect(entry.variable)
        cycles = max(self._cycles_of_checkpoint, self._cycles.get(number, 0))
        self._cycles_of_checkpoint = 0
        return JointPlan(self.method.numbers(self._options.workers), joint.ranges, cycles)

    def _number_of(self, joint: _Joint) -> int:
        """Names a joint model by what it consists of."""
        places = tuple(entry.offset for entry in joint.entries)
        return self._numbers.setdefault(places, len(self._numbers))

    def bind(self, worker: TrainingWorker) -> None:
        """From now on snapshots go out through `worker`, and targets come in from it."""
        if self._joint is None:
            return
        options = self._options
        self._worker = worker
        self._local.begin(
            worker.handle,
            self._joint.size,
            options.method.numbers(options.workers),
            rank=options.rank,
            workers=options.workers,
            in_gradient=options.method.pulls_by_gradient,
        )

    def finish(self) -> None:
        """Gives the master the last snapshot, of the worker's own values."""
        if self._joint is None or self._worker is None:
            return
        own = self._joint.tensors() if self._shown is None else self._own_now(self._shown)
        try:
            self._local.finish(self._joint.flat(own), max(self.steps - 1, 0))
        except errors.NotFinite as error:
            _logger.warning(
                "worker %d: its last snapshot is no part of the joint model, or not all of it: %s",
                self._options.rank,
                error,
            )

    def ended(self) -> None:
        """The variables have the joint model, and keep it."""
        if self._joint is not None:
            self._cycles_so_far = self._cycles[self._number_of(self._joint)] = self.cycles
        self._joint_now.assign(_NO_JOINT)
        self._worker = self._shown = None

    # ------------------------------------------------------------ between steps

    def show_shared(self) -> None:
        """Gives the variables the joint model, as the master has it now; or it is this one."""
        joint, worker = self._joint, self._worker
        if joint is None or worker is None or self._shown is not None or self.has_one_state:
            return
        values = worker.joint_model(joint.size)
        self._shown = _Shown(joint.tensors(), values)
        joint.assign(values)

    def show_own(self, *, swapped: bool = False) -> None:
        """Gives the variables the worker's own values, but for what was assigned meanwhile."""
        if self._shown is None or self._joint is None:
            return
        own = self._shown.own if swapped else self._own_now(self._shown)
        self._shown = None
        for entry, values in zip(self._joint.entries, own, strict=True):
            entry.primary.assign(values)
        update_copies(self._joint.entries)

    def _own_now(self, shown: _Shown) -> list[Any]:
        """The worker's own values; of a variable that was assigned while shown, what it has now."""
        assert self._joint is not None
        found = []
        for offset, entry, own in zip(
            self._joint.offsets, self._joint.entries, shown.own, strict=True
        ):
            now = entry.primary.read_value()
            bits = now.numpy().ravel().view(np.int32)
            unchanged = shown.joint[offset : offset + entry.size].view(np.int32)
            found.append(own if np.array_equal(bits, unchanged) else now)
        return found

    def end_own(self, *, mid_step: bool = False) -> None:
        """Forgets the worker's own values, where the variables show others."""
        self._shown = None

    def not_finite(self) -> errors.NotFinite | None:
        """A variable that holds a NaN or an infinity: no later step would take it out again."""
        if self._joint is None:
            return None
        own = self._joint.tensors() if self._shown is None else self._own_now(self._shown)
        for entry, values in zip(self._joint.entries, own, strict=True):
            if not bool(tf.reduce_all(tf.math.is_finite(values))):
                return errors.NotFinite(
                    f"worker {self._options.rank}: its own {path_of(entry.variable)} holds a NaN "
                    "or an infinity after the epoch's last step. Lower the learning rate, clip "
                    "the gradients (clipnorm=) or look for a bad batch"
                )
        return None

    # ------------------------------------------------------------ what others may ask for

    def values_to_hand_over(self, *, between_batches: bool) -> npt.NDArray[np.float32]:
        """The worker's own values: another master makes its joint model of all workers'."""
        values = self._space.read()
        if self._shown is not None and self._joint is not None:
            own = self._own_now(self._shown)
            for entry, tensor in zip(self._joint.entries, own, strict=True):
                values[entry.place] = tensor.numpy().ravel()
        return values

    def set_threshold_state(self, state: tuple[float, ...]) -> None:
        """Takes over nothing.

        Raises:
            Refused: the state is that of a worker that shares updates.
        """
        if state:
            raise errors.Refused(
                f"the state to go on from is that of a training that shares updates, this one's "
                f"method is {self.method.text}; give every worker the same options, and remove a "
                "checkpoint that was made with others"
            )

    def restore_residuals(self, values: npt.NDArray[np.float32]) -> bool:
        """Residuals of a training that shared updates have no place here."""
        return not values.size
