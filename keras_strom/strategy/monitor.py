"""What training with others does, where users already look: the logs of each epoch.

`fit` puts a `StromMonitor` on each worker by itself. Its figures are measured at the end of an
epoch from the step's own counters, so a step costs nothing more.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_strom import errors
from keras_strom.checks import flag
from keras_strom.sharing.model_checks import path_of
from keras_strom.sharing.pulled_step import PulledStep
from keras_strom.sharing.step import SharedStep
from keras_strom.strategy.fit_failure import tells_of_cut
from keras_strom.strategy.pull_figures import PullFigures
from keras_strom.strategy.warned_once import WarnOnce

if TYPE_CHECKING:
    from keras_strom.sharing.flat_space import Entry
    from keras_strom.sharing.statistics import StepStatistics
    from keras_strom.strategy.generation import Sharing

_logger = logging.getLogger("keras_strom")

_PREFIX = "strom/"

# Of |residual|, in encoding_debug_mode.
PERCENTILES = (50.0, 90.0, 99.0, 99.9, 100.0)

# Residuals are read in parts of this many elements; a histogram takes as many at most.
_PART = 1 << 20

# What is worth a warning, once a training.
_STEPS_WITHOUT_ENTRY = 100
_HIGH_DENSITY = 0.5
_PACKET_BYTES = 1400  # A message that goes into one costs what a smaller one does.
_LATE_STEPS = 16.0
_LATE_GROWTH = 2.0
_WAITING_FRACTION = 0.1


class StromMonitor(keras.callbacks.Callback):  # type: ignore[misc]
    """Adds to the logs of each epoch what the sharing of updates, or the method, has done in it.

    `fit` uses one on each worker by itself, of which the chief's alone warns and writes; give it
    your own to choose options. Other callbacks (CSVLogger, TensorBoard) and the history find the
    figures in the logs:

    * `strom/density`: sent entries per element and step.
    * `strom/threshold`: tau of the last step. Where each variable has its own, their median;
      `strom/threshold_min` and `strom/threshold_max` are the least and the largest then.
    * `strom/compression`: float32 bytes of the updates over the bytes of their messages.
    * `strom/residual_norm`: the Euclidean norm of what has not been sent yet.
    * `strom/staleness`: how many steps the updates of others are late when they are applied, the
      mean; 0 for those of workers that are ahead.
    * `strom/bytes_sent`: by this worker in this epoch, packet headers and resent packets included.
    * `strom/peers`: other workers from which updates came.

    It warns, once a training and with what to do, when nothing or nearly everything is sent, when
    updates come ever later, and when steps are so short that training waits for the network or for
    the other workers much of the time.

    Beside a joint model (`StromStrategy(method=...)`) the figures are these instead; a cycle lies
    between two snapshots of a shard, or two exchanges:

    * `strom/cycle_seconds`, `strom/cycle_steps`: of the last cycle; n_c steps of this worker.
    * `strom/alpha`: of the last pull.
    * `strom/pull`: alpha n_c, of `MPCA(penalty="shift")`; above 2 the pull is a brake.
    * `strom/divergence`: |x - x*| / |x*|, how far this worker is from its target.
    * `strom/waited`: seconds of this epoch that training has stood still for exchanges.
    * `strom/bytes_sent`: as above.
    * `strom/peers`: other workers that take part.

    It warns of a pull above 2, and of more than 500 steps in a cycle.

    Args:
        log_dir: where TensorBoard reads; the figures go there too, and of updates a histogram of
            |residual| / tau (base-2 logarithm). None = nowhere.
        logs: False leaves the logs as they are.

    Raises:
        InvalidOption: an option that is not understood.

    Example:
        >>> model.fit(x, y, callbacks=[StromMonitor(log_dir="logs")])  # doctest: +SKIP
    """

    def __init__(self, *, log_dir: str | os.PathLike[str] | None = None, logs: bool = True) -> None:
        super().__init__()
        if log_dir is not None and not isinstance(log_dir, str | os.PathLike):
            raise errors.InvalidOption(f"log_dir={log_dir!r} must be a path or None")
        self._log_dir = log_dir
        self._logs = flag("logs", logs)
        self._writes = True  # Warnings and tables, too.
        self._writer: Any = None
        self._sharing: Sharing | None = None
        self._pull: PullFigures | None = None  # Beside a joint model.
        self._before: _Snapshot | None = None
        self._staleness_before = 0.0
        self._warn_once = WarnOnce(0)

    def attach(self, sharing: Sharing) -> None:
        """`fit` says whose figures these are; without it the monitor does nothing."""
        self._sharing = sharing
        self._warn_once = WarnOnce(sharing.environment.rank)
        step = sharing.step
        self._pull = PullFigures(sharing, step) if isinstance(step, PulledStep) else None

    def off_the_chief(self) -> StromMonitor:
        """What stands for it on another worker: that one's own figures, and no more."""
        other = StromMonitor(logs=self._logs)
        other._writes = False
        return other

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Starts anew."""
        self._before = None
        self._staleness_before = 0.0
        if self._pull is not None:
            self._pull.begin()
        if self._sharing is not None and self._log_dir is not None:
            self._writer = tf.summary.create_file_writer(os.fspath(self._log_dir))

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes where the counters stand; a later epoch counts from the end of the one before."""
        if self._pull is not None:
            self._pull.begin_epoch()
        elif self._sharing is not None and self._before is None:
            self._before = _Snapshot.of(self._sharing)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Measures, warns, and adds to `logs`."""
        if self._pull is not None:
            self._end_epoch_of_pulls(self._pull, epoch, logs)
        elif self._sharing is not None and self._before is not None:
            self._end_epoch_of_updates(epoch, logs)

    def _end_epoch_of_pulls(
        self, pull: PullFigures, epoch: int, logs: dict[str, Any] | None
    ) -> None:
        figures = pull.end_epoch()
        if self._writes:
            for words, arguments in pull.warnings(figures):
                self._warn_once(words, *arguments)
        if self._logs and logs is not None:
            logs.update({_PREFIX + name: value for name, value in figures.items()})
        if self._writer is not None:
            self._write_scalars(epoch, figures)
            self._writer.flush()

    def _end_epoch_of_updates(self, epoch: int, logs: dict[str, Any] | None) -> None:
        assert self._sharing is not None
        assert self._before is not None
        now = _Snapshot.of(self._sharing)
        figures = self._figures(self._before, now)
        if self._writes:
            self._warn(figures, self._before, now)
        self._before = now
        self._staleness_before = figures["staleness"]
        if self._logs and logs is not None:
            logs.update({_PREFIX + name: value for name, value in figures.items()})
        by_variable = {}
        if self._sharing.debug and self._writes:
            by_variable = residual_percentiles(self._sharing)
        if by_variable:
            own = _shared(self._sharing).last_by_variable or {}
            thresholds = {path: row["threshold"] for path, row in own.items()}
            table = percentile_table(epoch, figures["threshold"], by_variable, thresholds)
            _logger.info("%s", table)
        if self._writer is not None:
            self._write(epoch, figures, by_variable)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Closes TensorBoard's file."""
        self.close()

    def close(self) -> None:
        """`fit` is over, by an exception or not: closes TensorBoard's file if it is open."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _figures(self, before: _Snapshot, now: _Snapshot) -> dict[str, float]:
        assert self._sharing is not None

        def grown(name: str) -> float:
            return float(getattr(now.totals, name) - getattr(before.totals, name))

        return {
            "density": _ratio(grown("count"), grown("elements")),
            **_of_thresholds(now.thresholds),
            "compression": _ratio(4 * grown("elements"), grown("message_bytes")),
            "residual_norm": residual_norm(self._sharing),
            "staleness": _ratio(grown("staleness"), grown("received")),
            "bytes_sent": float(now.bytes_sent - before.bytes_sent),
            "peers": float(
                sum(
                    counter > before.applied.get(origin, 0)
                    for origin, counter in now.applied.items()
                )
            ),
        }

    def _write(
        self,
        epoch: int,
        figures: dict[str, float],
        by_variable: dict[str, npt.NDArray[np.float64]],
    ) -> None:
        assert self._sharing is not None
        self._write_scalars(epoch, figures)
        with self._writer.as_default(step=epoch):
            if figures["threshold"] > 0:
                ratios = residual_sample(self._sharing)
                tf.summary.histogram(
                    _PREFIX + "log2_residual_over_threshold", np.log2(ratios[ratios > 0])
                )
            for path, values in by_variable.items():
                for percent, value in zip(PERCENTILES, values, strict=True):
                    tf.summary.scalar(f"{_PREFIX}residual/{path}/p{percent:g}", value)
        self._writer.flush()

    def _write_scalars(self, epoch: int, figures: dict[str, float]) -> None:
        with self._writer.as_default(step=epoch):
            for name, value in figures.items():
                tf.summary.scalar(_PREFIX + name, value)

    def _warn(self, figures: dict[str, float], before: _Snapshot, now: _Snapshot) -> None:
        steps = int(now.totals.stepped - before.totals.stepped)
        if steps >= _STEPS_WITHOUT_ENTRY and figures["density"] == 0:
            self._warn_once(
                "in %d steps no element has reached the threshold %.1e, so nothing was shared: "
                "lower it (AdaptiveThreshold(initial=...))",
                steps,
                figures["threshold"],
            )
        message_bytes = now.totals.message_bytes - before.totals.message_bytes
        if figures["density"] > _HIGH_DENSITY and message_bytes > _PACKET_BYTES * steps:
            self._warn_once(
                "%.0f %% of all elements were sent in each step, so compression does little: "
                "raise the threshold %.1e (AdaptiveThreshold(initial=...))",
                100 * figures["density"],
                figures["threshold"],
            )
        late = figures["staleness"]
        cut = now.cuts > before.cuts  # What has waited meanwhile came late.
        if not cut and late > _LATE_STEPS and late > _LATE_GROWTH * self._staleness_before > 0:
            self._warn_once(
                "updates of other workers were %.0f steps late, %.0f in the epoch before: a worker "
                "or its network cannot keep up. Use larger batches or a higher threshold, or bound "
                "it with max_staleness",
                late,
                self._staleness_before,
            )
        self._warn_of_waiting(before, now, steps)

    def _warn_of_waiting(self, before: _Snapshot, now: _Snapshot, steps: int) -> None:
        """Where a step is so short that the network has a good part of it."""
        seconds = now.clock - before.clock
        if steps == 0 or seconds <= 0:
            return
        step_ms = 1e3 * seconds / steps
        sending = (now.sending_seconds - before.sending_seconds) / seconds
        if sending > _WAITING_FRACTION:
            self._warn_once(
                "training waited %.0f %% of the time for the network to take its updates, %.3g ms "
                "of each step's %.3g: steps are too short for it. Use larger batches or a higher "
                "threshold, or share less often (local_steps)",
                100 * sending,
                sending * step_ms,
                step_ms,
            )
        others = (now.others_seconds - before.others_seconds) / seconds
        if others > _WAITING_FRACTION:
            self._warn_once(
                "training waited %.0f %% of the time for the other workers' updates, %.3g ms of "
                "each step's %.3g: steps are too short for the network, or a worker is slower. Use "
                "larger batches, share less often (local_steps), or wait for nobody "
                "(max_staleness=None)",
                100 * others,
                others * step_ms,
                step_ms,
            )


@dataclasses.dataclass(frozen=True)
class _Snapshot:
    """Counters at one moment.

    Attributes:
        totals: of the step, since the training began.
        thresholds: tau of the last step, ascending where variables have their own.
        bytes_sent: on this worker's socket.
        applied: the last counter that was applied of each other worker's origin.
        sending_seconds: how long training has waited for the network to take updates.
        others_seconds: how long for the others' updates of a step (max_staleness is not None).
        cuts: how many workers were lost, or are back, as far as this one was told; its own line
            to the master counts as well.
        clock: a monotonic time in seconds.
    """

    totals: StepStatistics
    thresholds: list[float]
    bytes_sent: int
    applied: dict[str, int]
    sending_seconds: float
    others_seconds: float
    cuts: int
    clock: float

    @classmethod
    def of(cls, sharing: Sharing) -> _Snapshot:
        bytes_sent, applied, sending, others, cuts = 0, {}, 0.0, 0.0, 0
        if sharing.worker is not None:
            status = sharing.worker.status()
            bytes_sent = int(status["counters"]["bytes_sent"])
            sending = status["submit_wait_ns"] / 1e9
            others = status["step_wait_ns"] / 1e9
            own = str(status["origin"])
            applied = {k: v for k, v in status["node"]["applied"].items() if k != own}
            cuts = sum(map(tells_of_cut, status["notices"]))
        step = _shared(sharing)
        return cls(
            step.totals,
            step.thresholds,
            bytes_sent,
            applied,
            sending,
            others,
            cuts,
            time.monotonic(),
        )


def _shared(sharing: Sharing) -> SharedStep:
    """What ends the steps of a training that shares updates."""
    assert isinstance(sharing.step, SharedStep)
    return sharing.step


def residual_norm(sharing: Sharing) -> float:
    """The Euclidean norm of the residuals of all variables that are trained."""
    return float(
        np.sqrt(
            sum(
                # In float64: a square overflows in float32 long before the residual itself does.
                float(np.sum(np.square(part, dtype=np.float64)))
                for entry in sharing.space.trained
                for part in _residual_parts(sharing, entry)
            )
        )
    )


def residual_sample(sharing: Sharing) -> npt.NDArray[np.float32]:
    """|residual| / tau of the trained variables, about a million of them at even distances."""
    entries = sharing.space.trained
    stride = max(1, sum(entry.size for entry in entries) // _PART)
    own = _shared(sharing).last_by_variable
    common = _shared(sharing).last.threshold
    parts = []
    for entry in entries:
        row = None if own is None else own.get(path_of(entry.variable))
        threshold = common if row is None else row["threshold"]
        parts += [
            np.abs(part[::stride]) / np.float32(threshold)
            for part in _residual_parts(sharing, entry)
        ]
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def residual_percentiles(sharing: Sharing) -> dict[str, npt.NDArray[np.float64]]:
    """`PERCENTILES` of |residual| of each trained variable, by its path; float64 each."""
    found = {}
    for entry in sharing.space.trained:
        residual = np.abs(sharing.replica.read_residual(entry.offset, entry.size))
        if residual.size:
            found[path_of(entry.variable)] = np.percentile(residual, PERCENTILES).astype(np.float64)
    return found


def percentile_table(
    epoch: int,
    threshold: float,
    by_variable: dict[str, npt.NDArray[np.float64]],
    thresholds: Mapping[str, float],
) -> str:
    """The percentiles of all variables, a line each, and tau, in each line where they differ.

    Args:
        epoch: counted from 0.
        threshold: tau, or the median of `thresholds`.
        by_variable: `residual_percentiles`.
        thresholds: of the variables that have their own, by path.
    """
    width = max(map(len, by_variable))
    columns = [f"p{percent:g}" for percent in PERCENTILES] + ["tau"] * bool(thresholds)
    head = " ".join(f"{column:>8}" for column in columns)
    lines = []
    for path, values in by_variable.items():
        own = [thresholds[path]] if path in thresholds else []
        lines.append(f"{path:<{width}} " + " ".join(f"{value:8.1e}" for value in [*values, *own]))
    title = f"|residual| after epoch {epoch + 1}, threshold {threshold:.1e}"
    return "\n".join([title, f"{'':<{width}} {head}", *lines])


def _of_thresholds(ascending: list[float]) -> dict[str, float]:
    median = {"threshold": float(np.median(ascending))}
    if len(ascending) == 1:
        return median
    return {**median, "threshold_min": ascending[0], "threshold_max": ascending[-1]}


def _residual_parts(sharing: Sharing, entry: Entry) -> Iterator[npt.NDArray[np.float32]]:
    for start in range(0, entry.size, _PART):
        size = min(_PART, entry.size - start)
        yield sharing.replica.read_residual(entry.offset + start, size)


def _ratio(above: float, below: float) -> float:
    return above / below if below else 0.0
