"""A worker's part of what PyTorch or Grain reads.

Neither is among the tests' requirements: stand-ins have what is used of them, and where one of them
is installed the same is asked of it itself.
"""

from __future__ import annotations

import importlib
import logging
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from keras_strom.strategy.data_sharding import shard_fit_arguments
from keras_strom.strategy.foreign_data import is_divided, own_part

_MODULES = ("torch", "torch.utils.data", "grain")


class _RandomSampler:
    def __init__(self, generator: Any = None) -> None:
        self.generator = generator


class _SubsetRandomSampler(_RandomSampler):
    pass


class _WeightedRandomSampler(_RandomSampler):
    pass


class _DistributedSampler:
    pass


class _IterableDataset:
    pass


class _DataLoader:
    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        sampler: Any = None,
        collate_fn: Callable[[Any], Any] = lambda batch: batch,
        batch_sampler: Any = None,
    ) -> None:
        self.dataset, self.batch_size, self.sampler = dataset, batch_size, sampler
        self.batch_sampler = batch_sampler
        self._collate = collate_fn

    def __iter__(self) -> Iterator[Any]:
        return map(self._collate, self.dataset)

    def __len__(self) -> int:
        return len(self.dataset)


class _MapDataset:
    def __init__(self, elements: list[Any]) -> None:
        self._elements = elements

    def __getitem__(self, index: slice) -> _MapDataset:
        return _MapDataset(self._elements[index])

    def __iter__(self) -> Iterator[Any]:
        return iter(self._elements)


class _IterDataset:
    def __init__(self, elements: Callable[[], Iterator[Any]]) -> None:
        self._elements = elements

    def __iter__(self) -> Iterator[Any]:
        return self._elements()

    def batch(self, size: int, *, batch_fn: Callable[[list[Any]], Any]) -> _IterDataset:
        def groups() -> Iterator[Any]:
            elements = list(self)
            for first in range(0, len(elements), size):
                yield batch_fn(elements[first : first + size])

        return _IterDataset(groups)

    def filter(self, keeps: Callable[[Any], bool]) -> _IterDataset:
        return _IterDataset(lambda: filter(keeps, self))

    def map(self, function: Callable[[Any], Any]) -> _IterDataset:
        return _IterDataset(lambda: map(function, self))


def _stand_ins() -> list[types.ModuleType]:
    torch, data, grain = map(types.ModuleType, _MODULES)
    vars(torch)["initial_seed"] = lambda: 2**63
    vars(data).update(DataLoader=_DataLoader, IterableDataset=_IterableDataset)
    vars(data).update(RandomSampler=_RandomSampler, DistributedSampler=_DistributedSampler)
    vars(data)["SubsetRandomSampler"] = _SubsetRandomSampler
    vars(data)["WeightedRandomSampler"] = _WeightedRandomSampler
    vars(grain).update(MapDataset=_MapDataset, IterDataset=_IterDataset)
    return [torch, data, grain]


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins are what has been imported."""
    for name, module in zip(_MODULES, _stand_ins(), strict=True):
        monkeypatch.setitem(sys.modules, name, module)


def _iter_dataset(elements: range) -> _IterDataset:
    return _IterDataset(lambda: iter(elements))


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(
    "kind", [_DataLoader, lambda batches: _MapDataset(list(batches)), _iter_dataset]
)
@pytest.mark.parametrize("size", [2, 3])
def test_every_batch_is_one_workers_in_every_epoch(kind: Callable[[range], Any], size: int) -> None:
    for rank in range(size):
        arguments = {"x": kind(range(11))}
        assert shard_fit_arguments(arguments, rank, size) == 0
        for _ in range(2):
            assert list(arguments["x"]) == list(range(rank, 11, size))


@pytest.mark.usefixtures("libraries")
def test_a_part_of_a_loader_knows_its_number_of_batches_where_the_whole_does() -> None:
    parts = [own_part(_DataLoader(range(11)), rank, 3) for rank in range(3)]
    assert [len(part) for part in parts] == [4, 4, 3]
    assert all(part.batch_size is None for part in parts)  # It gives whole batches as they are.
    assert not hasattr(own_part(_DataLoader(iter(range(11))), 0, 2).dataset, "__len__")


@pytest.mark.usefixtures("libraries")
def test_what_a_distributed_sampler_has_divided_is_not_divided_again() -> None:
    loader = _DataLoader(range(4), sampler=_DistributedSampler())
    assert own_part(loader, 1, 2) is loader
    by_batches = types.SimpleNamespace(sampler=_DistributedSampler())
    loader = _DataLoader(range(4), sampler=object(), batch_sampler=by_batches)
    assert own_part(loader, 1, 2) is loader
    assert is_divided(loader)
    assert not is_divided(_DataLoader(range(4)))


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(
    ("data", "warns"),
    [
        (_DataLoader(range(10)), True),
        (_DataLoader(iter(range(10))), False),  # Nobody knows how many there are.
        (_iter_dataset(range(10)), False),
    ],
)
def test_more_steps_than_a_workers_share_are_warned_of(
    data: Any, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    shard_fit_arguments({"x": data, "steps_per_epoch": 10}, 0, 2)
    assert ("has 5: give 5" in caplog.text) == warns


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(
    ("sampler", "seed", "warns"),
    [
        (_RandomSampler(), 2**63, True),
        (_SubsetRandomSampler(), 2**63, True),
        (_WeightedRandomSampler(), 2**63, True),
        (_RandomSampler(), 7, False),
        (_RandomSampler(generator=object()), 2**63, False),
        (None, 2**63, False),
    ],
)
def test_a_loader_that_shuffles_without_a_seed_is_warned_of_once(
    sampler: Any,
    seed: int,
    warns: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(sys.modules["torch"], "initial_seed", lambda: seed, raising=False)
    with caplog.at_level(logging.WARNING, "keras_strom"):
        for rank in range(2):
            own_part(_DataLoader(range(4), sampler=sampler), rank, 2)
    assert caplog.text.count("shuffles without a seed") == warns


def test_other_data_are_left_to_others() -> None:
    assert own_part([1, 2, 3], 0, 2) is None


def _of_torch() -> Any:
    data = importlib.import_module("torch.utils.data")
    return data.DataLoader(list(range(11)), batch_size=None)


def _of_grain() -> Any:
    return importlib.import_module("grain").MapDataset.source(list(range(11)))


@pytest.mark.parametrize(
    ("library", "make"),
    [
        ("torch", _of_torch),
        ("grain", _of_grain),
        ("grain", lambda: _of_grain().to_iter_dataset()),
    ],
)
def test_the_libraries_themselves_are_divided_alike(library: str, make: Callable[[], Any]) -> None:
    pytest.importorskip(library)
    for rank in range(3):
        assert [int(batch) for batch in own_part(make(), rank, 3)] == list(range(rank, 11, 3))
