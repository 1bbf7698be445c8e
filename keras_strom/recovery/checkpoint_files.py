"""A job's checkpoints on disk: what each worker leaves, and the folder that the runner keeps.

Every `interval` seconds each worker writes its part (parameters, its optimizers' state and all
else that no optimizer trains, residuals, threshold, position in its data) into a folder that its
runner reads. Once all parts of one number are there the runner makes them a checkpoint, with one
rename, and removes older ones. A part that is still missing when the next number but one begins is
left out, for its worker is away. The rename makes a checkpoint appear in one piece:

    DIR/master.json                                     the highest epoch of any master
    DIR/incoming-EPOCH/NUMBER-RANK.fitK.safetensors     parts on their way; K: see below
    DIR/checkpoint-EPOCH-NUMBER/RANK.fitK.safetensors   a checkpoint's parts

RANK is the worker's, K the number of the script's fit, from 1.

A part is a safetensors file with a checksum (`packed_arrays`). A checkpoint of which one is damaged
is passed over, with a warning, and the one before it used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from keras_strom import errors
from keras_strom.job.checkpoint_plan import CheckpointPlan
from keras_strom.recovery.packed_arrays import (
    MALFORMED,
    Arrays,
    OtherVersionError,
    pack,
    unpack,
    whole,
)
from keras_strom.recovery.resume import DataPosition
from keras_strom.stale_files import anew_if_stale

_logger = logging.getLogger("keras_strom")

_KIND = "keras-strom checkpoint part"
_VERSION = 3
_CHECKPOINT = re.compile(r"checkpoint-(\d{6})-(\d{8})")
# Version 1 of the format had no suffix.
_PART = re.compile(r"(\d{6})\.fit(\d+)(?:\.safetensors)?")
_INCOMING = re.compile(r"(\d{8})-(\d{6}\.fit\d+\.safetensors)")


@dataclasses.dataclass(frozen=True)
class Part:
    """One worker's state between two batches.

    Attributes:
        rank: of the worker.
        workers: of the job.
        fit: the script's fit, or custom loop, from 1.
        place: the batch that it trains next.
        per_epoch: batches of its epoch; None = not known.
        steps: shared steps that it has made, in all fits.
        threshold: the state of its threshold algorithm.
        cycles: that the joint model had finished; 0 without one.
        arrays: by name, of what they are; see `keras_strom.recovery.checkpointing`.

    Example:
        >>> part = Part(0, 2, 1, DataPosition(3, 7), 10, 37, (1e-3,), {})
        >>> Part.from_bytes(part.to_bytes()).place
        DataPosition(epoch=3, batch=7)
    """

    rank: int
    workers: int
    fit: int
    place: DataPosition
    per_epoch: int | None
    steps: int
    threshold: tuple[float, ...]
    arrays: Arrays
    cycles: int = 0

    def to_bytes(self) -> bytes:
        """The bytes of `packed_arrays`."""
        values = dataclasses.asdict(dataclasses.replace(self, arrays={}))
        del values["arrays"]
        return pack(_KIND, _VERSION, values, self.arrays)

    @classmethod
    def from_bytes(cls, data: bytes) -> Part:
        """The inverse of `to_bytes`.

        Raises:
            CorruptMessage: these bytes are damaged, or no part.
            Refused: another version of keras-strom has written them.
        """
        try:
            values, arrays = unpack(_KIND, _VERSION, data)
            place = values["place"]
            return cls(
                rank=whole(values, "rank"),
                workers=whole(values, "workers"),
                fit=whole(values, "fit"),
                place=DataPosition(whole(place, "epoch"), whole(place, "batch")),
                per_epoch=None if values["per_epoch"] is None else whole(values, "per_epoch"),
                steps=whole(values, "steps"),
                threshold=tuple(map(float, values["threshold"])),
                arrays=arrays,
                cycles=whole({"cycles": 0, **values}, "cycles"),  # Earlier parts have none.
            )
        except OtherVersionError as other:
            raise errors.Refused(
                f"it was written in version {other.version} of the format and this is version "
                f"{_VERSION}; go on with the keras-strom that wrote it, or begin anew"
            ) from other
        except MALFORMED as error:
            raise errors.CorruptMessage(f"it is damaged: {error}") from error


def leave_part(plan: CheckpointPlan, number: int, part: Part) -> None:
    """Leaves a part for the runner; it is there whole or not at all.

    Raises:
        StoreUnavailable: the folder is not there, or full.
    """
    try:
        name = f"{number:08d}-{part.rank:06d}.fit{part.fit}.safetensors"
        _write(Path(plan.incoming, name), part.to_bytes())
    except OSError as error:
        remedy = "checkpoint_dir must be a folder that runner and workers reach"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "make room there, or name a checkpoint_dir of another disk"
        raise errors.StoreUnavailable(
            f"worker {part.rank} cannot write its part of a checkpoint to {plan.incoming}: "
            f"{error.strerror}; {remedy}"
        ) from error


def parts_of(checkpoint: str) -> dict[int, Path]:
    """The files of a checkpoint's parts by rank; those of its latest fit.

    Raises:
        StoreUnavailable: the folder cannot be read, or holds none.
    """
    found: dict[int, dict[int, Path]] = {}
    try:
        paths = _listed(Path(checkpoint))
    except OSError as error:
        raise errors.StoreUnavailable(f"{checkpoint} cannot be read: {error.strerror}") from error
    for path in paths:
        if match := _PART.fullmatch(path.name):
            found.setdefault(int(match[2]), {})[int(match[1])] = path
    if not found:
        raise errors.StoreUnavailable(
            f"{checkpoint} holds no part of a checkpoint, where the runner has found some: it was "
            "emptied since, or checkpoint_dir is another folder here; choose one that all machines "
            "share under the same name"
        )
    return found[max(found)]


def read_part(path: Path) -> Part:
    """Reads a part.

    Raises:
        CorruptMessage: it is damaged; the message names it.
        Refused: another version has written it.
        StoreUnavailable: it cannot be read.
    """
    try:
        return Part.from_bytes(anew_if_stale(path.read_bytes))
    except OSError as error:
        raise errors.StoreUnavailable(f"{path} cannot be read: {error.strerror}") from error
    except errors.StromError as error:
        raise type(error)(f"{path}: {error}") from error


class CheckpointFolder:
    """A runner's folder of checkpoints, while it runs a job.

    Args:
        path: is made where it does not exist.
        kept: so many checkpoints stay.
        workers: how many parts a complete checkpoint has.

    Attributes:
        epoch: the master's: one more than that of the run before.

    Raises:
        StoreUnavailable: the folder cannot be written.

    Example:
        >>> import tempfile
        >>> folder = CheckpointFolder(tempfile.mkdtemp(), kept=2, workers=2)
        >>> folder.epoch, folder.latest()
        (1, None)
    """

    def __init__(self, path: str, *, kept: int, workers: int) -> None:
        self._path = Path(path).absolute()
        self._kept = kept
        self._workers = workers
        self._restored: Path | None = None
        with self._reachable():
            self._path.mkdir(parents=True, exist_ok=True)
            self.epoch = self._take_epoch()
            self._hold_epoch()
            for old in self._path.glob("incoming-*"):
                if old.name < self._incoming.name:
                    shutil.rmtree(old, ignore_errors=True)

    @property
    def _incoming(self) -> Path:
        return self._path / f"incoming-{self.epoch:06d}"

    def _take_epoch(self) -> int:
        """The first one that no other runner has, which may start at the same time."""
        epoch = self._read_epoch() + 1
        while True:
            try:
                (self._path / f"incoming-{epoch:06d}").mkdir()
                return epoch
            except FileExistsError:
                epoch += 1

    def plan(self, interval: float) -> CheckpointPlan:
        """For the workers of the job that begins now.

        The checkpoint that they begin from stays while this runs: who starts later reads it too.
        """
        with self._reachable():
            latest = self._restored = self.latest()
        restore = None if latest is None else str(latest)
        return CheckpointPlan(str(self._incoming), interval, time.monotonic(), restore)

    def latest(self) -> Path | None:
        """The newest checkpoint whose parts are all undamaged; None = there is none.

        Raises:
            Refused: another version of keras-strom has written it.
        """
        for checkpoint in reversed(self._checkpoints()):
            paths = [path for path in _listed(checkpoint) if _PART.fullmatch(path.name)]
            try:
                for path in paths:
                    read_part(path)  # One after the other: together they may not fit into memory.
            except (errors.CorruptMessage, errors.StoreUnavailable) as error:
                _logger.warning("a checkpoint is passed over: %s", error)
                continue
            if paths:
                return checkpoint
        return None

    def collect(self) -> list[Path]:
        """Makes checkpoints of the parts that have come; returns the new ones.

        A number of which parts are missing waits until the next but one has begun.

        Raises:
            StoreUnavailable: the folder cannot be written.
            Refused: a runner that was started later uses the folder.
        """
        made = []
        failure: OSError | None = None
        with self._reachable():
            self._hold_epoch()  # A later runner has removed this one's folder for parts.
            numbers = self._numbers()
            for number, parts in sorted(numbers.items()):
                whole = len(parts) == self._workers
                if not whole and max(numbers) < number + 2:
                    continue
                try:
                    if (checkpoint := self._make(number, parts)) is not None:
                        made.append(checkpoint)
                except OSError as error:
                    failure = error  # It is tried again the next time; others do not wait for it.
            if made:
                for old in self._checkpoints()[: -self._kept]:
                    if old != self._restored:
                        _remove(old)
            if failure is not None:
                raise failure
        return made

    def clear(self) -> None:
        """The job has ended well: the next run begins anew."""
        with self._reachable():
            self._hold_epoch()
            for path in [*self._checkpoints(), self._incoming]:
                _remove(path)

    def _numbers(self) -> dict[int, set[str]]:
        """The names, in a checkpoint, of the parts that are there, by number."""
        numbers: dict[int, set[str]] = {}
        for path in _listed(self._incoming):
            if match := _INCOMING.fullmatch(path.name):
                numbers.setdefault(int(match[1]), set()).add(match[2])
            elif match := _CHECKPOINT.fullmatch(path.name):  # It could not be made so far.
                parts = numbers.setdefault(int(match[2]), set())
                parts.update(part.name for part in _listed(path))
        return numbers

    def _make(self, number: int, parts: set[str]) -> Path | None:
        """The new checkpoint; None where it has been made before, so that these parts are late."""
        name = f"checkpoint-{self.epoch:06d}-{number:08d}"
        arrived = {part: self._incoming / f"{number:08d}-{part}" for part in parts}
        if (self._path / name).exists():
            for path in arrived.values():
                path.unlink(missing_ok=True)
            return None
        making = self._incoming / name
        making.mkdir(exist_ok=True)
        for part, path in arrived.items():
            if path.exists():
                _rename(path, making / part)
        _sync(making)
        _rename(making, self._path / name)
        _sync(self._path)
        return self._path / name

    def _checkpoints(self) -> list[Path]:
        """All there are, the oldest first."""
        return [path for path in _listed(self._path) if _CHECKPOINT.fullmatch(path.name)]

    def _read_epoch(self) -> int:
        path = self._path / "master.json"
        try:
            return whole(json.loads(anew_if_stale(path.read_text)), "epoch")
        except FileNotFoundError:
            return 0
        except MALFORMED as error:
            raise errors.StoreUnavailable(
                f"{path} is damaged: {error}; remove the folder to begin anew"
            ) from error

    def _hold_epoch(self) -> None:
        """Sees to it that the file has the highest epoch of all runners.

        Raises:
            Refused: that is not this one's.
        """
        found = self._read_epoch()
        if found < self.epoch:
            _write(self._path / "master.json", json.dumps({"epoch": self.epoch}).encode())
        if found > self.epoch:
            raise errors.Refused(
                f"{self._path} is used by a job that was started later (master epoch {found}, this "
                f"one has {self.epoch}); this one has to end"
            )

    @contextlib.contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, errors.StromError):
                raise
            raise errors.StoreUnavailable(
                f"checkpoint_dir={str(self._path)!r} cannot be used: {error}"
            ) from error


def _listed(folder: Path) -> list[Path]:
    """What is in a folder, by name."""
    return anew_if_stale(lambda: sorted(folder.iterdir()))


def _rename(path: Path, to: Path) -> None:
    anew_if_stale(lambda: os.rename(path, to))


def _remove(folder: Path) -> None:
    """Removes a folder with all that is in it."""
    anew_if_stale(lambda: shutil.rmtree(folder))


def _write(path: Path, content: bytes) -> None:
    """Writes a file that is there whole or, after a crash, as it was before."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")

    def write() -> None:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)

    try:
        anew_if_stale(write)
    except BaseException:
        temporary.unlink(missing_ok=True)  # On a disk that is full it would stand in its own way.
        raise
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """Makes renames within `folder` last."""

    def sync() -> None:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    anew_if_stale(sync)
