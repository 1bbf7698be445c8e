"""A worker's part of data that PyTorch or Grain reads: Keras's `fit` takes both.

Neither is imported here. An element is a batch, as the user's loader or dataset makes it; worker r
of K takes every K-th one, from the r-th on.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Iterator
from typing import Any

_logger = logging.getLogger("keras_strom")

# PyTorch draws a seed of 64 bits where the program gives none, and programs give small ones.
_LEAST_DRAWN_SEED = 2**32


def own_part(data: Any, rank: int, size: int) -> Any:
    """What a worker trains on, as data of the same library.

    Args:
        data: what `fit` was given.
        rank: this worker.
        size: the number of workers.

    Returns:
        None for data of any other kind. All of `data` where a loader's sampler is PyTorch's
        DistributedSampler, which has divided them.
    """
    if _is_a("torch.utils.data", "DataLoader", data):
        return _part_of_loader(sys.modules["torch.utils.data"], data, rank, size)
    if _is_a("grain", "MapDataset", data):
        return data[rank::size]
    if _is_a("grain", "IterDataset", data):
        groups = data.batch(size, batch_fn=list)
        return groups.filter(lambda group: len(group) > rank).map(lambda group: group[rank])
    return None


def is_divided(data: Any) -> bool:
    """Whether it is a loader whose data PyTorch's DistributedSampler has divided."""
    sampler = getattr(sys.modules.get("torch.utils.data"), "DistributedSampler", ())
    return _is_a("torch.utils.data", "DataLoader", data) and any(
        isinstance(one, sampler) for one in _samplers(data)
    )


def _is_a(module: str, name: str, data: Any) -> bool:
    """Whether data is an instance of a class of a module, which then has been imported."""
    return isinstance(data, getattr(sys.modules.get(module), name, ()))


def _part_of_loader(torch: Any, loader: Any, rank: int, size: int) -> Any:
    if is_divided(loader):
        return loader
    if rank == 0 and _is_random(torch, loader):
        _logger.warning(
            "the DataLoader shuffles without a seed before its batches are divided, so each worker "
            "divides another order: an epoch has some examples twice and others not at all. Call "
            "torch.manual_seed with the same number on all workers before, or give the DataLoader "
            "a generator that has a seed"
        )

    # Here, as their base is known only where PyTorch has been imported.
    class Whole(torch.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            return itertools.islice(loader, rank, None, size)

    class Counted(Whole):
        def __len__(self) -> int:
            return len(range(rank, len(loader), size))

    batches = Counted() if hasattr(loader.dataset, "__len__") else Whole()
    return torch.DataLoader(batches, batch_size=None, collate_fn=_as_it_is)


def _samplers(loader: Any) -> tuple[Any, ...]:
    """A loader's own sampler, and that of the batches where it was given those."""
    return loader.sampler, getattr(getattr(loader, "batch_sampler", None), "sampler", None)


def _is_random(torch: Any, loader: Any) -> bool:
    """Whether a loader shuffles, and neither it nor PyTorch has been given a seed."""
    kinds = (torch.RandomSampler, torch.SubsetRandomSampler, torch.WeightedRandomSampler)
    drawing = [one for one in _samplers(loader) if isinstance(one, kinds)]
    if all(one.generator is not None for one in drawing):
        return False
    seed: int = sys.modules["torch"].initial_seed()
    return seed >= _LEAST_DRAWN_SEED


def _as_it_is(batch: Any) -> Any:
    return batch
