"""Machines that the system's own `ssh` leads to.

`ssh` reads its user's configuration, and asks nothing: a host that wants a password, or whose key
is not known, cannot be used. What is private goes through its standard input.
"""

from __future__ import annotations

import collections
import math
import os
import random
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from keras_strom import errors
from keras_strom.runner.process import GRACE_SECONDS
from keras_strom.runner.remote_machine import RemoteMachine, check_version
from keras_strom.runner.started_process import module_command
from keras_strom.runner.wire import PipeWire

_CONNECT_SECONDS = 60.0
_END_SECONDS = GRACE_SECONDS + 5.0
_TAIL_LINES = 20
_SSH_FAILED = 255
# What ssh says where a server closes a connection at once, as one does to which many come at the
# same time (MaxStartups): a jump host, say, through which all hosts are reached. It is tried again.
_TURNED_AWAY = "exchange_identification: "
_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)
_OPTIONS = (
    *("-T", "-a", "-x"),
    *("-o", "BatchMode=yes"),
    *("-o", "ClearAllForwardings=yes"),
)
# The agent's silence says it sooner; this ends an ssh that a killed launcher has left.
_ALIVE_SECONDS = 10
_LEAST_ALIVE_COUNT = 3

# Of a host that may only be starting, or whose line is cut.
_OUT_OF_REACH = "it cannot be reached"
_NO_SERVER = "no ssh server listens there"
_CONNECTED_TO_NOTHING = "ssh has connected to nothing"

# What OpenSSH says, and what helps.
_REMEDIES = (
    (
        r"Permission denied|Too many authentication failures|No more authentication methods",
        "it does not let this user in without a password: put a key there (ssh-copy-id {host}), or "
        "name the key or user with --ssh-args '-i FILE -l USER'",
    ),
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is another than before: if that is right (it was installed anew), remove the "
        "old one (ssh-keygen -R {host}) and connect once by hand (ssh {host})",
    ),
    (
        r"Host key verification failed|No \S+ host key is known",
        "its host key is not known here: connect once by hand (ssh {host}) and accept it",
    ),
    (
        r"Could not resolve hostname",
        "there is no host of this name: correct it, or give it a HostName in ~/.ssh/config",
    ),
    (
        r"Connection refused",
        f"{_NO_SERVER}: start it, or name its port with --ssh-args '-p PORT'",
    ),
    (
        r"timed out|No route to host|Network is unreachable",
        f"{_OUT_OF_REACH}: is it running, and does its firewall let ssh through?",
    ),
    (
        r"Bad configuration option|unknown option|illegal option|usage: ssh|command-line",
        "ssh does not understand its options: correct --ssh-args or ~/.ssh/config",
    ),
)


def split_options(text: str | None, option: str = "--ssh-args ") -> tuple[str, ...]:
    """What `--ssh-args` says, word by word as a shell takes it; None = nothing.

    Args:
        text: what it says.
        option: its name, for errors.

    Raises:
        InvalidOption: a quote has no end.
    """
    try:
        return tuple(shlex.split(text or ""))
    except ValueError as error:
        raise errors.InvalidOption(
            f"{option}{text}: {str(error).lower()}; each quote needs its other one"
        ) from None


def connect(
    host: str,
    ssh_args: Sequence[str] = (),
    tell: Callable[[str], object] = lambda _: None,
    silence: float = 0.0,
) -> tuple[RemoteMachine, dict[str, Any]]:
    """Starts an agent on a host.

    Args:
        host: as ssh takes it.
        ssh_args: options for ssh, before those that keras-strom gives it.
        tell: is called with each line that ssh or the agent writes once the agent is there.
        silence: so many seconds without a sign of life the job allows, and so does ssh.

    Returns:
        The machine, and the agent's hello.

    Raises:
        HostUnusable: in words that say what to do.
    """
    wire, hello = reach(host, ssh_args, tell, silence=silence)
    return RemoteMachine(host, wire, wire.why_lost), hello


def is_away(error: errors.HostUnusable) -> bool:
    """Whether nobody answers there, which may pass by itself."""
    return any(words in str(error) for words in (_OUT_OF_REACH, _NO_SERVER, _CONNECTED_TO_NOTHING))


def reach(
    host: str,
    ssh_args: Sequence[str] = (),
    tell: Callable[[str], object] = lambda _: None,
    module: str = "keras_strom.runner.agent_main",
    silence: float = 0.0,
) -> tuple[SshWire, dict[str, Any]]:
    """Runs a module of keras-strom on a host, at the other end of a wire.

    Args:
        host: as ssh takes it.
        ssh_args: options for ssh.
        tell: is called with each line that ssh or the module writes once the module is there.
        module: what runs there; its first message is its `hello`.
        silence: so many seconds without a sign of life are no reason for ssh to end.

    Returns:
        The wire, and the hello.

    Raises:
        HostUnusable: in words that say what to do.
    """
    pauses = [base * random.uniform(0.5, 1.5) for base in _PAUSES]  # Not all come again at once.
    while True:
        wire = SshWire(host, (*_alive(silence), *ssh_args), tell, module)
        try:
            hello = wire.receive(_CONNECT_SECONDS)
            wire.connected = True
            check_version(host, hello)
            return wire, hello
        except errors.StromError:  # In our own words, though some are ConnectionErrors.
            wire.close()
            raise
        except ConnectionError as error:
            why, again = wire.why_not(error), wire.was_turned_away and bool(pauses)
            wire.close()
            if not again:
                raise errors.HostUnusable(f"{host}: {why}") from None
            time.sleep(pauses.pop(0))
        except BaseException:
            wire.close()
            raise


def _alive(silence: float) -> tuple[str, ...]:
    """Has ssh end where nothing comes for longer than `silence`, which is then told before."""
    # ssh ends with the interval after the last of its questions that has no answer.
    count = max(_LEAST_ALIVE_COUNT, math.ceil(silence / _ALIVE_SECONDS) + 1)
    interval = f"ServerAliveInterval={_ALIVE_SECONDS}"
    return ("-o", interval, "-o", f"ServerAliveCountMax={count}")


class SshWire(PipeWire):
    """The pipes of an ssh process that runs an agent, or another module; `reach` makes it."""

    def __init__(
        self, host: str, ssh_args: Sequence[str], tell: Callable[[str], object], module: str
    ) -> None:
        agent = f"exec {shlex.join(module_command(module))}"
        try:
            self._ssh = subprocess.Popen(
                ["ssh", *_OPTIONS, *ssh_args, "--", host, agent],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # Ctrl+C is the launcher's.
            )
        except OSError as error:
            remedy = "raise the limits of this shell (ulimit -n, ulimit -u), or name fewer --hosts"
            if isinstance(error, FileNotFoundError):
                remedy = "install OpenSSH's client (apt-get install openssh-client)"
            raise errors.HostUnusable(
                f"ssh cannot be started here ({error.strerror}): {remedy}"
            ) from error
        assert self._ssh.stdin is not None
        assert self._ssh.stdout is not None
        super().__init__(self._ssh.stdout.fileno(), os.dup(self._ssh.stdin.fileno()))
        self._ssh.stdin.close()  # Its duplicate is the wire's.
        self.connected = self._lost = False
        self._host = host
        self._tell = tell
        self._said: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()

    def receive(self, timeout: float) -> dict[str, Any]:
        """See `Wire`."""
        try:
            return super().receive(timeout)
        except ConnectionError:
            self._lost = True
            raise

    def close(self) -> None:
        """Lets ssh end, or else ends it: at once where nothing comes through it any more."""
        super().close()
        try:
            self._ssh.wait(0.0 if self._lost else _END_SECONDS)
        except subprocess.TimeoutExpired:
            self._ssh.kill()
            self._ssh.wait()

    def why_not(self, error: ConnectionError) -> str:
        """Why there is no agent."""
        code = self._code()
        said = "\n".join(self._said)
        last = self._said[-1].strip() if self._said else ""
        if code is None:
            return f"{error}: {_CONNECTED_TO_NOTHING}, or the machine is far too slow"
        if code == _SSH_FAILED:
            for pattern, remedy in _REMEDIES:
                if found := re.search(f".*(?:{pattern}).*", said, re.IGNORECASE):
                    return f"{remedy.format(host=self._host)} (ssh says: {found[0].strip()})"
            return f"ssh has failed: {last or 'it says nothing'}"
        if "No module named" in said:
            return (
                f"its Python at {sys.executable} has no keras-strom ({last}): install the same "
                "wheels there"
            )
        if code in (126, 127):
            return (
                f"it has no Python at {sys.executable}, which is this machine's ({last}): install "
                "Python and keras-strom there under the same path"
            )
        return f"keras-strom's agent ended with code {code}: {last or 'it said nothing'}"

    @property
    def was_turned_away(self) -> bool:
        """Whether a server has closed the connection before it has said who it is."""
        return _TURNED_AWAY in "\n".join(self._said) and self._code() == _SSH_FAILED

    def why_lost(self, error: ConnectionError) -> str:
        """Why the agent that was there is gone."""
        code = self._code(wait=0.5)
        if code is None:
            return str(error)
        said = f": {self._said[-1].strip()}" if self._said else ""
        return f"ssh ended with code {code}{said}"

    def _code(self, wait: float = GRACE_SECONDS) -> int | None:
        """Of ssh's end; None = it has not ended."""
        try:
            code = self._ssh.wait(wait)
        except subprocess.TimeoutExpired:
            return None
        self._reader.join(wait)
        return code

    def _read_errors(self) -> None:
        assert self._ssh.stderr is not None
        for line in self._ssh.stderr:
            text = line.decode("utf-8", "replace").rstrip()
            self._said.append(text)
            if self.connected and text:
                self._tell(f"{self._host}: {text}")
