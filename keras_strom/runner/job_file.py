"""What a worker needs to find its job and be let in: a file that only its owner can read.

`keras-strom master` writes it where workers see it too, on a disk that they share. Where there is
none (Kubernetes' Secrets), `keras-strom prepare` makes it before there is a master, and beside it
the one that the master alone has: it holds the master's private key as well.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import tempfile
import time

from keras_strom import errors
from keras_strom._native import sealing
from keras_strom.job.credentials import KEY_BYTES, Credentials
from keras_strom.job.network import HostPort, format_address, parse_address

_POLL_SECONDS = 0.1


@dataclasses.dataclass(frozen=True)
class JobFile:
    """A job's address and keys.

    Attributes:
        master: where its master listens (TCP).
        credentials: the job's id and secret, and the public half of the master's key.
        private_key: the other half; None = this is a worker's file.

    Example:
        >>> JobFile.new(("10.0.0.4", 40100)).for_workers().private_key is None
        True
    """

    master: HostPort
    credentials: Credentials
    private_key: bytes | None = dataclasses.field(default=None, repr=False)

    @classmethod
    def new(cls, master: HostPort) -> JobFile:
        """One of a new job, for its master."""
        key = secrets.token_bytes(KEY_BYTES)
        return cls(master, Credentials.new().with_master(sealing.public_key(key)), key)

    def for_workers(self) -> JobFile:
        """Without the private key."""
        return dataclasses.replace(self, private_key=None)

    def write(self, path: str) -> None:
        """Leaves it in a file of mode 0600, which is whole as soon as it is there.

        Raises:
            InvalidOption: it cannot be written.
        """
        fields = {"master": format_address(self.master), **json.loads(self.credentials.to_json())}
        if self.private_key is not None:
            fields["private_key"] = self.private_key.hex()
        folder = os.path.dirname(os.path.abspath(path))
        try:
            # mkstemp makes files of mode 0600.
            fd, half = tempfile.mkstemp(prefix=".keras-strom-", dir=folder)
            try:
                with open(fd, "w", encoding="ascii") as file:
                    json.dump(fields, file)
                    file.write("\n")
                os.replace(half, path)
            except BaseException:
                remove(half)  # It holds the secret.
                raise
        except OSError as error:
            raise errors.InvalidOption(
                f"the job's file {path} cannot be written: {error.strerror}"
            ) from error

    @classmethod
    def read(cls, path: str) -> JobFile:
        """Reads what `write` has left.

        Raises:
            InvalidOption: no such file, one that others can read, or something else.
        """
        credentials = Credentials.read(path)
        with open(path, encoding="utf-8", errors="replace") as file:
            fields = json.load(file)
        try:
            key = fields.get("private_key")
            private_key = None if key is None else bytes.fromhex(key)
            if credentials.master_public_key is None:
                raise ValueError("it names no key of a master")
            return cls(parse_address(fields["master"]), credentials, private_key)
        except (KeyError, TypeError, ValueError) as error:
            raise errors.InvalidOption(
                f"{path} is no job's file: {error!r}; keras-strom master writes one"
            ) from None

    @classmethod
    def wait(cls, path: str, seconds: float) -> JobFile:
        """Reads it as soon as it is there.

        Raises:
            JoinTimeout: it has not come.
            InvalidOption: others can read it, or it is something else.
        """
        deadline = time.monotonic() + seconds
        while not os.path.exists(path):
            # Another machine's new file is seen on NFS once its folder has been listed anew.
            with contextlib.suppress(OSError):
                os.listdir(os.path.dirname(os.path.abspath(path)))
            if time.monotonic() > deadline:
                raise errors.JoinTimeout(
                    f"there was no job's file {path} after {seconds:g} s: has keras-strom master "
                    "been started with this --job, and is the folder shared with its machine?"
                )
            time.sleep(_POLL_SECONDS)
        return cls.read(path)


def remove(path: str) -> None:
    """The job is over, and with it its file."""
    with contextlib.suppress(OSError):
        os.unlink(path)
