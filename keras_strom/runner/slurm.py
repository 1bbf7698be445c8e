"""The hosts of a Slurm job, from the variables that `sbatch` and `salloc` set.

SLURM_JOB_NODELIST is "rack[1-3,07],login" and SLURM_TASKS_PER_NODE "4(x3),2": four tasks on each of
three nodes, two on the next.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Iterator

from keras_strom import errors
from keras_strom.runner.hosts import Host

_MOST_NODES = 100_000
_SCONTROL_SECONDS = 30.0
_PART = re.compile(r"([^][,]*)(?:\[([^][]*)\])?")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_TASKS = re.compile(r"([1-9]\d*)(?:\(x([1-9]\d*)\))?")


def hosts(nodes: str, tasks: str | None) -> tuple[Host, ...]:
    """The hosts of an allocation, with a slot for each task.

    Args:
        nodes: SLURM_JOB_NODELIST.
        tasks: SLURM_TASKS_PER_NODE; None = one on each.

    Raises:
        EnvironmentInvalid: the variables make no sense.
    """
    names = _asked(nodes) or expand(nodes)
    counts = [1] * len(names) if tasks is None else tasks_per_node(tasks, len(names))
    return tuple(map(Host, names, counts))


def expand(nodes: str) -> list[str]:
    """The names in a node list, in its order.

    Raises:
        EnvironmentInvalid: it is none.

    Example:
        >>> expand("rack[1-2,07]-gpu,login")
        ['rack1-gpu', 'rack2-gpu', 'rack07-gpu', 'login']
    """
    names = []
    for entry in _entries(nodes):
        pieces = [list(_alternatives(prefix, inner, nodes)) for prefix, inner in _parts(entry)]
        for combination in itertools.product(*pieces):
            names.append("".join(combination))
            if len(names) > _MOST_NODES:
                raise _refused("SLURM_JOB_NODELIST", nodes)
    if not all(names):
        raise _refused("SLURM_JOB_NODELIST", nodes)
    return names


def tasks_per_node(text: str, nodes: int) -> list[int]:
    """How many tasks each node has.

    Raises:
        EnvironmentInvalid: it is no such text, or that of another number of nodes.

    Example:
        >>> tasks_per_node("4(x2),1", 3)
        [4, 4, 1]
    """
    counts: list[int] = []
    for part in text.split(","):
        found = _TASKS.fullmatch(part)
        if found is None or int(found[2] or 1) > nodes:
            raise _refused("SLURM_TASKS_PER_NODE", text)
        counts += [int(found[1])] * int(found[2] or 1)
    if len(counts) != nodes:
        raise _refused("SLURM_TASKS_PER_NODE", text)
    return counts


def _asked(nodes: str) -> list[str] | None:
    """What Slurm itself says; None = it is not here."""
    if shutil.which("scontrol") is None:
        return None
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", nodes],
            capture_output=True,
            text=True,
            check=True,
            timeout=_SCONTROL_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.split()


def _entries(nodes: str) -> Iterator[str]:
    """Cuts at the commas that stand outside of brackets."""
    begin = depth = 0
    for at, character in enumerate(nodes):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            yield nodes[begin:at]
            begin = at + 1
    if depth:
        raise _refused("SLURM_JOB_NODELIST", nodes)
    yield nodes[begin:]


def _parts(entry: str) -> Iterator[tuple[str, str | None]]:
    """A text and the bracket behind it, one after the other."""
    at = 0
    while at < len(entry):
        found = _PART.match(entry, at)
        if found is None or found.end() == at:
            raise _refused("SLURM_JOB_NODELIST", entry)
        yield found[1], found[2]
        at = found.end()


def _alternatives(prefix: str, inner: str | None, nodes: str) -> Iterator[str]:
    if inner is None:
        yield prefix
        return
    for part in inner.split(","):
        found = _RANGE.fullmatch(part)
        if found is None:
            raise _refused("SLURM_JOB_NODELIST", nodes)
        first, last = found[1], found[2] or found[1]
        if not int(first) <= int(last) < int(first) + _MOST_NODES:
            raise _refused("SLURM_JOB_NODELIST", nodes)
        for number in range(int(first), int(last) + 1):
            yield f"{prefix}{number:0{len(first)}d}"


def _refused(name: str, text: str) -> errors.EnvironmentInvalid:
    return errors.EnvironmentInvalid(f"{name}={text[:200]!r} is not understood; give --hosts")
