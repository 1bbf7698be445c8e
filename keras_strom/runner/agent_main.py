"""What `keras-strom run --hosts` starts on another machine, through ssh.

    python -m keras_strom.runner.agent_main

It serves the launcher at the other end of its standard input and output (`keras_strom.runner.wire`)
until the job is over or the launcher is gone.
"""

from __future__ import annotations

import contextlib
import sys

from keras_strom import errors
from keras_strom.job import environment
from keras_strom.runner.agent import Agent, hello
from keras_strom.runner.wire import standard_pipes


def main() -> int:
    """Serves one launcher; the return value is the exit code."""
    wire = standard_pipes()
    with contextlib.suppress(ConnectionError, errors.StromError):  # The launcher knows, or is gone.
        wire.send(hello(client=environment.ssh_client()))
        Agent(wire).serve()
    wire.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
