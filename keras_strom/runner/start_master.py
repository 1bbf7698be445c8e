"""Starts the master of a job, in the process of the runner or in one of its own."""

from __future__ import annotations

from keras_strom.relay.training_relay import TrainingMaster
from keras_strom.runner.master_options import Master, MasterOptions
from keras_strom.runner.master_supervisor import SupervisedMaster


def start_master(options: MasterOptions) -> Master:
    """Starts the master through which a job's workers share their updates.

    It runs on a thread of this process, or, where workers are to outlive it, in one of its own.

    Raises:
        AddressError: the port is in use, or the mask picks no or several interfaces.
    """
    if options.network.waits_for_master:
        return SupervisedMaster(options)
    return TrainingMaster(
        workers=options.workers,
        network=options.network,
        host=options.host,
        min_workers=options.min_workers,
        credentials=options.credentials,
        epoch=options.epoch,
    )
