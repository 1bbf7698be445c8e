"""ngtcp2's server and client, as a QUIC sender and receiver on a line.

Debian has both: gtlsserver sends a file (of ngtcp2-server), gtlsclient keeps what arrives (of
ngtcp2-client). Goodput is how the kept file grows.
"""

from __future__ import annotations

import contextlib
import math
import pathlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import IO

from benchmarks.namespaces import Namespaces
from benchmarks.relay_peers import Goodput, Transport

#: BBR as ngtcp2 has it, which is version 1 like Linux's.
QUIC = Transport("QUIC BBR", "quic", "bbr")

_PROGRAMS = ("gtlsserver", "gtlsclient", "openssl")
_PORT = "4433"
_FILE_BYTES = 16 << 30  # It has holes only, and nobody waits for its end.
# More than any of the lines holds; what ngtcp2 grants by itself is less.
_WINDOW = "64M"
_START_S = 20.0


def unavailable() -> str | None:
    """Why there can be no QUIC here; None = there can."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (apt-get install ngtcp2-server ngtcp2-client)"
    return None


class QuicPeers:
    """Starts both ends on the nodes of a network; the receiver is node 0, the sender node 1."""

    def __init__(self, network: Namespaces) -> None:
        self._network = network

    def goodput(self, *, seconds: float, warm_up: float) -> Goodput:
        """Of one file, as fast as it goes.

        Raises:
            RuntimeError: an end has ended, or nothing has come.
        """
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            place = pathlib.Path(folder)
            words = stack.enter_context((place / "words").open("w+"))
            ends = [stack.enter_context(_running(self._server(place), words))]
            ends.append(stack.enter_context(_running(self._client(place), words)))
            received = place / "received" / "file"
            deadline = time.monotonic() + _START_S
            while not received.exists():
                _check(ends, words, deadline)
                time.sleep(0.01)
            time.sleep(warm_up)
            first, begin = received.stat().st_size, time.monotonic()
            time.sleep(seconds)
            last, end = received.stat().st_size, time.monotonic()
            _check(ends, words)
        rate = (last - first) / (end - begin)
        return Goodput(rate / 1e6, math.nan, math.nan, 1.0, math.nan)

    def _server(self, place: pathlib.Path) -> list[str]:
        (place / "sent").mkdir()
        with (place / "sent" / "file").open("wb") as file:
            file.truncate(_FILE_BYTES)
        key, certificate = str(place / "key"), str(place / "certificate")
        # fmt: off
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-keyout", key, "-out", certificate, "-subj", "/CN=benchmark"],
            capture_output=True, check=True,
        )
        return [*self._network.inside(1), "gtlsserver", "-q", f"--cc={QUIC.congestion}",
                "-d", str(place / "sent"), self._network.address(1), _PORT, key, certificate]
        # fmt: on

    def _client(self, place: pathlib.Path) -> list[str]:
        (place / "received").mkdir()
        server = self._network.address(1)
        windows = ("max-data", "max-stream-data-bidi-local", "max-window", "max-stream-window")
        # fmt: off
        return [*self._network.inside(0), "gtlsclient", "-q", "--no-quic-dump", "--no-http-dump",
                *(f"--{name}={_WINDOW}" for name in windows), f"--download={place / 'received'}",
                server, _PORT, f"https://{server}:{_PORT}/file"]
        # fmt: on


@contextlib.contextmanager
def _running(command: list[str], words: IO[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stdout=words, stderr=subprocess.STDOUT) as process:
        try:
            yield process
        finally:
            process.kill()


def _check(ends: list[subprocess.Popen[bytes]], words: IO[str], deadline: float = math.inf) -> None:
    if all(end.poll() is None for end in ends) and time.monotonic() < deadline:
        return
    words.seek(0)
    raise RuntimeError(f"QUIC: an end has ended, or nothing has come:\n{words.read()[-2000:]}")
