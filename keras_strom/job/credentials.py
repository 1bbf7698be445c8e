"""What lets a process into a job: the job's id, its secret, and whom to trust as its master.

Credentials travel only by ways that are private to the job: an inherited memory file to a child
process, the standard input of `ssh` to another host, a Spark task's closure. They never stand in
arguments, environment variables, Spark's configuration, logs or saved models; `repr` hides the
secret so that no log shows it by accident.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import stat

from keras_strom import errors
from keras_strom.job import linux

JOB_ID_BYTES = 16
KEY_BYTES = 32


@dataclasses.dataclass(frozen=True)
class Credentials:
    """One job's id and keys.

    Attributes:
        job_id: 16 random bytes that name the run.
        secret: 32 random bytes that every member holds.
        master_public_key: the master's X25519 public key (32 bytes), which workers check so that
            holding the secret does not make a master; None until the master has started.

    Example:
        >>> Credentials.new().master_public_key is None
        True
    """

    job_id: bytes
    secret: bytes = dataclasses.field(repr=False)
    master_public_key: bytes | None = None

    def __post_init__(self) -> None:
        _require_bytes("job_id", self.job_id, JOB_ID_BYTES)
        _require_bytes("secret", self.secret, KEY_BYTES)
        if self.master_public_key is not None:
            _require_bytes("master_public_key", self.master_public_key, KEY_BYTES)

    @classmethod
    def new(cls, secret: bytes | None = None) -> Credentials:
        """Credentials for one job, with a fresh random id; its master adds the public key.

        Args:
            secret: 32 random bytes; None = fresh ones.
        """
        if secret is None:
            secret = secrets.token_bytes(KEY_BYTES)
        return cls(secrets.token_bytes(JOB_ID_BYTES), secret)

    def with_master(self, public_key: bytes) -> Credentials:
        """The same job, led by the master that holds the private half of `public_key`."""
        return dataclasses.replace(self, master_public_key=public_key)

    def to_json(self) -> str:
        """The text of a credentials file, secret included."""
        key = self.master_public_key
        return json.dumps(
            {
                "job_id": self.job_id.hex(),
                "secret": self.secret.hex(),
                "master_public_key": None if key is None else key.hex(),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Credentials:
        """Reads `to_json`'s text.

        Raises:
            InvalidOption: the text is something else; the message never repeats it.
        """
        try:
            fields = json.loads(text)
            key = fields["master_public_key"]
            return cls(
                job_id=bytes.fromhex(fields["job_id"]),
                secret=bytes.fromhex(fields["secret"]),
                master_public_key=None if key is None else bytes.fromhex(key),
            )
        except (ValueError, KeyError, TypeError) as error:
            # `from None`: the cause may quote the text, and with it the secret.
            raise errors.InvalidOption(
                "credentials must be a JSON object with job_id, secret and master_public_key in "
                f"hexadecimal ({type(error).__name__})"
            ) from None

    @classmethod
    def read(cls, path: str) -> Credentials:
        """Reads a credentials file, which only its owner may be able to read.

        Args:
            path: a file of mode 0600, or /proc/self/fd/N of an inherited memory file.

        Raises:
            InvalidOption: no such file, one that others can read, or not credentials.
        """
        try:
            mode = os.stat(path).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # A folder has words of its own.
                raise errors.InvalidOption(
                    f"{path} is no file with credentials, but a device or a pipe"
                )
            with open(path, encoding="utf-8", errors="replace") as file:  # It may be any file.
                mode = os.fstat(file.fileno()).st_mode
                text = file.read()
        except OSError as error:
            raise errors.InvalidOption(
                f"cannot read the credentials in {path}: {error.strerror}; {_remedy(path, error)}"
            ) from error
        try:
            found = cls.from_json(text)
        except errors.InvalidOption as error:
            raise errors.InvalidOption(f"{path}: {error}") from None
        if mode & (stat.S_IRWXG | stat.S_IRWXO):  # Of another file this advice could do harm.
            raise errors.InvalidOption(
                f"{path} can be read by others (mode {stat.S_IMODE(mode):04o}); make it private "
                f"(chmod 600 {path}) and take a new secret"
            )
        return found

    def open_memory_file(self) -> int:
        """Puts the credentials into a sealed memory file that a child process can inherit.

        Returns:
            A file descriptor, which the caller closes once the child has been started.
        """
        fd = linux.create_memory_file("keras-strom", can_be_sealed=True)
        try:
            os.fchmod(fd, 0o600)
            os.write(fd, self.to_json().encode("ascii"))
            linux.seal(fd)
        except BaseException:
            os.close(fd)
            raise
        return fd


def _remedy(path: str, error: OSError) -> str:
    if path.startswith("/proc/"):
        return "a file descriptor is only open in the process that the runner started"
    if isinstance(error, IsADirectoryError):
        return "name the file in that folder that keras-strom master or prepare has written"
    return "keras-strom master writes such a file and removes it at its end, prepare leaves one"


def _require_bytes(name: str, value: object, length: int) -> None:
    if not isinstance(value, bytes) or len(value) != length:
        given = f"{len(value)} bytes" if isinstance(value, bytes) else type(value).__name__
        raise errors.InvalidOption(
            f"{name} must be {length} random bytes, not {given}; Credentials.new() makes them"
        )
