"""What `keras-strom run --hosts` starts on another machine, through ssh.

    python -m keras_strom.runner.agent_main

It serves the launcher at the other end of its standard input and output (`keras_strom.runner.wire`)
until the job is over or the launcher is gone.
"""

from __future__ import annotations

import contextlib
import os
import sys

from keras_strom import errors
from keras_strom.job import environment
from keras_strom.runner.agent import Agent, hello
from keras_strom.runner.wire import PipeWire


def main() -> int:
    """Serves one launcher; the return value is the exit code."""
    wire = PipeWire(os.dup(0), os.dup(1))
    # What others print here, or read, is no message.
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    with contextlib.suppress(ConnectionError, errors.StromError):  # The launcher knows, or is gone.
        wire.send(hello(client=environment.ssh_client()))
        Agent(wire).serve()
    wire.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
