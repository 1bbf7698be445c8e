"""Which of a machine's GPUs a worker sees, before it has imported anything: CUDA_VISIBLE_DEVICES.

A runner that starts several workers on a machine gives each one card. They would otherwise all
reserve the memory of all cards, as TensorFlow does with what it sees.
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

# Slurm sets it where each of its tasks has cards of its own.
_BY_SLURM = "SLURM_GPUS_PER_TASK"

# NVIDIA's driver has a file there for each card that this machine, or container, may use.
_FILES = "/dev"
_FILE = re.compile(r"nvidia\d+")


def one_each(
    place: ClusterEnvironment, variables: Mapping[str, str], files: str = _FILES
) -> tuple[ClusterEnvironment, dict[str, str]]:
    """One card for each worker of a machine, by its local rank; where there are fewer, they share.

    Args:
        place: the worker's. One that is alone on its machine keeps all cards.
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
    if place.local_size == 1 or not cards or place.gpus is not None:
        return place, {}
    if _BY_SLURM in variables:
        return dataclasses.replace(place, gpus="own"), {}
    changed = {VISIBLE: cards[place.local_rank % len(cards)]}
    if place.local_size <= len(cards):
        return dataclasses.replace(place, gpus="own"), changed
    if _GROW not in variables:
        changed[_GROW] = "true"
    return dataclasses.replace(place, gpus="shared"), changed


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
