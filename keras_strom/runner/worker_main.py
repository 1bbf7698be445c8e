"""The first thing that runs in a worker's process; `keras_strom.runner.process` starts it.

    python -m keras_strom.runner.worker_main PARENT_PID script PATH [ARGUMENT ...]
    python -m keras_strom.runner.worker_main PARENT_PID function PAYLOAD_FD REPORT_FD

It ties the process to the life of its parent, then becomes the script, or calls the pickled
function and leaves its result, or its traceback, in the report.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import os
import pickle
import signal
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any

# The first byte of a report says what follows: a pickled result or a traceback's text.
RESULT = b"R"
TRACEBACK = b"T"

_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> int:
    """Runs one worker; the return value is the exit code."""
    die_with(int(arguments[0]))
    return work(arguments[1:])


def work(arguments: Sequence[str], *, forked: bool = False) -> int:
    """Does what the arguments after the parent's id say; the return value is the exit code.

    Args:
        arguments: of this module, without the first.
        forked: whether this process has imported what scripts need, so that no other interpreter
            should begin anew.
    """
    kind, *rest = arguments
    if kind == "script":
        if forked:
            return _run_script(*rest)
        os.execv(sys.executable, [sys.executable, *rest])
    payload_fd, report_fd = map(int, rest)
    return _call(payload_fd, report_fd)


def die_with(parent: int) -> None:
    """Has the kernel kill this process when `parent`, which has started it, ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    if os.getppid() != parent:  # It ended before the request stood.
        os.kill(os.getpid(), signal.SIGKILL)


def _run_script(path: str, *arguments: str) -> int:
    """As `python path arguments...` does, in this process."""
    script = types.ModuleType("__main__")
    script.__dict__.update(__file__=path, __builtins__=builtins)
    sys.modules["__main__"] = script
    sys.argv = [path, *arguments]
    if not getattr(sys.flags, "safe_path", False):  # From Python 3.11 on; -P, PYTHONSAFEPATH.
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    try:
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        exec(code, script.__dict__)
    except Exception as error:
        # This frame is of no interest; everything below it is the script's.
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        _tell_the_strategy(error)
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _tell_the_strategy(error: Exception) -> None:
    """Has a strategy, where there is one, say to the other workers why this one ends."""
    if failure := sys.modules.get("keras_strom.strategy.fit_failure"):
        failure.script_has_failed(error)


def _call(payload_fd: int, report_fd: int) -> int:
    os.set_inheritable(report_fd, False)
    with open(payload_fd, "rb") as payload, open(report_fd, "wb") as report:
        try:
            import cloudpickle

            gc.disable()  # As in a fork server: most of what comes next are imports.
            function, args, kwargs = pickle.load(payload)
            gc.enable()
            result = _pickled(function(*args, **kwargs), cloudpickle.dumps)
        except Exception as error:
            # As for a script; what Python itself calls there is not called for a function.
            if callbacks := sys.modules.get("keras_strom.strategy.callbacks"):
                callbacks.explain_missing_file(error)
            _tell_the_strategy(error)
            # This frame is of no interest; everything below it is the user's.
            inner = error.__traceback__.tb_next if error.__traceback__ else None
            text = "".join(traceback.format_exception(type(error), error, inner or None))
            report.write(TRACEBACK + text.encode("utf-8", "backslashreplace"))
            return 1
        report.write(RESULT + result)
        return 0


def _pickled(returned: Any, dumps: Callable[[Any], bytes]) -> bytes:
    """What the function has returned, for whoever runs it.

    Raises:
        TypeError: it cannot be pickled.
    """
    try:
        return dumps(returned)
    except Exception as error:
        raise TypeError(
            f"what the function has returned, of type {type(returned).__name__}, cannot be pickled "
            f"({error}): return numbers, arrays, or a model without its strategy"
        ) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
