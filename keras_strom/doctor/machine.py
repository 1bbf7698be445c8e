"""Processors, memory, open files, clock, disk, and a job's file on it."""

from __future__ import annotations

import math
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from keras_strom.doctor.finding import Finding, Grade, of_errors, unless
from keras_strom.job.machine_limits import available_memory, threads_left, usable_cores
from keras_strom.job.network import format_address
from keras_strom.runner.job_file import JobFile
from keras_strom.runner.process import check_open_files

# TensorFlow, Keras and a small model; a larger one needs more.
_LEAST_MEMORY = 1 << 30
# TensorFlow's pools and a worker's own, and the BLAS's of NumPy, on a machine of many cores.
_THREADS = 200
# A checkpoint is as large as the model, its optimizer's variables and every worker's residual.
_LEAST_DISK = 1 << 30
_CLOCK_SECONDS = 1.0


def clock(ahead: float, unsure: float, whose: str) -> Finding:
    """How far a machine's clock is from another's.

    Args:
        ahead: seconds, below 0 where it is behind.
        unsure: by so much it may be otherwise, either way.
        whose: the other one.
    """
    side = "ahead of" if ahead > 0 else "behind"
    words = f"{abs(ahead):.3f} s {side} {whose}, give or take {unsure:.3f} s"
    is_near = abs(ahead) - unsure < _CLOCK_SECONDS
    doubt = None if is_near else "logs and timelines of the machines do not fit together"
    return unless("clock", words, doubt, "have it follow a time server (timedatectl set-ntp true)")


def secret(path: str) -> Finding:
    """Whether the file of a job that a scheduler runs is one, and its owner's alone."""
    return of_errors("secret", lambda: _secret(path))


def _secret(path: str) -> Finding:
    try:
        job = JobFile.read(path)
    except OSError as error:
        words = f"{path} cannot be read: {error.strerror}"
        return Finding("secret", Grade.BAD, words, "the file that `keras-strom master` has written")
    words = f"only its owner can read {path}, which leads to {format_address(job.master)}"
    return Finding("secret", Grade.GOOD, words)


def findings(workers: int, checkpoint_dir: str | None) -> Iterator[Finding]:
    """Of this machine, for so many workers on it."""
    yield _processors(workers)
    yield _memory(workers)
    if (left := threads_left()) is not None:
        yield _threads(workers, left)
    yield _open_files()
    if checkpoint_dir is not None:
        yield _folder(Path(checkpoint_dir))


def _processors(workers: int) -> Finding:
    cores = usable_cores()
    words = (
        f"{cores:g} {'core' if cores == 1 else 'cores'} for {workers} worker{'s' * (workers > 1)}"
    )
    most = max(1, math.floor(cores))
    doubt = f"they take turns, and train no faster than {most} would"
    remedy = f"-np {most}, or more machines"
    return unless("processors", words, doubt if workers > cores else None, remedy)


def _memory(workers: int) -> Finding:
    available = available_memory()
    if available is None:
        return Finding("memory", Grade.WARNING, "the system does not say how much is free")
    each = available / workers
    words = f"{available / 2**30:.1f} GiB are free, {each / 2**30:.1f} GiB for each worker"
    doubt = f"TensorFlow and Keras alone take about {_LEAST_MEMORY / 2**30:g} GiB of each"
    remedy = "fewer workers, or --warm-start, with which they share memory"
    return unless("memory", words, doubt if each < _LEAST_MEMORY else None, remedy)


def _threads(workers: int, left: int) -> Finding:
    words = f"{left} more threads and processes may run here, {left // workers} for each worker"
    doubt = f"one may have {_THREADS}, and fails where no other can be started"
    remedy = "fewer workers, or a control group with a larger pids.max"
    return unless("threads", words, doubt if left < workers * _THREADS else None, remedy)


def _open_files() -> Finding:
    try:
        check_open_files()
    except OSError as error:
        return Finding("open files", Grade.BAD, str(error))
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    words = "without a limit" if limit == resource.RLIM_INFINITY else f"up to {limit} of a process"
    return Finding("open files", Grade.GOOD, words)


def existing(folder: Path) -> Path:
    """The folder, or the first above it that is there.

    Raises:
        OSError: it cannot be looked at, as below a folder that this user may not enter.
    """
    found = folder.absolute()
    while not found.exists() and found != found.parent:
        found = found.parent
    return found


def _folder(folder: Path) -> Finding:
    """Whether checkpoints can be written there; the folder itself need not exist yet."""
    place = folder
    try:
        place = existing(folder)
        with tempfile.NamedTemporaryFile(dir=place, prefix=".keras-strom-doctor-") as file:
            file.write(bytes(1 << 20))
            file.flush()
            os.fsync(file.fileno())
        free = shutil.disk_usage(place).free
    except OSError as error:  # A file in the folder's place among them.
        return Finding(
            "checkpoints",
            Grade.BAD,
            f"{place} cannot be written: {error.strerror}",
            "make it writable for this user, or choose another --checkpoint-dir",
        )
    words = f"{place} can be written; {free / 2**30:.1f} GiB are free"
    if free < _LEAST_DISK:
        remedy = "make room, or choose another --checkpoint-dir"
        return Finding("checkpoints", Grade.WARNING, words, remedy)
    return Finding("checkpoints", Grade.GOOD, words)
