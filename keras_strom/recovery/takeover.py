"""What workers of a `fit` that runs give others: one that joins, or a master that has come anew.

A worker that joins late has the parameters from the master. Another worker gives it the rest
(`donation`). It goes on in its data behind the last step of its predecessor that the master has
accepted; a worker without a predecessor, for which the job has only now found room, goes on where
the other worker is.

Its optimizers count as at its own place, not the other's: so a schedule of learning rates ends with
its last step. Where all workers have one state after every step (exact mode) the count is part of
that.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import Any

import numpy.typing as npt

from keras_strom import errors
from keras_strom.recovery.donation import (
    Donation,
    donated_variables,
    install,
    optimizers_of,
    unbuilt_optimizers,
)
from keras_strom.recovery.resume import DataPosition, Fit, Start, batches_before, place_after
from keras_strom.sharing.constraints import Projection
from keras_strom.sharing.model_state import left_to_the_program, untrained_state
from keras_strom.sharing.participant import Participant
from keras_strom.sharing.progress import Progress, count_otherwise

_logger = logging.getLogger("keras_strom")

# What the names of donated arrays begin with that have a place in the flat space: its offset.
_SHARED = "shared/"

# Of the model's optimizers, by the places of their parts.
_RATES = "learning rates"


def take_over(participant: Participant, fit: Fit, start: Start) -> DataPosition:
    """After a late start: installs the state of another worker.

    Args:
        participant: this worker.
        fit: has started, late.
        start: where the others had begun it.

    Returns:
        Where this worker goes on: where its predecessor was, as far as that can be told, or where
        the others are.

    Raises:
        Refused: the other worker's state is not that of this model.
    """
    assert participant.worker is not None
    accepted = participant.worker.start_info.resume_iteration + 1
    steps = max(accepted, start.shared_steps)
    participant.step.count_from(steps)
    place = place_after(
        (steps - start.shared_steps) * Progress(fit.model).batches_a_step(),
        first_epoch=start.first_epoch,
        per_epoch=fit.per_epoch,
    )
    donated = _wait_for_donation(participant)
    if donated is None:
        return place or DataPosition(start.first_epoch, 0)
    install_state(participant, fit.model, donated)
    if accepted == 0 and fit.per_epoch:
        place = _go_with(donated.place, participant, fit, start)
    place = place or DataPosition(donated.place.epoch, 0)
    if not participant.step.has_one_state:
        _count_at(place, donated, fit, start)
    return place


def _count_at(place: DataPosition, donated: Donation, fit: Fit, start: Start) -> None:
    """Has optimizers that were the donor's count as at this worker's own place.

    Their moments stay the donor's. Each of the two has its own number of batches in an epoch. Who
    does not know it is taken to have the other's; where neither does, the count can be told within
    the donor's epoch only.
    """
    own, donors = fit.per_epoch or donated.per_epoch, donated.per_epoch or fit.per_epoch
    here = batches_before(place, first_epoch=start.first_epoch, per_epoch=own)
    there = batches_before(donated.place, first_epoch=start.first_epoch, per_epoch=donors)
    if here is None or there is None:
        if place.epoch != donated.place.epoch:
            return
        here, there = place.batch, donated.place.batch
    for optimizer in optimizers_of(fit.model):
        if getattr(optimizer, "built", True):  # Else it has nothing of the donor.
            count_otherwise(optimizer, here - there)


def _go_with(other: DataPosition, participant: Participant, fit: Fit, start: Start) -> DataPosition:
    """The place of a worker without predecessor: the other's, and the count of steps there."""
    assert fit.per_epoch is not None
    place = other if other.batch < fit.per_epoch else DataPosition(other.epoch + 1, 0)
    batches = (place.epoch - start.first_epoch) * fit.per_epoch + place.batch
    steps = batches // Progress(fit.model).batches_a_step()
    participant.step.count_from(start.shared_steps + steps)
    return place


def donate_if_asked(
    participant: Participant, fit: Fit, place: DataPosition, projection: Projection
) -> bool:
    """Between two batches: gives a worker that has joined late this one's state.

    Args:
        participant: this worker.
        fit: the one that runs.
        place: the batch that this worker trains next.
        projection: of its model, which may show other values than those that are trained on.

    Returns:
        Whether somebody has asked.
    """
    if participant.worker is None or not participant.worker.donation_wanted():
        return False
    with projection.lifted():
        arrays = state_arrays(participant, fit.model)
        if participant.step.has_one_state:  # The master has no parameters of this step.
            trained = (variable.value for variable in fit.model.trainable_variables)
            for entry in participant.space.entries_of(trained):
                arrays[f"{_SHARED}{entry.offset}"] = entry.variable.numpy()
    donation = Donation(place, participant.step.threshold_state, arrays, fit.per_epoch)
    participant.worker.donate(donation.to_bytes())
    return True


def hand_over_if_asked(
    participant: Participant, layout_size: int, between_batches: Projection | None = None
) -> None:
    """Gives a master that has come for a lost one this worker's parameters.

    Args:
        participant: this worker.
        layout_size: elements of the flat space when the training began.
        between_batches: between two batches of a `fit`, its projection; None = between two
            trainings, when all workers have the same values anyway.
    """
    if participant.worker is None or not participant.worker.replica_wanted():
        return
    between = between_batches is not None
    with nullcontext() if between_batches is None else between_batches.lifted():
        values = participant.step.values_to_hand_over(between_batches=between)
        participant.worker.hand_over(values[:layout_size])


def state_arrays(participant: Participant, model: Any) -> dict[str, npt.NDArray[Any]]:
    """What a worker holds beside its parameters, by the names of `donated_variables`."""
    space = participant.space
    variables = donated_variables(model, untrained_state([model], space))
    trained = space.entries_of(v.value for v in model.trainable_variables)
    # Before the first step nobody knows yet which ones are left to the program.
    if any(map(space.is_sent, trained)):
        for entry in left_to_the_program([model], space):
            variables[f"{_SHARED}{entry.offset}"] = entry.variable
    arrays = {name: variable.numpy() for name, variable in variables.items()}
    rates = participant.step.rate_history
    return arrays if rates is None else {**arrays, _RATES: rates.of(optimizers_of(model))}


def _wait_for_donation(participant: Participant) -> Donation | None:
    assert participant.worker is not None
    try:
        data = participant.worker.take_donation(timeout=participant.environment.join_timeout)
    except errors.DeadlinePassed:
        if participant.step.has_one_state:  # The others may train on, and not as this one would.
            raise
        data = None
    if data is not None:
        return Donation.from_bytes(data)
    _logger.warning(
        "worker %d: no other worker has a state to take over: it goes on with the others' "
        "parameters, but a fresh optimizer",
        participant.environment.rank,
    )
    return None


def install_state(participant: Participant, model: Any, donated: Donation) -> None:
    """Takes over what `state_arrays` gave on another worker, or earlier on this one.

    Raises:
        Refused: it is not that of this model.
    """
    if model.optimizer is not None and not model.optimizer.built:
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)
    arrays = dict(donated.arrays)
    rates = arrays.pop(_RATES, None)  # Checkpoints of earlier versions have none.
    if participant.step.rate_history is not None and rates is not None:
        participant.step.rate_history.take_over(optimizers_of(model), rates)
    variables = donated_variables(model, untrained_state([model], participant.space))
    fresh = tuple(unbuilt_optimizers(model))
    without_place = {name for name in arrays if name.startswith(fresh)} - variables.keys()
    if participant.step.has_one_state and without_place:
        raise errors.Refused(
            "an optimizer that is built in its first step has no place yet for the state that all "
            "are to have: build it before fit, optimizer.build(variables) with those that it trains"
        )
    if fresh:
        _logger.warning(
            "worker %d: an optimizer that is built in its first step starts afresh",
            participant.environment.rank,
        )
        arrays = {name: array for name, array in arrays.items() if not name.startswith(fresh)}
        variables = {name: v for name, v in variables.items() if not name.startswith(fresh)}
    shared = {f"{_SHARED}{entry.offset}": entry.variable for entry in participant.space.entries}
    variables.update({name: shared[name] for name in arrays if name in shared})
    install(variables, arrays)
    participant.step.set_threshold_state(donated.threshold)
