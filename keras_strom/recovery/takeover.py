"""What workers of a `fit` that runs give others: one that joins, or a master that has come anew.

The master has given it the parameters as they are. Another worker gives the rest (`donation`).
Where in its data it goes on, the last step of its predecessor tells that the master has accepted;
one that has none, as the job has only now found room for it, goes on where the other worker is.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from keras_strom import errors
from keras_strom.recovery.donation import Donation, donated_variables, install, unbuilt_optimizers
from keras_strom.recovery.resume import Place, place_after
from keras_strom.sharing.model_state import left_to_the_program, untrained_state
from keras_strom.sharing.progress import Progress

if TYPE_CHECKING:
    from keras_strom.strategy.generation import Generation, Sharing

_logger = logging.getLogger("keras_strom")

# What the names of donated arrays begin with that have a place in the flat space: its offset.
_SHARED = "shared/"


def take_over(sharing: Sharing, generation: Generation, model: Any, per_epoch: int | None) -> Place:
    """After a late start: installs the state of another worker.

    Args:
        sharing: the strategy's.
        generation: has started, late.
        model: the one that `fit` trains.
        per_epoch: batches of an epoch of this worker's data; None = not known.

    Returns:
        Where this worker goes on: where its predecessor was, as far as that can be told, or where
        the others are.

    Raises:
        Refused: the other worker's state is not that of this model.
    """
    assert sharing.worker is not None
    accepted = sharing.worker.start_info.resume_iteration + 1
    steps = max(accepted, generation.shared_steps)
    sharing.step.count_from(steps)
    place = place_after(
        (steps - generation.shared_steps) * Progress(model).batches_a_step(),
        first_epoch=generation.first_epoch,
        per_epoch=per_epoch,
    )
    donated = _wait_for_donation(sharing)
    if donated is not None:
        install_state(sharing, model, donated)
        if accepted == 0 and per_epoch:
            return _go_with(donated.place, sharing, generation, model, per_epoch)
        place = place or Place(donated.place.epoch, 0)
    return place or Place(generation.first_epoch, 0)


def _go_with(
    other: Place, sharing: Sharing, generation: Generation, model: Any, per_epoch: int
) -> Place:
    """The place of a worker without predecessor: the other's, and the count of steps there."""
    place = other if other.batch < per_epoch else Place(other.epoch + 1, 0)
    batches = (place.epoch - generation.first_epoch) * per_epoch + place.batch
    sharing.step.count_from(generation.shared_steps + batches // Progress(model).batches_a_step())
    return place


def donate_if_asked(sharing: Sharing, model: Any, place: Place) -> None:
    """Between two batches: gives a worker that has joined late this one's state.

    Args:
        sharing: the strategy's.
        model: the one that `fit` trains.
        place: the batch that this worker trains next.
    """
    if sharing.worker is None or not sharing.worker.donation_wanted():
        return
    donation = Donation(place, sharing.step.threshold_state, state_arrays(sharing, model))
    sharing.worker.donate(donation.to_bytes())


def hand_over_if_asked(sharing: Sharing) -> None:
    """Between two batches: gives a master that has come for a lost one this worker's parameters.

    Args:
        sharing: the strategy's.
    """
    if sharing.worker is None or not sharing.worker.replica_wanted():
        return
    assert sharing.generation is not None
    if sharing.step.is_between_messages:
        sharing.step.share_rest(sharing.space)
    # What this worker has not sent is not part of the others' values, and comes to them later.
    sharing.step.show_shared(sharing.space)
    sharing.worker.hand_over(sharing.space.read()[: sharing.generation.layout_size])


def state_arrays(sharing: Sharing, model: Any) -> dict[str, npt.NDArray[Any]]:
    """What a worker holds beside its parameters, by the names of `donated_variables`."""
    space = sharing.space
    variables = donated_variables(model, untrained_state([model], space))
    trained = space.entries_of(v.value for v in model.trainable_variables)
    # Before the first step nobody knows yet which ones are left to the program.
    if any(map(space.is_member, trained)):
        for entry in left_to_the_program([model], space):
            variables[f"{_SHARED}{entry.offset}"] = entry.variable
    return {name: variable.numpy() for name, variable in variables.items()}


def _wait_for_donation(sharing: Sharing) -> Donation | None:
    assert sharing.worker is not None
    try:
        data = sharing.worker.take_donation(timeout=sharing.environment.join_timeout)
    except errors.DeadlinePassed:
        data = None
    if data is not None:
        return Donation.from_bytes(data)
    _logger.warning(
        "worker %d: no other worker has a state to take over: it goes on with the others' "
        "parameters, but a fresh optimizer",
        sharing.environment.rank,
    )
    return None


def install_state(sharing: Sharing, model: Any, donated: Donation) -> None:
    """Takes over what `state_arrays` gave on another worker, or earlier on this one.

    Raises:
        Refused: it is not that of this model.
    """
    if model.optimizer is not None and not model.optimizer.built:
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)
    arrays = dict(donated.arrays)
    variables = donated_variables(model, untrained_state([model], sharing.space))
    if fresh := tuple(unbuilt_optimizers(model)):
        _logger.warning(
            "worker %d: an optimizer that is built in its first step starts afresh",
            sharing.environment.rank,
        )
        arrays = {name: array for name, array in arrays.items() if not name.startswith(fresh)}
        variables = {name: v for name, v in variables.items() if not name.startswith(fresh)}
    shared = {f"{_SHARED}{entry.offset}": entry.variable for entry in sharing.space.entries}
    variables.update({name: shared[name] for name in arrays if name in shared})
    install(variables, arrays)
    sharing.step.set_threshold_state(donated.threshold)
