"""The first thing that runs in a worker's process; `keras_strom.runner.process` starts it.

    python -m keras_strom.runner.worker_main PARENT_PID script PATH [ARGUMENT ...]
    python -m keras_strom.runner.worker_main PARENT_PID function PAYLOAD_FD REPORT_FD

It ties the process to the life of its parent, then becomes the script, or calls the pickled
function and leaves its result, or its traceback, in the report.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Sequence

# The first byte of a report says what follows: a pickled result or a traceback's text.
RESULT = b"R"
TRACEBACK = b"T"

_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> int:
    """Runs one worker; the return value is the exit code."""
    parent, kind, *rest = arguments
    _die_with(int(parent))
    if kind == "script":
        os.execv(sys.executable, [sys.executable, *rest])
    payload_fd, report_fd = map(int, rest)
    return _call(payload_fd, report_fd)


def _die_with(parent: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    if os.getppid() != parent:  # It ended before the request stood.
        os.kill(os.getpid(), signal.SIGKILL)


def _call(payload_fd: int, report_fd: int) -> int:
    os.set_inheritable(report_fd, False)
    with open(payload_fd, "rb") as payload, open(report_fd, "wb") as report:
        try:
            import cloudpickle

            function, args, kwargs = pickle.load(payload)
            result = cloudpickle.dumps(function(*args, **kwargs))
        except Exception as error:
            # As for a script; what Python itself calls there is not called for a function.
            if callbacks := sys.modules.get("keras_strom.strategy.callbacks"):
                callbacks.explain_missing_file(error)
            # This frame is of no interest; everything below it is the user's.
            inner = error.__traceback__.tb_next if error.__traceback__ else None
            text = "".join(traceback.format_exception(type(error), error, inner or None))
            report.write(TRACEBACK + text.encode("utf-8", "backslashreplace"))
            return 1
        report.write(RESULT + result)
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
