"""All that is looked at, in the order in which a run would need it."""

from __future__ import annotations

from collections.abc import Iterator

from keras_strom.checks import whole_number
from keras_strom.doctor import machine, network_path, software
from keras_strom.doctor.finding import Finding
from keras_strom.job.network import NetworkConfig
from keras_strom.runner.job_checkpoints import refuse_without_others


def examine(workers: int, network: NetworkConfig) -> Iterator[Finding]:
    """What a run of `workers` workers on this machine would find here.

    Args:
        workers: as many as are to run here.
        network: the run's options; `network_mask`, `port` and `checkpoint_dir` are looked at.

    Yields:
        One finding after the other; those of the network take a second or two.

    Raises:
        InvalidOption: no number of workers, a port that leaves none for some of them, or
            checkpoints of a lone worker.
    """
    whole_number("workers", workers, least=1)
    network.of_worker(workers - 1)
    refuse_without_others(network, workers)
    yield from software.findings()
    yield from machine.findings(workers, network.checkpoint_dir)
    if workers > 1:
        yield from network_path.findings(workers, network)
