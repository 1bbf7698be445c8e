"""The ports that workers of this machine would have, looked at before any of them starts."""

from __future__ import annotations

import socket

from keras_strom import errors
from keras_strom.job import environment
from keras_strom.job.network import NetworkConfig, resolve_address


def check_ports(network: NetworkConfig, workers: int, host: str | None = None) -> None:
    """Refuses ports of workers that are in use: they themselves would know once they have joined.

    Args:
        network: of the job, which has several workers.
        workers: how many of them this machine has.
        host: the address that they bind to; None = what `network` and KERAS_STROM_IP pick.

    Raises:
        AddressError: one is, or the mask picks no or several interfaces.
    """
    if network.port == 0:
        return
    host = host or resolve_address(network, node_address=environment.node_address())
    for rank in range(workers):
        port = network.of_worker(rank).port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind((host, port))
            except OSError as error:
                raise errors.AddressError(
                    f"UDP {host}, port {port}, which worker {rank} would have with --port "
                    f"{network.port}, cannot be used: {error.strerror}; choose another port, or 0 "
                    "for any free one"
                ) from error
