"""The shared part of a training step: what runs in the graph after the optimizer.

`SharedStep` owns the counters and the threshold's state, as variables outside of any strategy, and
calls the native ops. What is shared with whom is decided below, in libstrom.so.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_strom._native.library import nanoseconds
from keras_strom._native.ops import operations
from keras_strom._native.replica import HandedOver, Replica
from keras_strom.sharing import step_warnings
from keras_strom.sharing.flat_space import Entry, FlatSpace, update_copies
from keras_strom.sharing.model_checks import path_of
from keras_strom.sharing.rate_history import RateChange, RateHistory
from keras_strom.sharing.residual import ResidualClipping, ShakeUp
from keras_strom.sharing.scale import UpdateScale
from keras_strom.sharing.statistics import LENGTH, TOLD, StepStatistics
from keras_strom.sharing.step_trace import StepTrace
from keras_strom.sharing.threshold import FixedThreshold, ThresholdAlgorithm, is_per_variable
from keras_strom.sharing.threshold_state import threshold_state
from keras_strom.sharing.touched import Rows, VariableChange
from keras_strom.sharing.training_step import TrainingStep
from keras_strom.sharing.update_clipping import NormHistory, UpdateClipping

if TYPE_CHECKING:
    from keras_strom.relay.training_relay import TrainingWorker

# Picks what tells of received updates out of a vector of statistics.
_RECEIVED = np.asarray([name in ("received", "staleness") for name in TOLD], np.float64)

_ASSIGNED = np.asarray([name == "assigned_outside" for name in TOLD], np.float64)
_COUNT = TOLD.index("count")
_NORM = TOLD.index("update_norm")
_SHARED = TOLD.index("shared")
_VALUE = TOLD.index("value")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepOptions:
    """What a step does; fixed when the strategy is made.

    Attributes:
        threshold: chooses tau.
        clipping: bounds the residual; None = never.
        shake_up: lowers tau once in a while; None = never.
        scale: multiplies the update.
        update_clipping: bounds the update's norm; None = never.
        local_steps: H, steps of the optimizer from one message to the next.
        local_apply: "full" = while it trains the variables include the residual, this worker's
            progress that it has not sent; "encoded" = they have what all workers share.
        staleness: None = asynchronous: the own message is applied at once, others' as they come.
            k = the step ends when the own contribution of k steps ago has been released.
        wait_timeout: seconds that a step waits for the other workers (staleness not None).
        compiled: whether XLA runs the optimizer.
    """

    threshold: ThresholdAlgorithm
    clipping: ResidualClipping | None
    shake_up: ShakeUp | None
    scale: UpdateScale
    update_clipping: UpdateClipping | None
    local_steps: int
    local_apply: str
    staleness: int | None
    wait_timeout: float
    compiled: bool = False

    @property
    def text(self) -> str:
        """The options that must be equal on all workers."""
        return (
            f"update_scale={self.scale.rule} warmup_steps={self.scale.warmup_steps} "
            f"max_staleness={self.staleness} local_steps={self.local_steps}"
        )

    @property
    def meets(self) -> bool:
        """Whether an epoch ends where all workers have ended it."""
        return self.staleness is not None


class SharedStep(TrainingStep):
    """One worker's step over its replica, in graphs and eagerly.

    Attributes:
        replica: the worker's residuals.
    """

    def __init__(self, options: StepOptions, replica: Replica, space: FlatSpace) -> None:
        super().__init__(LENGTH, space)
        self._options = options
        self.replica = replica
        self._threshold = threshold_state(options.threshold, space)
        self._rates = RateHistory()
        with tf.init_scope(), tf.device("/cpu:0"):
            self._shaken_mass = tf.Variable(0.0, dtype=tf.float64, trainable=False)
            self._norms = NormHistory(options.update_clipping)
        self._momenta: dict[int, Entry] = {}  # That are masked, by their place.
        self._shows_shared = True
        self._trained: set[int] = set()

    @property
    def is_replica(self) -> bool:
        """All have the common start and the same set of updates."""
        return True

    def close(self, trace: StepTrace) -> None:
        """Shares what the step has changed; see `share`."""
        with tf.device("/cpu:0"):
            rate = self._rates.change(trace.optimizers)
        self.share(trace.changes(), rate)

    def share(self, changes: list[VariableChange], rate: RateChange) -> None:
        """Ends a step: shares what has changed in the participants, in flat order.

        Of H = `local_steps` steps each H-th does; the others leave their changes in the variables.

        Args:
            changes: one for each participant.
            rate: where the learning rate of the step stands.
        """
        self._momenta.update(
            {change.entry.offset: change.momentum for change in changes if change.momentum}
        )
        step = self._step
        every = self._options.local_steps
        sends = tf.constant(True) if every == 1 else (step + 1) % every == 0
        self._share(changes, step, sends, rate)

    def share_rest(self, *, waits: bool = True) -> None:
        """Shares what local steps have changed since the last message, if they have.

        The variables then show the values that all workers share. Nothing that is due every so many
        steps (clipping, a shake-up) happens in it.

        Args:
            waits: in sequenced modes, until the contribution is applied; a worker that leaves need
                not, for the others apply it when theirs are there.
        """
        entries = self._space.participants
        if self._options.local_steps > 1 and any(map(self._space.is_sent, entries)):
            self.show_own()  # The local steps began from it.
            changes = [
                VariableChange(
                    entry,
                    shares=self._space.is_sent(entry),
                    since=entry.primary.read_value(),
                    momentum=self._momenta.get(entry.offset),
                )
                for entry in entries
            ]
            last_step = max(self.steps - 1, 0)
            step, sends = tf.constant(last_step, tf.int64), tf.constant(True)
            rate = self._rates.change([])
            self._share(changes, step, sends, rate, is_rest=True, waits=waits)
        self.show_shared()

    def show_shared(self) -> None:
        """Gives the variables the values that all workers share, where they include the residual.

        For whoever looks at them between two steps; before the next one comes `show_own`.
        """
        self._show_shared(forget=False)

    def end_own(self, *, mid_step: bool = False) -> None:
        """The same where training does not go on from this worker's own values.

        Args:
            mid_step: a step has failed in its middle. What its optimizer has written is this
                worker's own, and no assignment: taken for what all share it would bring the
                residual with it, which the next training adds once more.
        """
        if mid_step:
            entries = self._space.participants
            attributes = {"keep_shared": self._keeps_shared, "begins": [False for _ in entries]}
            self._show(operations().strom_show_own, entries, counts=False, **attributes)
        self._show_shared(forget=True)
        self._trained = set()

    def _show_shared(self, *, forget: bool) -> None:
        self._show(operations().strom_show_shared, self._space.participants, forget=forget)
        self._shows_shared = True

    def forget_residuals(self, entries: list[Entry]) -> float:
        """Before `begin_own`: leaves out what was not sent yet of variables that were assigned.

        Returns:
            The sum of its absolute values.
        """
        mass = 0.0
        for entry in entries:
            residual = self.replica.read_residual(entry.offset, entry.size)
            if residual.any():
                mass += float(np.abs(residual).sum(dtype=np.float64))
                self.replica.write_residual(entry.offset, np.zeros_like(residual))
        return mass

    def begin_anew(self, entries: list[Entry]) -> None:
        """Before `expect` and `begin_own`: thresholds start as before any step.

        Args:
            entries: of the variables that are trained.
        """
        self._last.assign(tf.zeros_like(self._last))
        self._threshold.begin_anew(entries)

    def begin_own(self, trained: list[Entry]) -> None:
        """Says which variables the next `show_own` is to give a residual, if they have one.

        Variables that are not trained now, such as a frozen layer's, stay what all workers share.
        """
        self._trained = {entry.offset for entry in trained}

    def show_own(self, *, swapped: bool = False) -> None:
        """Gives the variables what this worker trains on; cheap where they have it already."""
        if not self._shows_shared:
            return
        self._shows_shared = False
        entries = self._space.participants
        # What a program assigns itself (a target network) has no residual and no G.
        begins = [e.offset in self._trained and self._space.is_sent(e) for e in entries]
        show_own = operations().strom_show_own
        attributes = {"keep_shared": self._keeps_shared, "begins": begins}
        self._show(show_own, entries, counts=not swapped, **attributes)

    def _show(
        self, operation: Any, entries: list[Entry], *, counts: bool = True, **attributes: Any
    ) -> None:
        """Runs an op that changes what variables hold, and counts what was assigned before."""
        if not self._is_full or not entries:
            return
        assigned = operation(
            variables=[entry.primary.handle for entry in entries],
            replica=self.replica.handle,
            offsets=[entry.offset for entry in entries],
            **attributes,
        )
        if counts:
            self._totals.assign_add(_ASSIGNED * tf.cast(assigned, tf.float64))
        update_copies(entries)

    def _share(
        self,
        changes: list[VariableChange],
        step: Any,
        sends: Any,
        rate: RateChange,
        *,
        is_rest: bool = False,
        waits: bool = True,
    ) -> None:
        """See the op StromStep; `is_rest` = of steps before, and no shake-up or clipping is due."""
        entries = [change.entry for change in changes]
        rows = [change.since for change in changes if isinstance(change.since, Rows)]
        momenta = {i: change.momentum for i, change in enumerate(changes) if change.momentum}
        options = self._options
        with tf.device("/cpu:0"):
            contributions = tf.cast(self._totals[_SHARED], tf.int64)
            last = StepStatistics(*tf.unstack(self._last))._replace(rate=rate)
            threshold, state = self._threshold.next(entries, last)
            shakes, factor = self._shake_up(None if is_rest else step)
            threshold *= factor
            limit = self._norms.limit()
            statistics, by_variable = operations().strom_step(
                variables=[entry.primary.handle for entry in entries],
                before=[
                    tf.zeros([0]) if isinstance(change.since, Rows) else change.since
                    for change in changes
                ],
                rows=[touched.indices for touched in rows],
                rows_before=[touched.before for touched in rows],
                momenta=[momentum.primary.handle for momentum in momenta.values()],
                momentum_of=list(momenta),
                threshold=threshold,
                scale=options.scale.at(step),
                clip_multiple=self._clip_multiple(None if is_rest else step) / factor,
                norm_limit=limit,
                iteration=step,
                sends=sends,
                replica=self.replica.handle,
                offsets=[entry.offset for entry in entries],
                shares=[change.shares for change in changes],
                by_rows=[isinstance(change.since, Rows) for change in changes],
                names=[path_of(entry.variable) for entry in entries],
                apply_own=options.staleness is None and not self._is_full,
                take_received=options.staleness is None,
                compare_contents=options.compiled,
                send_mean=options.local_steps > 1,
                full=self._is_full,
                keep_shared=self._keeps_shared,
                draws_threshold=not isinstance(options.threshold, FixedThreshold),
                shares_rest=is_rest,
            )
            shared = statistics[_SHARED] > 0
            self._norms.note(statistics[_NORM], limit, shared)
            self._threshold.keep(entries, state, by_variable, shared & ~shakes)
            if options.staleness is not None and waits:
                applied = self._await_release(entries, shared, contributions)
                statistics += applied * _RECEIVED
            self._last.assign(tf.where(shared & ~shakes, statistics, self._last))
            if options.shake_up is not None:
                mass = statistics[_COUNT] * statistics[_VALUE]
                self._shaken_mass.assign_add(tf.where(shakes, mass, 0.0))
            self._totals.assign_add(statistics)
            if any(entry.copies for entry in entries):
                followed = [*entries, *momenta.values()]
                tf.cond(shared, lambda: update_copies(followed), tf.no_op)

    def apply(self, entries: list[Entry]) -> None:
        """Adds everything received so far to the variables, outside of a step.

        They show what all workers share then.
        """
        if entries:
            statistics = operations().strom_apply(
                variables=[entry.primary.handle for entry in entries],
                replica=self.replica.handle,
                offsets=[entry.offset for entry in entries],
            )
            self._totals.assign_add(statistics * (_RECEIVED + _ASSIGNED))
            update_copies(entries)

    @property
    def rate_history(self) -> RateHistory:
        """Those that the threshold goes by."""
        return self._rates

    @property
    def threshold_state(self) -> tuple[float, ...]:
        """The state of the threshold algorithm."""
        return self._threshold.numbers()

    def set_threshold_state(self, state: tuple[float, ...]) -> None:
        """Takes over the state of another worker's threshold algorithm.

        Raises:
            Refused: it is the state of another algorithm.
        """
        self._threshold.set_numbers(state)

    def expect(self, steps: int | None, workers: int) -> None:
        """Before a training of so many steps: what a threshold chooses by itself goes by them.

        Args:
            steps: of each worker; None = nobody knows.
            workers: how many train.
        """
        algorithm = self._options.threshold
        state_before = getattr(algorithm, "state_before", None)
        if state_before is not None and not is_per_variable(algorithm):
            now = self._threshold.numbers()
            self._threshold.set_numbers(state_before(now, steps, workers))

    def extend(self, size: int) -> None:
        """Has a residual for each of `size` elements."""
        self.replica.extend(size)

    def bind(self, worker: TrainingWorker) -> None:
        """From now on messages go out through `worker`."""
        self.replica.bind(worker.handle)

    def finish(self) -> None:
        """Shares what local steps have changed; what has not reached the threshold stays."""
        self.share_rest()
        self.end_own()
        step_warnings.tell()

    def hand_over_all(self) -> HandedOver | None:
        """The whole residual, as updates of the last step."""
        if self.is_between_messages:
            self.share_rest(waits=False)
        return self.replica.hand_over(self.steps - 1) if self.steps else None

    def values_to_hand_over(self, *, between_batches: bool) -> npt.NDArray[np.float32]:
        """What all workers share; what this one has not sent comes to them later."""
        if between_batches:
            if self.is_between_messages:
                self.share_rest()
            self.show_shared()
        return self._space.read()

    def residuals(self, size: int) -> npt.NDArray[np.float32]:
        """What this worker has not sent, of flat elements [0, size)."""
        return self.replica.read_residual(0, size)

    def restore_residuals(self, values: npt.NDArray[np.float32]) -> bool:
        """Goes on with the residuals of a checkpoint."""
        self.replica.write_residual(0, values)
        return True

    def begin(self) -> None:
        """Starts the counters of a new generation; the cluster's step count goes on."""
        super().begin()
        self._shaken_mass.assign(0.0)
        self._norms.begin()

    @property
    def totals(self) -> StepStatistics:
        """Sums since `begin`, of what can be summed."""
        return StepStatistics(*self._totals.numpy().tolist())

    @property
    def last(self) -> StepStatistics:
        """The latest step that made a message, other than a shake-up."""
        return StepStatistics(*self._last.numpy().tolist())

    @property
    def last_by_variable(self) -> dict[str, dict[str, float]] | None:
        """`BY_VARIABLE` of the latest step of each variable, by its path, shake-ups left out.

        None = all have one threshold, and `last` tells.
        """
        found = self._threshold.last_by_variable()
        if found is None:
            return None
        entries = self._space.entries
        return {path_of(entries[place].variable): row for place, row in found.items()}

    @property
    def thresholds(self) -> list[float]:
        """The latest threshold of every variable that has had one, ascending; or just the one."""
        found = self._threshold.last_by_variable()
        if found is None:
            return [self.last.threshold]
        return sorted(row["threshold"] for row in found.values()) or [0.0]

    @property
    def wind_up(self) -> tuple[float, float]:
        """The largest residual in units of its threshold, and that threshold; zeros = no step."""
        found = self._threshold.last_by_variable()
        rows = [self.last._asdict()] if found is None else found.values()
        worst = [
            (row["max_residual"] / row["threshold"], row["threshold"])
            for row in rows
            if row["threshold"] > 0
        ]
        return max(worst, default=(0.0, 0.0))

    @property
    def shaken_mass(self) -> float:
        """The sum of what shake-ups have sent since `begin`, in absolute values."""
        return float(self._shaken_mass.numpy())

    @property
    def local_steps(self) -> int:
        """H, steps from one message to the next."""
        return self._options.local_steps

    @property
    def by_rows(self) -> bool:
        """Whether a step shares the rows alone that it changes: a later one would all of them."""
        return self._options.local_steps == 1

    @property
    def _is_full(self) -> bool:
        return self._options.local_apply == "full"

    @property
    def _keeps_shared(self) -> bool:
        """Whether what all workers share is kept beside the variables.

        Elsewhere it is computed where it is wanted, within rounding; in sequenced modes replicas
        agree in every bit.
        """
        return self._is_full and self._options.staleness is not None

    @property
    def is_between_messages(self) -> bool:
        """Whether local steps may have changed variables since the last message."""
        return self.local_steps > 1 and self.steps % self.local_steps != 0

    @property
    def limited(self) -> int:
        """How many updates were scaled down since `begin` for their norm."""
        return self._norms.limited

    def _clip_multiple(self, step: Any | None) -> Any:
        """Of the step's threshold, where clipping was due since the last message; else 0."""
        clipping = self._options.clipping
        if clipping is None or step is None:
            return tf.constant(0.0)
        end, start = step + 1, step + 1 - self._options.local_steps
        due = end // clipping.every > start // clipping.every
        return tf.where(due, tf.constant(clipping.multiple, tf.float32), 0.0)

    def _shake_up(self, step: Any | None) -> tuple[Any, Any]:
        """Whether this step is one, and what its threshold is multiplied by."""
        shake_up = self._options.shake_up
        if shake_up is None or step is None:
            return tf.constant(False), tf.constant(1.0)
        due = (step + 1) % shake_up.every == 0
        return due, tf.where(due, tf.constant(shake_up.factor, tf.float32), 1.0)

    def _await_release(self, entries: list[Entry], shared: Any, contributions: Any) -> Any:
        assert self._options.staleness is not None
        return operations().strom_apply_step(
            variables=[entry.primary.handle for entry in entries],
            stepped=shared,
            contribution=contributions - self._options.staleness,
            replica=self.replica.handle,
            offsets=[entry.offset for entry in entries],
            timeout_ns=nanoseconds(self._options.wait_timeout),
        )
