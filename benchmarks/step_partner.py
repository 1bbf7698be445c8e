"""The other worker of a job of two, for benchmarks that look at one: it trains one batch a `fit`.

So the one that is measured trains in a job as any other, with the master's exchange beside it, and
has the machine nearly to itself. The partner's process is the master's, too.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import pathlib
import signal
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_strom.job.environment import ClusterEnvironment
from keras_strom.relay.training_relay import TrainingMaster

#: Makes the compiled model in the scope of a strategy of its own.
Build = Callable[[], Any]


def join(build: Build, x: np.ndarray, y: np.ndarray, batch: int) -> None:
    """Gives this process a place in a job of two, whose other worker is a new process.

    To be called before the strategy is made; the partner ends with this process.

    Args:
        build: what the partner calls, a function of a module.
        x: its inputs, of which it takes a batch.
        y: its labels.
        batch: rows.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    # Rows are divided among two: each gets its batch.
    arguments = (theirs, build, x[: 2 * batch], y[: 2 * batch], batch)
    context.Process(target=_serve, args=arguments, daemon=True).start()
    os.environ.update(ours.recv())


def _serve(
    pipe: multiprocessing.connection.Connection,
    build: Build,
    x: np.ndarray,
    y: np.ndarray,
    batch: int,
) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        TrainingMaster(workers=2, host="127.0.0.1") as master,
    ):
        credentials = pathlib.Path(folder) / "credentials"
        credentials.touch(mode=0o600)
        credentials.write_text(master.credentials.to_json(), encoding="ascii")
        places = [
            ClusterEnvironment(
                rank=rank, size=2, master=master.address, credentials_path=os.fspath(credentials)
            ).to_environ()
            for rank in range(2)
        ]
        os.environ.update(places[1])
        # multiprocessing ends it by SIGTERM, which would have it drain until it is killed.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        pipe.send(places[0])
        model = build()
        while True:  # As often as the other; the process ends with that one.
            model.fit(x, y, batch_size=batch, shuffle=False, verbose=0)
