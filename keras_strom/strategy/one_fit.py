"""One `fit` of a sharing strategy, from its begin to its end, as the callbacks around it tell.

A worker that replaces another in the middle of a `fit` goes on at its predecessor's batch, with a
third worker's optimizer state (`donation`). One that comes after the others have ended takes the
final values and trains no epoch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import time
from typing import Any

import numpy as np
import tensorflow as tf

from keras_strom import errors
from keras_strom.recovery.endings import Ending
from keras_strom.recovery.final_history import History
from keras_strom.recovery.leaving import Drained, is_asked, leave
from keras_strom.recovery.resume import DataPosition, Fit
from keras_strom.recovery.takeover import donate_if_asked, hand_over_if_asked, take_over
from keras_strom.recovery.waiting import wait_until_allowed
from keras_strom.sharing import step_warnings
from keras_strom.sharing.constraints import Projection
from keras_strom.sharing.flat_space import update_copies
from keras_strom.sharing.progress import Progress, begin_fit_at
from keras_strom.strategy.callbacks import (
    agree_to_stop,
    has_stopped_early,
    may_leave_epoch,
    may_write,
)
from keras_strom.strategy.epoch_logs import EpochLogs, plain
from keras_strom.strategy.fit_failure import (
    failed_before_the_start,
    failed_without_the_others,
    is_connected,
    leave_to_join_anew,
    raise_if_failed,
    raise_if_others_cannot_start,
    warn_of_quiet_exit,
    words_of,
)
from keras_strom.strategy.generation import Generation, Sharing
from keras_strom.strategy.not_finite import NotFiniteWatch, of_loss
from keras_strom.strategy.one_state import give_one, in_turn, who_lack
from keras_strom.strategy.status_reports import doing
from keras_strom.strategy.trackers import WorkerFigures, is_pruning
from keras_strom.strategy.user_errors import no_training_data

_logger = logging.getLogger("keras_strom")

# How often a worker looks whether another has ended the training, was lost or is back.
_POLL_SECONDS = 0.5


class Training:
    """What the callbacks before and after all others have in common.

    Args:
        sharing: what the strategy shares.
        model: that is trained.
        initial_epoch: what `fit` was given.
        assigns_last: whether a callback may assign weights at the very end.
    """

    def __init__(
        self, sharing: Sharing, model: Any, initial_epoch: int, assigns_last: bool
    ) -> None:
        self._sharing = sharing
        self._model = model
        self._initial_epoch = initial_epoch
        self._assigns_last = assigns_last
        self._fit = Fit(sharing.fits + 1, model, per_epoch=None)
        self._started = False
        self._reported = False
        self._over = False  # Nobody waits for this worker any more.
        self._finished: Generation | None = None
        self._epoch_closed = False
        self._last_epoch = False
        self._next_poll = 0.0
        self._epoch = 0
        self._place = DataPosition(0, 0)  # The batch that this worker trains next.
        self._has_data = False  # A batch has ended.
        self.rows = 0  # Of the arrays that `fit` was given; 0 = it was given others.
        self._skipped = 0  # Batches of the epoch at hand that a predecessor has trained.
        self._batches_left: int | None = (
            None  # Where it has a predecessor there: batches left in it.
        )
        self._cut_short = False
        self._history: dict[str, list[float]] = {}
        self.within_batch = False  # Between the callbacks before a batch and those after it.
        self.logs = EpochLogs(model)
        here = sharing.environment
        self.figures = WorkerFigures(here.rank, here.size)
        self.watch = NotFiniteWatch(model, sharing.space)
        self.projection = Projection(model, sharing.space)
        # The callbacks that may write the model after a batch, to a file that is for all workers.
        self.writers: list[Any] = []
        self.stoppings: list[Any] = []  # Keras's EarlyStopping among the user's callbacks.
        # Whether anybody may look at the model between two epochs. Where nobody does, a worker
        # beside a joint model need not fetch that.
        self.shows_epochs = True
        self.follows_schedule = False  # Of learning rates, not the chief's.

    def begin(self, epochs: int, per_epoch: int | None) -> None:
        """After every other callback's `on_train_begin`, which may have restored old weights."""
        if is_asked(self._sharing) and not self._sharing.step.steps:  # It has learnt nothing yet.
            self._leave_for_good(trains=False)
        generation = self._sharing.generation = Generation(self._sharing, [self._model])
        generation.epochs_of_history = epochs
        fit = self._fit = dataclasses.replace(self._fit, per_epoch=per_epoch)
        checkpoints = self._sharing.checkpoints
        if checkpoints is not None:
            generation.place_state()
            checkpoints.prepare(self._sharing, fit, epochs)
        generation.start(self._initial_epoch)
        worker = self._sharing.worker
        if worker is not None:
            raise_if_others_cannot_start(worker, fit.number, generation.lost.words())
        self._started = True
        steps = None
        if per_epoch:
            batches = per_epoch * (epochs - generation.began.first_epoch)
            steps = batches // Progress(self._model).batches_a_step()
        self._sharing.step.expect(steps, self._sharing.environment.size)
        self.watch.begin()
        lacking = who_lack(self._sharing, generation)
        self._place = DataPosition(generation.began.first_epoch, 0)
        if generation.ended:
            _logger.info("%s comes after the end of this training", self._who())
            if self._sharing.training_data is not None:
                left = epochs - generation.began.first_epoch
                trained = max(map(len, generation.history.values()), default=left)
                self._sharing.training_data.pass_over(trained, per_epoch)
            begin_fit_at(self._model, epochs)  # Keras then trains no epoch.
        elif generation.late:
            self._go_on(take_over(self._sharing, fit, generation.began), per_epoch)
        elif checkpoints is not None and not generation.lacks_state:
            place = checkpoints.restore(self._sharing, fit, generation.began, epochs)
            if place is not None:
                self._go_on(place, per_epoch)
        for rank in in_turn(generation, lacking):
            if rank == self._sharing.environment.rank:
                self._go_on(take_over(self._sharing, fit, generation.began), per_epoch)
            else:
                give_one(self._sharing, fit, self._place, self.projection)
        if worker is not None:
            worker.meanwhile = self.help_others

    def _go_on(self, place: DataPosition, per_epoch: int | None) -> None:
        """Has Keras begin where a predecessor was."""
        self._place = place
        data = self._sharing.training_data
        if data is not None:
            if place.batch > 0 and per_epoch:
                self._skipped, self._batches_left = place.batch, per_epoch - place.batch
            epochs = place.epoch - self._running().began.first_epoch
            data.go_on(epochs=epochs, batches=self._skipped, per_epoch=per_epoch)
        begin_fit_at(self._model, place.epoch)
        _logger.info(
            "%s goes on in epoch %d after %d batches", self._who(), place.epoch + 1, self._skipped
        )

    def _who(self) -> str:
        here = self._sharing.environment
        return f"worker {here.rank} (attempt {here.attempt})"

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Before every other callback's `on_epoch_begin`."""
        self._running().warn()
        self._epoch = epoch
        self._epoch_closed = False
        self.figures.begin_epoch(self._sharing.step.stepped)
        self._last_epoch = epoch + 1 >= epochs

    def begin_batch(self, batch: int) -> None:
        """Before every other callback's `on_train_batch_begin`; may wait, or leave for good."""
        place = self._place = DataPosition(self._epoch, self._skipped + batch)
        self.help_others()
        wait_until_allowed(self._sharing, self._wait_for_others, self._waiting)
        if is_asked(self._sharing) and Progress(self._model).is_between_steps():
            self._leave_for_good(trains=True)
        if self._sharing.checkpoints is not None:
            self._sharing.checkpoints.save_if_due(self._sharing, self._fit, place)
        self._sharing.step.show_own(swapped=bool(self.projection.swappers))
        now = time.monotonic()
        if now >= self._next_poll:
            self._next_poll = now + _POLL_SECONDS
            running = self._running()
            if running.stop_requested():
                self._model.stop_training = True
            running.lost.tell(self._who())

    def _waiting(self, why: str) -> contextlib.AbstractContextManager[None]:
        return doing(self._sharing.environment, "waiting", why)

    def _wait_for_others(self) -> None:
        self.help_others()
        worker = self._sharing.worker
        if is_asked(self._sharing) and worker is not None and not worker.waits_for_master():
            self._leave_for_good(trains=True)

    def _leave_for_good(self, *, trains: bool) -> None:
        """Has another process take this worker's place; nothing that it has learnt is lost."""
        worker = self._sharing.worker
        assert worker is not None
        worker.meanwhile = None
        try:
            leave(self._sharing, trains=trains)
        except Drained:
            self._sharing.ended = f"{self._who()} has drained"
            raise

    def show_shared(self, batch: int) -> None:
        """Before every other callback's `on_train_batch_end`; without data only batches begin."""
        self._has_data = True
        self.within_batch = False
        if any(may_write(writer, batch) for writer in self.writers):
            self._sharing.step.show_shared()

    def end_batch(self, batch: int, logs: dict[str, Any] | None) -> None:
        """After every other callback: ends an epoch of which a predecessor has trained a part.

        Keras leaves an epoch early, and quietly, only for `stop_training`.

        Raises:
            NotFinite: the batch's update was refused, and no callback has ended the training.
        """
        if self.watch.caught is not None and not self._model.stop_training:
            raise self.watch.caught
        if self._model.stop_training:
            asked = self._running().stop_requested()
            self._look_for_nan(None if asked else logs)  # Which TerminateOnNaN may have seen.
            caught = self.watch.caught is not None
            self._model.stop_training = caught or may_leave_epoch(self._running(), self._sharing)
        if (
            self._batches_left is not None
            and batch + 1 >= self._batches_left
            and not self._model.stop_training
        ):
            self._model.stop_training = self._cut_short = True
        step_warnings.tell()

    def help_others(self) -> None:
        """Gives others what they ask this worker for, at its place between two batches."""
        if (running := self._sharing.generation) is not None:
            donate_if_asked(self._sharing, self._fit, self._place, self.projection)
            hand_over_if_asked(self._sharing, running.began.layout_size, self.projection)

    def close_epoch(self) -> None:
        """After the epoch's last step and before validation; once an epoch."""
        if self._epoch_closed:
            return
        self._epoch_closed = True
        self.within_batch = False
        here = self._sharing.environment
        if not (self._has_data or self._skipped) and here.size > 1:
            raise no_training_data(here)
        self._place = DataPosition(self._epoch + 1, 0)
        if self._cut_short:
            self._model.stop_training = self._cut_short = False
            assert self._sharing.training_data is not None
            self._sharing.training_data.end_epoch()
        self._skipped, self._batches_left = 0, None
        generation = self._running()
        self._look_for_nan()
        loss = self.logs.end_epoch()
        if self.watch.caught is not None:
            self._model.stop_training = True
            self.logs.note_averages()
            self._finish(stop=True)
            return
        own = np.append(self.figures.end_epoch(self._sharing.step.stepped, loss), self.rows)
        stop, mean = generation.average_epoch(here.is_chief and self._model.stop_training, own)
        generation.warn_once.of_rows(self.rows, mean[-1], here.size)
        self.figures.found = self.figures.of(mean[:-1])
        stop = stop or generation.stop_requested()
        self.watch.note_sound_state()
        self.logs.note_averages()
        self._model.stop_training = stop
        generation.lost.tell(self._who())
        if stop or self._last_epoch:
            self._finish(stop and here.is_chief)
        else:
            if self.shows_epochs or self._sharing.step.is_replica:
                self._sharing.step.show_shared()
            self.projection.show()

    def _look_for_nan(self, logs: dict[str, Any] | None = None) -> None:
        """Where no step has refused it: whether the worker's own model, or its loss, holds a NaN.

        Raises:
            NotFinite: it does, and no callback has ended the training.
        """
        if self.watch.caught is not None:
            return
        if found := self._sharing.step.not_finite() or of_loss(logs or {}):
            self.watch.catch(found)
            if not self._model.stop_training:
                raise found

    def settle_stop(self) -> None:
        """After the epoch's last callback, which may have asked to stop (EarlyStopping)."""
        if self._finished is not None:
            return
        self.projection.take_back()
        asked = self._model.stop_training
        early = has_stopped_early(self.stoppings, self._epoch)
        self._model.stop_training = agree_to_stop(self._running(), asked, tells=not early)
        if self._model.stop_training:
            self._finish(self._sharing.environment.is_chief)
        else:
            self._running().share_learning_rates(not self.follows_schedule)

    def end(self) -> None:
        """After all other callbacks and Keras itself have done what they do at the end."""
        running = self._sharing.generation
        if running is not None and running.ended:
            running.install_end()
            self._sharing.last_report = running.describe()
            self._take_history(running.history, running.began.first_epoch)
            self._sharing.generation = None
            return
        if self._finished is None:  # There was no epoch left to train.
            self._finish(stop=False)
        assert self._finished is not None
        if self._finished.endings.not_finite:
            # Also where this worker has heard of it after its last epoch's callbacks.
            for history in (self._history, self._model.history.history):
                history["loss"] = [*history.get("loss", ())[:-1], math.nan]
        if not self._reported:
            # Nobody returns before the callbacks of all others have, which write what they read.
            self._report()
        self._over = True
        self._finished.history = self._history
        self._finished.close()
        # Only now, as Keras's progress bar keeps its line open during the callbacks of an epoch.
        self._finished.tell()

    def note_history(self, logs: dict[str, Any] | None) -> None:
        """At the end of an epoch: what Keras puts into the history of `fit`."""
        for name, value in (logs or {}).items():
            if isinstance(number := plain(value), float):
                self._history.setdefault(name, []).append(number)

    def _take_history(self, history: History, first_epoch: int) -> None:
        """Of a `fit` that was over before this worker came: `fit` returns what another's did."""
        if not history:
            return
        own = self._model.history
        own.history = {name: list(values) for name, values in history.items()}
        epochs = max(map(len, history.values()))
        own.epoch = list(range(first_epoch, first_epoch + epochs))

    def abandon(self, error: BaseException) -> None:
        """After an exception: has the others fail too, or tells them why this worker leaves."""
        try:
            self._part(error)
        finally:  # Whoever looks at the model now sees what all workers share, as after any fit.
            if not isinstance(error, errors.DeviceLost):  # Of a lost card nothing can be asked.
                with contextlib.suppress(tf.errors.OpError):  # The error itself says what is wrong.
                    self._sharing.step.end_own(mid_step=self.within_batch)

    def _part(self, error: BaseException) -> None:
        sharing, worker = self._sharing, self._sharing.worker
        generation, sharing.generation = sharing.generation, None
        lost_device = isinstance(error, errors.DeviceLost)  # Its worker goes as one that dies.
        if not lost_device:
            self.projection.take_back()
            # A step that was refused is undone on the worker's first device only.
            with contextlib.suppress(tf.errors.OpError):
                update_copies(sharing.space.participants)
        if worker is None or sharing.ended is not None:
            return
        worker.meanwhile = None
        sharing.fits = max(sharing.fits, self._fit.number)
        words = words_of(error)
        if isinstance(error, Exception) and not lost_device and is_connected(worker):
            no_part = generation is not None and generation.ended  # It trained nothing with others.
            if self._over or no_part or isinstance(error, errors.FitFailed):
                return
            try:
                self._have_others_fail(generation, words, pruned=is_pruning(error))
                return
            except (errors.StromError, tf.errors.OpError) as lost:
                _logger.warning("%s could not tell the others of it: %s", self._who(), lost)
        if isinstance(error, errors.Refused | errors.FitFailed):  # The master serves others on.
            try:
                return self._leave(words)
            except errors.StromError as lost:
                _logger.warning("%s could not join anew: %s", self._who(), lost)
        warn_of_quiet_exit(self._who(), error)
        sharing.ended = f"worker {sharing.environment.rank} failed: {words}"
        worker.close(sharing.ended)

    def _have_others_fail(
        self, generation: Generation | None, words: str, *, pruned: bool = False
    ) -> None:
        here = self._sharing.environment
        if here.max_failures and not pruned:
            _logger.error("%s: %s; the others train on", self._who(), words)
            # Most likely this process ends now, and another takes its place.
            self._leave(failed_without_the_others(words), joins_at_once=False)
        elif self._finished is not None:
            if not self._reported:
                self._finished.report(failure=words)
            self._finished.close(failure=words)
        elif self._started:
            assert generation is not None
            generation.finish(stop=True, ending=Ending(failure=words))
            generation.report()
        else:
            self._leave(failed_before_the_start(self._fit.number, here.rank, words))

    def _leave(self, words: str, *, joins_at_once: bool = True) -> None:
        """Leaves the generation at hand, and joins the job anew for the next."""
        sharing = self._sharing
        assert sharing.worker is not None
        leave_to_join_anew(sharing.worker, words)
        sharing.has_left = True
        if joins_at_once:
            sharing.join_again()

    def _running(self) -> Generation:
        assert self._sharing.generation is not None
        return self._sharing.generation

    def _finish(self, stop: bool) -> None:
        finished = self._running()
        met_nan = self.watch.caught is not None
        ending = Ending(follows=self._assigns_last, not_finite=met_nan)
        with doing(self._sharing.environment, "ending"):
            self._sharing.last_report = finished.finish(stop, ending)
        worker = self._sharing.worker
        if worker is not None:
            worker.meanwhile = None
        self._finished = finished
        self._sharing.generation = None
        if worker is not None and (worker.outlives or finished.endings.failed):
            self._report()
        self._over = bool(finished.endings.failed)
        raise_if_failed(finished.endings)
        if finished.endings.not_finite:
            self._end_for_nan(finished.endings.not_finite)

    def _end_for_nan(self, ranks: tuple[int, ...]) -> None:
        """As where Keras has trained on with it: the epoch's loss is NaN."""
        if self._sharing.environment.is_chief or self.watch.caught is not None:
            found, kept = "an update", "those before it"
            if not self._sharing.step.is_replica:
                found, kept = "the model", "the joint model's"
            _logger.warning(
                "%s: the training ends on all workers, for %s of worker %s held a NaN or an "
                "infinity; the parameters are %s",
                self._who(),
                found,
                ", ".join(map(str, ranks)),
                kept,
            )
        self._model.stop_training = True
        self.logs.lose()

    def _report(self) -> None:
        assert self._finished is not None
        self._sharing.last_report = self._finished.report()
        self._reported = True
