"""A worker's side of checkpoints: what it saves between two batches, and how a `fit` goes on.

What is saved beside the weights is what a worker gives to one that joins late (`takeover`), and its
residuals. All workers begin with the parameters of one, the lowest rank's, as at any start; the
rest each takes from its own part. Where the job has another number of workers than before, they
share the place of that one, each in its own part of the data, and begin without residuals.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_strom import errors
from keras_strom.job.checkpoint_plan import CheckpointPlan
from keras_strom.recovery.checkpoint_files import Part, leave_part, parts_of, read_part
from keras_strom.recovery.donation import Donation
from keras_strom.recovery.resume import DataPosition, Fit, Start
from keras_strom.recovery.takeover import install_state, state_arrays
from keras_strom.sharing.optimizers import average_from_here
from keras_strom.sharing.participant import Participant
from keras_strom.sharing.progress import Progress, begin_fit_at

_logger = logging.getLogger("keras_strom")

# Of a part's arrays, those that a donation does not have.
_PARAMETERS = "parameters"
_RESIDUALS = "residuals"
_SIZES = "sizes"


class Checkpointing:
    """Saves and restores one worker.

    Args:
        plan: the runner's.
    """

    def __init__(self, plan: CheckpointPlan) -> None:
        self._plan = plan
        self._last: int | None = None
        self._writer: threading.Thread | None = None
        self._has_written = False
        self._failure: errors.StromError | None = None
        self._restored: _Restored | None = None

    def save_if_due(self, participant: Participant, fit: Fit, place: DataPosition) -> None:
        """Between two batches: copies this worker's state, and has a thread write it.

        The first is due an interval after training has begun. While the last one is still being
        written nothing is copied.

        Args:
            participant: this worker.
            fit: the one that runs.
            place: the batch that this worker trains next.

        Raises:
            StoreUnavailable: the first part could not be written.
        """
        number = self._plan.due(time.monotonic())
        if self._last is None:
            self._last = number
        if number <= self._last:
            return
        if self._failure is not None:
            raise self._failure
        if self._writer is not None and self._writer.is_alive():
            return
        if participant.step.is_between_messages:
            return  # A part would hold changes that no other worker has; within H steps none are.
        participant.step.show_shared()
        self._last = number
        part = _part_of(participant, fit, place)
        self._writer = threading.Thread(
            target=self._write, args=(number, part), name="strom-checkpoint", daemon=True
        )
        self._writer.start()

    def prepare(self, participant: Participant, fit: Fit, epochs: int) -> None:
        """Before a `fit` starts: the chief's values are those of the checkpoint.

        A `fit` that was over by then trains no epoch; its model has the checkpoint's parameters.

        Args:
            participant: this worker.
            fit: has not started.
            epochs: of this `fit`.

        Raises:
            Refused: the checkpoint is of another model.
        """
        if self._plan.restore is None:
            return
        self._restored = self._restored or _Restored(self._plan.restore, participant)
        is_chief = participant.environment.is_chief
        if fit.number < self._restored.fit:
            begin_fit_at(fit.model, epochs)  # Keras then trains no epoch.
            if is_chief:
                self._restored.install_parameters(participant)
        elif fit.number == self._restored.fit:
            self._restored.begin_after(participant)
            if is_chief:
                self._restored.install_start(participant, fit.model)

    def restore(
        self, participant: Participant, fit: Fit, start: Start, epochs: int
    ) -> DataPosition | None:
        """After a start: installs this worker's state.

        Args:
            participant: this worker.
            fit: has started together with all others.
            start: where all have.
            epochs: of this `fit`.

        Returns:
            The batch that this worker trains first; None = this `fit` goes on from no checkpoint.

        Raises:
            Refused: the checkpoint is of another model or optimizer.
        """
        if self._restored is None or fit.number > self._restored.fit:
            return None
        self._restored.check_layout(participant)
        if participant.environment.is_chief:
            self._restored.tell(fit.number, epochs)
        if fit.number < self._restored.fit:
            average_from_here(fit.model)
            return None
        scripts = Progress(fit.model).learning_rates()
        place = self._restored.install(participant, fit, start)
        found = Progress(fit.model).learning_rates()
        if participant.environment.is_chief and found != scripts:
            _logger.warning(
                "the learning rate goes on as the checkpoint has it (%s), not as the script gives "
                "it (%s), until a callback sets it",
                ", ".join(f"{rate:.4g}" for rate in found),
                ", ".join(f"{rate:.4g}" for rate in scripts),
            )
        return place

    def _write(self, number: int, part: Part) -> None:
        try:
            leave_part(self._plan, number, part)
            self._has_written = True
        except errors.StoreUnavailable as error:
            if self._has_written:  # A disk that is full for a while must not end the training.
                _logger.warning("%s", error)
            else:
                self._failure = error  # Raised when the next part is due.


class _Restored:
    """The parts of a checkpoint that one worker of the new job needs."""

    def __init__(self, checkpoint: str, participant: Participant) -> None:
        here = participant.environment
        paths = parts_of(checkpoint)
        ranks = list(paths)
        self.name = checkpoint
        self._base = read_part(paths[ranks[0]])
        self._same_workers = self._base.workers == here.size
        # Without a part of its own a worker takes one of the others'.
        rank = here.rank if here.rank in paths else ranks[here.rank % len(ranks)]
        self._part = read_part(paths[rank])
        self._is_own = self._same_workers and rank == here.rank
        if participant.step.has_one_state:  # That of one worker, for parts are of different steps.
            self._part, self._is_own = self._base, False
        self.fit = self._base.fit

    def begin_after(self, participant: Participant) -> None:
        """On every worker, before the start: the joint model's schedules go on."""
        participant.step.begin_after(self._base.cycles)

    def tell(self, fit: int, epochs: int) -> None:
        """Logs where the job goes on, or that this `fit` was over."""
        if fit < self.fit:
            _logger.warning(
                "fit %d was over when the checkpoint %s was made: it trains no epoch, so it has no "
                "history, and its model has the checkpoint's parameters",
                fit,
                self.name,
            )
            return
        epoch = self._base.place.epoch
        where = f"in epoch {epoch + 1} of {epochs}" if epoch < epochs else "behind its last epoch"
        _logger.warning(
            "the job goes on from the checkpoint %s: fit %d %s; remove the folder to begin anew",
            self.name,
            fit,
            where,
        )

    def check_layout(self, participant: Participant) -> None:
        """Refuses another model, by what has a place in the flat space so far.

        Once a `fit` has started its own values have one, behind those of all its model.
        """
        sizes = [entry.size for entry in participant.space.entries]
        saved = self._base.arrays[_SIZES].tolist()
        if saved[: len(sizes)] != sizes:
            raise errors.Refused(
                f"the checkpoint {self.name} is of another model: its variables have the sizes "
                f"{saved}, this model's {sizes}; train the model that it was made of, or remove "
                "the folder to begin anew"
            )

    def install_parameters(self, participant: Participant) -> None:
        """On the chief, before a start: its variables have the checkpoint's values."""
        self.check_layout(participant)
        participant.space.assign(self._base.arrays[_PARAMETERS], participant.space.entries)

    def install_start(self, participant: Participant, model: Any) -> None:
        """On the chief, before the start: what every worker takes over from it."""
        self.install_parameters(participant)
        begin_fit_at(model, self._base.place.epoch)
        # All count from the first epoch's beginning.
        participant.step.count_from(
            self._base.steps - self._base.place.batch // Progress(model).batches_a_step()
        )

    def install(self, participant: Participant, fit: Fit, start: Start) -> DataPosition:
        """On every worker, after the start."""
        place = self._place(fit.per_epoch)
        batches = (place.epoch - start.first_epoch) * (fit.per_epoch or 0) + place.batch
        steps = start.shared_steps + batches // Progress(fit.model).batches_a_step()
        participant.step.count_from(max(0, steps))
        arrays = dict(self._part.arrays)
        residuals = arrays.pop(_RESIDUALS)
        for name in (_PARAMETERS, _SIZES):
            del arrays[name]
        try:
            install_state(participant, fit.model, Donation(place, self._part.threshold, arrays))
        except errors.Refused as error:
            raise errors.Refused(
                f"the checkpoint {self.name} does not fit: {error}. If it was made with other "
                "options of the strategy, or with another optimizer, go on with those, or remove "
                "the folder to begin anew"
            ) from None
        own = residuals[: participant.space.size]
        if not (self._is_own and participant.step.restore_residuals(own)) and residuals.size:
            _logger.warning(
                "worker %d: it goes on without the residuals of worker %d of the %d of the "
                "checkpoint: a sum of %.3g of |residual| is not sent",
                participant.environment.rank,
                self._part.rank,
                self._part.workers,
                float(np.abs(residuals).sum(dtype=np.float64)),
            )
        _logger.info(
            "worker %d goes on from the checkpoint %s", participant.environment.rank, self.name
        )
        return place

    def _place(self, per_epoch: int | None) -> DataPosition:
        part = self._part if self._is_own else self._base
        if not part.per_epoch or not per_epoch:
            return DataPosition(part.place.epoch, 0)
        batch = part.place.batch
        if part.per_epoch != per_epoch:  # The same share of the epoch.
            batch = round(batch * per_epoch / part.per_epoch)
        epochs, batch = divmod(batch, per_epoch)
        return DataPosition(part.place.epoch + epochs, batch)


def _part_of(participant: Participant, fit: Fit, place: DataPosition) -> Part:
    space = participant.space
    own: Mapping[str, Any] = {
        _PARAMETERS: space.read(),
        _RESIDUALS: participant.step.residuals(space.size),
        _SIZES: np.asarray([entry.size for entry in space.entries], np.int64),
    }
    state = {name: array.copy() for name, array in state_arrays(participant, fit.model).items()}
    return Part(
        rank=participant.environment.rank,
        workers=participant.environment.size,
        fit=fit.number,
        place=place,
        per_epoch=fit.per_epoch,
        steps=participant.step.steps,
        threshold=participant.step.threshold_state,
        arrays={**state, **own},
        cycles=participant.step.cycles,
    )
