"""Which of a machine's GPUs a worker sees, before it has imported anything: CUDA_VISIBLE_DEVICES.

A runner that starts several workers on a machine gives each one card. They would otherwise all
reserve the memory of all cards, as TensorFlow does with what it sees. A worker that is alone for
now, on a machine to which others may come, gets one card, too.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping

from keras_strom.job.environment import ClusterEnvironment

#: Which GPUs a process sees, by number or name, with commas between them; none after a -1.
VISIBLE = "CUDA_VISIBLE_DEVICES"
# Reads as TensorFlow does: it takes a card's memory bit by bit, not at once.
_GROW = "TF_FORCE_GPU_ALLOW_GROWTH"

# Slurm sets it where each of its tasks has cards of its own, in the tasks and around them.
_BY_SLURM = "SLURM_GPUS_PER_TASK"

# NVIDIA's driver has a file there for each card that this machine, or container, may use.
_FILES = "/dev"
_FILE = re.compile(r"nvidia\d+")


def one_each(
    place: ClusterEnvironment, variables: Mapping[str, str], files: str = _FILES
) -> tuple[ClusterEnvironment, dict[str, str]]:
    """One card for each worker of a machine, by its local rank; where there are fewer, they share.

    Args:
        place: the worker's. One that is alone on its machine keeps all cards, and so does one whose
            cards are its "own" already; "shared" = others have the same cards, or may come.
        variables: of its process.
        files: the folder of devices.

    Returns:
        The place, with what is known of its GPUs, and the variables that differ.

    Example:
        >>> two = ClusterEnvironment(size=2, local_rank=1, local_size=2)
        >>> place, changed = one_each(two, {"CUDA_VISIBLE_DEVICES": "4,5"})
        >>> place.gpus, changed
        ('own', {'CUDA_VISIBLE_DEVICES': '5'})
    """
    cards = visible(variables, files)
    is_alone = place.gpus is None and place.local_size == 1
    if is_alone or not cards or place.gpus == "own":
        return place, {}
    changed = {VISIBLE: cards[place.local_rank % len(cards)]}
    if place.gpus is None and place.local_size <= len(cards):
        return dataclasses.replace(place, gpus="own"), changed
    if _GROW not in variables:
        changed[_GROW] = "true"
    return dataclasses.replace(place, gpus="shared"), changed


def are_of_a_task(variables: Mapping[str, str]) -> bool:
    """Whether Slurm gives each of its tasks GPUs of its own.

    What a task sees is its worker's own then, where the task is one worker; not where it starts
    several.

    Args:
        variables: of a process of the task.
    """
    return _BY_SLURM in variables


def visible(variables: Mapping[str, str], files: str = _FILES) -> list[str]:
    """The names of the GPUs that a process with these variables sees.

    Args:
        variables: of the process.
        files: the folder of devices.
    """
    named = variables.get(VISIBLE)
    if named is None:
        try:
            return list(map(str, range(sum(map(_is_card, os.listdir(files))))))
        except OSError:
            return []
    cards = []
    for name in map(str.strip, named.split(",")):
        if not name or name.startswith("-"):
            break  # CUDA reads no further than to the first that is not there.
        cards.append(name)
    return cards


def _is_card(name: str) -> bool:
    return _FILE.fullmatch(name) is not None
