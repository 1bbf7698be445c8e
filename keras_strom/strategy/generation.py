"""One generation: a training from a common start to an agreed end, by `fit` or a custom loop.

A generation starts with the chief's values on every worker, averages what is not trained at the
end of each epoch, and ends with the same bits on every worker. A lone worker goes through the same
steps with nobody to agree with. The requests and their order are those of custom_ops/capi/strom.h.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_strom import errors
from keras_strom._native.library import array_hash
from keras_strom.recovery import end_state, final_history
from keras_strom.recovery.checkpointing import Checkpointing
from keras_strom.recovery.donation import optimizers_of
from keras_strom.recovery.endings import Ending, Endings, end_state_length
from keras_strom.recovery.resume import ResumableData, Start
from keras_strom.recovery.takeover import hand_over_if_asked
from keras_strom.recovery.waiting import finish_with_all, verify_with_all
from keras_strom.sharing.compiled import compiled_options
from keras_strom.sharing.constraints import project
from keras_strom.sharing.flat_space import Entry
from keras_strom.sharing.model_checks import value_with_path
from keras_strom.sharing.model_state import (
    assign,
    assign_mean,
    averaged_state,
    left_to_the_program,
    metric_sums,
    moving_averages,
    read,
    take_over_adapted,
)
from keras_strom.sharing.optimizers import HASH_LENGTH, state_hash
from keras_strom.sharing.participant import Participant
from keras_strom.sharing.progress import Progress, install_standing, standing_of
from keras_strom.sharing.step import SharedStep
from keras_strom.sharing.training_step import JointPlan
from keras_strom.strategy import assigned, learning_rates
from keras_strom.strategy.device_memory import check_memory
from keras_strom.strategy.fit_failure import (
    LostMeanwhile,
    is_ahead,
    is_without_chief,
    join_anew,
    leave_to_join_anew,
    raise_if_failed,
    raise_if_others_cannot_start,
    tell_of_those_who_left,
)
from keras_strom.strategy.new_optimizers import KnownOptimizers
from keras_strom.strategy.report import TrainingReport, announce, describe
from keras_strom.strategy.warned_once import WarnOnce

if TYPE_CHECKING:
    from keras_strom.relay.training_relay import TrainingWorker

# From one look for a chief that is to join anew to the next.
_CHIEF_SECONDS = 0.2

# Keys of the averages that a training asks for.
_EPOCH_KEY = 1
_STOP_KEY = 2
_RATES_KEY = 3

# Reported in place of the replica difference by a worker whose `fit` has failed; no real difference
# is so large.
_FAILED = 1e300

_WELL = Ending()


@dataclasses.dataclass
class Sharing(Participant):
    """What a strategy of several workers consists of: a participant, and where its trainings are.

    Attributes:
        sequenced: whether updates are applied in the master's order (max_staleness is not None).
        epochs_meet: whether an epoch ends where all have ended it (in sequenced modes and rounds).
        options_text: the options that must agree on all workers.
        fits: how many fits, or custom loops, have begun. The k-th is generation 2k - 1 and the one
            without steps that may follow it 2k, so that a worker that comes late counts alike.
        generation: the one that is running.
        last_report: of the latest one that has finished.
        agreed: the trained variables' hashes by id, as all had them at its end; None on the chief.
        results: where updates are shared, the hashes, by offset, of all that was ever trained, as
            the latest training has left it; None while one runs, and after one without a result.
        start_values: by length, the places in the flat space where a `fit`'s start travels.
        training_data: of the `fit` that runs, of which a worker that is late leaves out a part.
        ended: why the job is over for this worker; None while it goes on.
        debug: whether percentiles of the residuals are logged after each epoch.
        checkpoints: saves and restores this worker; None = nobody does.
        started: whether any training has started with the others.
        join: joins the job; None for a lone worker.
        has_left: whether this worker has left the job, and joins it anew for its next training.
        has_returned: whether it has joined anew and not trained since; others may be on their way.
        told_of: workers of whose end this one has warned, at the start of a training.
        optimizers: of the trainings so far.
    """

    sequenced: bool
    epochs_meet: bool
    options_text: str
    fits: int = 0
    generation: Generation | None = None
    last_report: TrainingReport | None = None
    agreed: dict[int, int] | None = None
    results: dict[int, int] | None = None
    start_values: dict[int, tf.Variable] = dataclasses.field(default_factory=dict)
    training_data: ResumableData | None = None
    ended: str | None = None
    debug: bool = False
    checkpoints: Checkpointing | None = None
    started: bool = False
    join: Callable[[], TrainingWorker] | None = None
    has_left: bool = False
    has_returned: bool = False
    told_of: set[str] = dataclasses.field(default_factory=set)
    optimizers: KnownOptimizers = dataclasses.field(default_factory=KnownOptimizers)

    def join_again(self) -> None:
        """Before a training: joins the job anew where this worker has left it.

        Raises:
            Refused: another process has its rank by now.
        """
        if self.has_left:
            assert self.join is not None
            self.worker = join_anew(self.join)
            self.has_left, self.has_returned = False, True

    def resumable(self, dataset: Any, distribute: Callable[[Any], Any]) -> ResumableData:
        """Stands for a dataset that Keras distributes; the first of a `fit` is its training data.

        Args:
            dataset: a `tf.data.Dataset`.
            distribute: gives what Keras iterates over.
        """
        data = ResumableData(dataset, distribute)
        if self.training_data is None:
            self.training_data = data
        return data


class Generation:
    """Starts with `start`, ends with `finish`, once each.

    Args:
        sharing: the strategy's.
        models: the Keras models that are trained, whose non-trainable state and metrics are
            averaged.
        follows: whether it is the one without steps that follows a `fit` or custom loop.

    Attributes:
        began: once started, where all workers have.
        late: once started, whether the others were training already.
        lacks_state: once started, whether the chief's optimizers have another state, which all are
            to have.
        ended: once started, whether the others had ended it already; nothing is to be done then.
        epochs_of_history: of `fit`, whose history is kept for workers that may come after the end;
            0 = there is none. To be set before the start.
        lost: who was lost since this training began, as the master says.
        history: to be set before `close`; once started, where the others had ended it, theirs.
        endings: once finished, what the workers say of the end.
        failed_afterwards: once reported, whether `fit` has failed after it on some worker.
        warn_once: logs what the user should know of it.
    """

    def __init__(self, sharing: Sharing, models: Sequence[Any], *, follows: bool = False) -> None:
        if sharing.ended is not None:
            raise errors.ConnectionClosed(
                f"the job of worker {sharing.environment.rank} is over since an earlier training "
                f"ended with an error ({sharing.ended}); start the job again"
            )
        self._sharing = sharing
        self._models = models
        self._follows = follows
        self._start_hashes: dict[int, int] = {}
        self._averaged_at_start: list[tuple[slice, npt.NDArray[np.float32]]] = []
        self._values_at_end = np.zeros(0, np.float32)
        self._state_at_end = np.zeros(0, np.float64)
        # Before one without steps: what no optimizer trains, as all who trained have it.
        self._state_before = np.zeros(0, np.float64)
        self.epochs_of_history = 0
        self.history: final_history.History = {}
        self._report: TrainingReport | None = None
        self._started_at = time.monotonic()
        self._installed = 0.0, 0  # The difference of this replica, and the hash of what it has.
        self.lost = LostMeanwhile(sharing.worker)
        self._bytes_before = self._wire_bytes()
        self.warn_once = WarnOnce(sharing.environment.rank)
        self.began = Start()
        self.late = False
        self.lacks_state = False
        self.ended = False
        self.endings = Endings()
        self.failed_afterwards = False

    def start(self, initial_epoch: int | None = None) -> None:
        """Agrees on the layout with all workers and installs the chief's values.

        Args:
            initial_epoch: what `fit` was given; its only model then goes on at the chief's epoch,
                with the chief's learning rate. None where there are no epochs.
        """
        sharing, worker = self._sharing, self._sharing.worker
        if initial_epoch is None and not self._follows:
            self._refuse_what_loops_lack()
        # Where the last training failed, what it has not shared waits in the residuals.
        sharing.step.end_own()
        start = None
        if worker is not None:
            self.place_state()
            for model in self._models:
                for variable in model.trainable_variables:
                    sharing.space.expect(variable.value)
            if initial_epoch is not None:
                start = self._place_start_values(initial_epoch)
        trained = self._trained_entries()
        if not self._follows:
            sharing.fits += 1
            sharing.space.train(trained)
        # The start writes the chief's number there; without a chief, that of an earlier training.
        told = None if worker is None else self._place(np.asarray([self._number], np.float32))
        self.began = Start(layout_size=sharing.space.size)
        sharing.step.begin()
        layout = sharing.space.hash()
        sharing.step.extend(sharing.space.size)
        if isinstance(sharing.step, SharedStep):
            check_memory(sharing.space, sharing.step.local_steps)
        if told is not None:
            # Without steps nothing is exchanged, whatever the method is.
            joint = JointPlan() if self._follows else sharing.step.plan(trained)
            self._take_start(self._start_with_others(layout, joint), start, told)
            if self.ended:
                return
        if isinstance(sharing.step, SharedStep):
            sharing.optimizers.begin(self._models, sharing.step, trained, sharing.environment)
        # Whatever was assigned so far is the start, not a change behind the strategy's back.
        sharing.step.apply(sharing.space.participants)
        sharing.step.begin_own(trained if self._models else [])
        self._started_at = time.monotonic()

    def _refuse_what_loops_lack(self) -> None:
        """Refuses what custom loops have no place for."""
        if self._sharing.checkpoints is not None:
            raise errors.UnsupportedModel(
                "checkpoint_dir is for training with fit: where a custom loop stands, nobody but "
                "the program knows. Leave checkpoint_dir out, and save in the loop"
            )
        worker = self._sharing.worker
        if worker is not None and worker.outlives:
            raise errors.UnsupportedModel(
                'on_master_loss="wait" is for training with fit: a custom loop has no place where '
                "it could wait for another master. Leave it out"
            )

    def _take_start(
        self, values: npt.NDArray[np.float32], start: tf.Variable | None, told: tf.Variable
    ) -> None:
        """Installs the master's `values`, with which all begin, or notes that others have ended.

        `start` is the place of a `fit`'s start values, `told` that of the generation's number.
        """
        sharing, worker = self._sharing, self._sharing.worker
        assert worker is not None
        sharing.started, sharing.has_returned = True, False
        self.lost.training_starts()
        sharing.space.agree()
        own = None if sharing.agreed is None else assigned.fingerprint(self._models)
        averaged = averaged_state(self._models, sharing.space)
        state = self._state_before if self._follows else read(averaged)
        sharing.space.assign(values, sharing.space.entries)
        places = [entry.place for entry in sharing.space.entries_of(averaged)]
        self._averaged_at_start = [(place, values[place].copy()) for place in places]
        take_over_adapted(self._models)
        self._warn_of_lost_assignments(own)
        self._forget_residuals()
        if start is not None:
            self._take_progress(start)
        self.late, self.ended = worker.start_info.late, worker.start_info.ended
        if self.ended:
            self._values_at_end, self._state_at_end = values, self._ask_state_at_end(worker)
            return
        if not self._follows:
            tell_of_those_who_left(
                worker,
                sharing.told_of,
                "%s has ended, so this training begins without its part of the data: all "
                "workers must call fit equally often",
            )
        sharing.step.bind(worker)
        self._start_hashes = {
            id(entry.variable): assigned.hash_of(entry)
            for entry in left_to_the_program(self._models, self._sharing.space)
        }
        # Without the chief the values were the master's, whose state is of an earlier start.
        if (self._follows or not self.late) and int(told.numpy()[0]) != self._number:
            assign(averaged, state)

    def _take_progress(self, start: tf.Variable) -> None:
        """Installs the chief's progress in a `fit`, as the place of its start values has it."""
        step = self._sharing.step
        # Behind the chief's progress is the hash of its optimizers, if all have its state.
        hashed = HASH_LENGTH if step.has_one_state else 0
        progress, chiefs = np.split(start.numpy(), [start.shape[0] - hashed])
        begin = Progress(self._models[0]).install_start(progress)
        if step.has_one_state:
            own = state_hash(optimizers_of(self._models[0]))
            self.lacks_state = not np.array_equal(own, chiefs)
        self.began = Start(*begin, self.began.layout_size)
        step.count_from(self.began.shared_steps)

    def place_state(self) -> None:
        """Gives places in the flat space to what no optimizer trains and workers average."""
        for variable in averaged_state(self._models, self._sharing.space):
            if variable.dtype == tf.float32:
                self._sharing.space.add(variable)

    def _trained_entries(self) -> list[Entry]:
        """What the models' optimizers train, in flat order; without models all that is trainable.

        The same on all workers, for it depends on the program alone.
        """
        space = self._sharing.space
        if not self._models:
            return [entry for entry in space.entries if entry.variable.trainable]
        variables = (v for model in self._models for v in model.trainable_variables)
        trained = {id(value): value for value in map(value_with_path, variables)}
        return sorted(space.entries_of(trained.values()), key=lambda entry: entry.offset)

    @property
    def _number(self) -> int:
        """The k-th `fit` is 2k - 1, and what may follow it 2k."""
        return 2 * self._sharing.fits - (0 if self._follows else 1)

    def _start_with_others(self, layout: int, joint: JointPlan) -> npt.NDArray[np.float32]:
        """Waits until all workers begin; the values from which they do.

        Meanwhile a master that has come for a lost one may ask how the last training has ended.
        """
        sharing = self._sharing
        deadline = time.monotonic() + sharing.environment.join_timeout
        while True:
            worker = sharing.worker
            assert worker is not None
            other, worker.meanwhile = worker.meanwhile, self._while_waiting
            try:
                return worker.start(
                    self._number,
                    self.began.layout_size,
                    layout,
                    sharing.options_text
                    + compiled_options(self._models, trains_by_fit=self.epochs_of_history > 0),
                    sharing.space.read(),
                    method=joint.method,
                    ranges=joint.ranges,
                    cycles=joint.cycles,
                    # Callbacks of another worker's last epoch may take as long as they like.
                    timeout=None if self._follows else sharing.environment.join_timeout,
                )
            except errors.Refused as refused:
                # Then it may lack the chief's values, too.
                raise_if_others_cannot_start(worker, sharing.fits, self.lost.words())
                waits = sharing.has_returned and is_without_chief(refused)
                if waits and time.monotonic() < deadline:
                    time.sleep(_CHIEF_SECONDS)
                elif sharing.started or not is_ahead(refused, self._number):
                    raise
                assert sharing.join is not None
                leave_to_join_anew(worker, "another worker had not come so far")
                sharing.worker = join_anew(sharing.join)
                # A new connection counts, and tells of the others, from its own start.
                self.lost, self._bytes_before = LostMeanwhile(sharing.worker), self._wire_bytes()
            finally:
                worker.meanwhile = other

    def _while_waiting(self) -> None:
        worker = self._sharing.worker
        assert worker is not None
        # No training starts without who has failed before, or was refused.
        raise_if_others_cannot_start(worker, self._sharing.fits, self.lost.words())
        if not self._sharing.started:
            tell_of_those_who_left(
                worker,
                self._sharing.told_of,
                "%s has ended without a training, and this one may wait for it: all workers must "
                "call fit",
            )
        hand_over_if_asked(self._sharing, self.began.layout_size)

    def _place_start_values(self, initial_epoch: int) -> tf.Variable:
        """A place in the flat space with this worker's start; the chief's is what all will read."""
        values = Progress(self._models[0]).start_values(initial_epoch, self._sharing.step.steps)
        if self._sharing.step.has_one_state:
            values = np.append(values, state_hash(optimizers_of(self._models[0])))
        return self._place(values)

    def _place(self, values: npt.NDArray[np.float32]) -> tf.Variable:
        """A place in the flat space for so many values, with these."""
        places = self._sharing.start_values
        if values.size not in places:
            with tf.init_scope(), tf.device("/cpu:0"):
                places[values.size] = tf.Variable(values, trainable=False)
            self._sharing.space.add(places[values.size])
        places[values.size].assign(values)
        return places[values.size]

    def install_end(self) -> None:
        """Of a generation that had ended before `start`: what it has ended with.

        Where another one without steps is to follow, this worker takes part in that.
        """
        self._sharing.space.assign(self._values_at_end, self._sharing.space.entries)
        variables = averaged_state(self._models, self._sharing.space)
        size = read(variables).size
        if self._state_at_end.size > size:  # What follows are counts of steps, and more.
            self._state_before = self._state_at_end[:size]
            assign(variables, self._state_before)
            install_standing(self._models, self._state_at_end[size:])
        elif variables:
            self.warn_once(
                "the training had ended without this worker: its state that no optimizer trains, "
                "such as BatchNormalization's averages, is that from the training's start"
            )
        if self.endings.follows and not self.endings.failed:
            self.close()
        self._note_agreed()

    def _ask_state_at_end(self, worker: TrainingWorker) -> npt.NDArray[np.float64]:
        """The averaged state with which this training has ended; empty where nobody knows it."""
        here = self._sharing.environment
        ended, state = end_state.ask_for_it(worker.take_donation, here.join_timeout)
        # A generation without steps that followed has the same models; a later fit may have others.
        if ended not in (self._number, self._number + (not self._follows)):
            return np.zeros(0, np.float64)
        if self.epochs_of_history and ended % 2 == 0:  # That has the history as well.
            kept = state.size - final_history.length(self.epochs_of_history)
            self.history = final_history.of(state[kept:])
            return state[:kept]
        if ended == self._number and state.size >= end_state_length(here.size):
            self.endings = Endings.of(state[-end_state_length(here.size) :], here.size)
        return state

    def close(self, failure: str = "") -> None:
        """After `report`: where weights were assigned last, everybody takes the chief's.

        Args:
            failure: how `fit` has failed on this worker since `finish`; "" = it has not.

        Raises:
            FitFailed: it has failed on another one since then.
        """
        if self.endings.follows or self.failed_afterwards:  # By a generation without steps.
            self._sharing.agreed = None
            again = Generation(self._sharing, self._models, follows=True)
            again.epochs_of_history = self.epochs_of_history
            again._state_before = self._state_before
            again.start()
            if again.ended:  # All others are through with it.
                again.install_end()
                self.history = self.history or again.history
                return
            # One tells it, not always the chief: that may be who comes after the end.
            if self._sharing.environment.rank == min(self.endings.present):
                again.history = self.history
            again.finish(ending=Ending(failure=failure))
            again.report()
            self.history = self.history or again.history
            if not failure:
                raise_if_failed(again.endings)
        self._note_agreed()

    def _note_agreed(self) -> None:
        """The weights as they are now are equal on all workers."""
        # The chief's assignments are everybody's, so nobody asks it what it has assigned.
        if self._sharing.worker is not None and not self._sharing.environment.is_chief:
            self._sharing.agreed = assigned.fingerprint(self._models)

    def _warn_of_lost_assignments(self, own: dict[int, int] | None) -> None:
        """`own` is this worker's fingerprint before it took over the chief's values."""
        agreed = self._sharing.agreed
        if own is None or agreed is None or own.keys() != agreed.keys():
            return  # Other models than before.
        if own not in (agreed, assigned.fingerprint(self._models)):
            self.warn_once(
                "weights that were assigned on this worker since the last training differ from the "
                "chief's, which all go on from: they are lost. Assign on worker 0, or all alike"
            )

    def _forget_residuals(self) -> None:
        """Of what was assigned since the last result: they belong to the values before."""
        sharing = self._sharing
        results, sharing.results = sharing.results, None
        if results is None or not isinstance(sharing.step, SharedStep):
            return
        assigned.forget_residuals(sharing.step, sharing.space, results, sharing.environment)

    def average_epoch(
        self, stop: bool, figures: npt.NDArray[np.float64]
    ) -> tuple[bool, npt.NDArray[np.float64]]:
        """Averages non-trainable state and metrics over the workers, in place.

        What local steps have changed is shared before.

        Args:
            stop: the chief ends the training here.
            figures: float64 [n], as many on all workers.

        Returns:
            Whether the chief has ended it, and the workers' mean of `figures`.
        """
        self._sharing.step.share_rest()
        if self._sharing.worker is None:
            return stop, figures
        variables = averaged_state(self._models, self._sharing.space) + metric_sums(self._models)
        own = np.concatenate([read(variables), figures, [float(stop)]])
        averaged, workers = self.average(_EPOCH_KEY, own)
        mean, figures, stops = np.split(averaged, [-1 - figures.size, -1])
        assign_mean(self._models, variables, mean, workers)
        return bool(stops[0] > 0), figures

    def agree_to_stop(self, stop: bool) -> bool:
        """Whether the chief ends the training, by `stop` on its side; others' `stop` is ignored."""
        if self._sharing.worker is None:
            return stop
        chief = self._sharing.environment.is_chief
        if self._sharing.epochs_meet:
            return bool(self.average(_STOP_KEY, np.asarray([float(stop and chief)]))[0][0] > 0)
        return stop if chief else self.stop_requested()

    def share_learning_rates(self, follows: bool) -> None:
        """See `learning_rates.share`; `follows` = this worker takes those of the chief."""
        sharing = self._sharing
        if sharing.worker is not None:
            average = functools.partial(self.average, _RATES_KEY)
            is_chief = sharing.environment.is_chief
            learning_rates.share(self._models, average, is_chief=is_chief, follows=follows)

    def stop_requested(self) -> bool:
        """Whether the chief, or a worker that failed or met a NaN, has ended the training."""
        worker = self._sharing.worker
        return worker is not None and bool(worker.status()["stop_requested"])

    def finish(self, stop: bool = False, ending: Ending = _WELL) -> TrainingReport:
        """Brings all workers to the same bits; `report` then waits until all have come so far.

        Where updates are shared, what has not reached the threshold stays in the residual and
        leaves in the next generation: sent at once, so many steps' worth of noise would undo much
        of the training.

        Args:
            stop: this worker ends the training of all before its last epoch.
            ending: what it says of that; all learn by `endings` what all have said. It `follows`
                also where a worker has itself assigned what no optimizer trains.

        Returns:
            What the training has done; the largest difference is so far this replica's own.
        """
        sharing = self._sharing
        sharing.step.finish()
        if sharing.worker is not None:
            finish_with_all(sharing, stop, ending.failure)
            sharing.step.apply(sharing.space.participants)
            self._take_result(sharing.worker, ending)
            sharing.step.ended()
        project(self._models, sharing.space)
        if sharing.worker is not None and isinstance(sharing.step, SharedStep):
            sent = filter(sharing.space.is_sent, sharing.space.participants)
            sharing.results = {entry.offset: assigned.hash_of(entry) for entry in sent}
        self._report = self.describe()
        return self._report

    def report(self, failure: str = "") -> TrainingReport:
        """After `finish`: what the training has done, once every worker has asked for it.

        So a worker that asks when its callbacks have returned waits for those of all others.

        Args:
            failure: how `fit` has failed on this worker since `finish`; "" = it has not.
        """
        assert self._report is not None
        worker = self._sharing.worker
        if worker is None:
            return self._report
        difference, found = self._installed
        worst = verify_with_all(self._sharing, _FAILED if failure else difference, found, failure)
        self.failed_afterwards = worst >= _FAILED
        return dataclasses.replace(
            self._report,
            max_replica_difference=difference if self.failed_afterwards else worst,
            network=worker.counters(),
            lost_workers=tuple(self.lost.words()),
        )

    def describe(self) -> TrainingReport:
        """What this worker has done in it; nothing, where the others had ended it already."""
        sharing = self._sharing
        sent, received = (
            now - before for now, before in zip(self._wire_bytes(), self._bytes_before, strict=True)
        )
        common = TrainingReport(
            rank=sharing.environment.rank,
            workers=sharing.environment.size,
            parameters=sum(entry.size for entry in sharing.space.trained),
            steps=sharing.step.stepped,
            bytes_sent=sent,
            bytes_received=received,
            max_replica_difference=self._installed[0],
            seconds=time.monotonic() - self._started_at,
            network=None if sharing.worker is None else sharing.worker.counters(),
            lost_workers=tuple(self.lost.words()),
        )
        return describe(sharing.step, common)

    def _take_result(self, worker: TrainingWorker, ending: Ending) -> None:
        """Installs the master's parameters and the averaged state."""
        space = self._sharing.space
        averaged, moving = averaged_state(self._models, space), moving_averages(self._models)
        own = [
            entry
            for entry in left_to_the_program(self._models, self._sharing.space)
            if assigned.hash_of(entry) != self._start_hashes.get(id(entry.variable))
        ]
        # Another master could not tell who has the result: where one may come, nobody waits for
        # callbacks in between, but before a generation without steps. That has the history, too,
        # which is whole only after the callbacks: for those who may come in a lost one's place.
        here = self._sharing.environment
        epochs = self.epochs_of_history
        may_come = epochs > 0 and bool(here.max_failures or self.lost.words())
        follows = not self._follows and (ending.follows or bool(own) or worker.outlives or may_come)
        words = dataclasses.replace(ending, follows=follows).to_numbers(here.rank, here.size)
        parts = read(averaged), standing_of(self._models), read(moving), words
        own_state = np.concatenate(parts)
        if self._follows and epochs:
            own_state = np.append(own_state, final_history.to_numbers(self.history, epochs))
        size = own_state.size
        own_values = space.read()
        for place, start in self._averaged_at_start:  # As the master's parameters have it.
            own_values[place] = start
        state, parameters = worker.result(own_state, own_values[: self.began.layout_size])
        if self._follows and epochs:
            size -= final_history.length(epochs)
            self.history = self.history or final_history.of(state[size:])
        ends = np.cumsum([part.size for part in parts])
        self._state_before, _, moved, said = np.split(state[:size], ends[:3])
        self.endings = Endings.of(said, here.size)
        # Where the master has the start, no other worker has trained it either: it stays.
        kept = {
            entry.offset
            for entry in own
            if array_hash(parameters[entry.place]) == self._start_hashes.get(id(entry.variable))
        }
        installing = [entry for entry in space.participants if entry.offset not in kept]
        replica = installing if self._sharing.step.is_replica else []
        difference = assigned.largest_difference(replica, parameters)
        space.assign(parameters, installing)
        assign(averaged, self._state_before)
        assign(moving, moved)
        for entry in installing:
            parameters[entry.place] = entry.variable.numpy().ravel()
        self._installed = difference, array_hash(parameters)

    def average(self, key: int, values: npt.NDArray[np.float64]) -> learning_rates.Averaged:
        """The mean of what all who have a state give under `key`, and how many they are."""
        sharing = self._sharing
        assert sharing.worker is not None
        averaged, workers = sharing.worker.average(key, values)
        if sharing.sequenced:
            # This worker took no part in the STEPs that the others made while it waited.
            sharing.step.apply(sharing.space.participants)
        return averaged, workers

    def _wire_bytes(self) -> tuple[int, int]:
        if self._sharing.worker is None:
            return 0, 0
        counters = self._sharing.worker.status()["counters"]
        return int(counters["bytes_sent"]), int(counters["bytes_received"])

    def tell(self) -> None:
        """Once it is over: logs what it has to say."""
        self.warn()
        announce(self._sharing.last_report)

    def warn(self) -> None:
        """Logs what the user should know of the steps so far, each warning once."""
        step = self._sharing.step
        if isinstance(step, SharedStep) and not self.endings.not_finite:
            self.warn_once.of_steps(step, shares=self._sharing.worker is not None)
