"""DataFrames on their way to tf.data: exported, divided among workers, mixed, and read."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_strom import errors
from keras_strom.spark.columns import Columns, ColumnSpec
from keras_strom.spark.exported import DataFile, ExportedData
from keras_strom.spark.reader import gather, mix
from keras_strom.spark.store import Store

X_AND_Y = Columns(("x",), ("y",))
SCALARS = {"x": ColumnSpec("scalar", "float32"), "y": ColumnSpec("scalar", "int64")}


def data_of(rows: list[list[int]]) -> ExportedData:
    """Files with these row groups, which nobody reads."""
    files = tuple(DataFile(f"/f{i}", tuple(groups), 1) for i, groups in enumerate(rows))
    return ExportedData(Store.create("/"), X_AND_Y, SCALARS, {"train": files})


# ------------------------------------------------------------------ dividing and mixing

files_of_groups = st.lists(st.lists(st.integers(0, 40), max_size=5), min_size=1, max_size=6)


@settings(deadline=None)
@given(files_of_groups, st.integers(1, 9), st.none() | st.integers(0, 9))
def test_workers_read_every_row_once_and_equally_many(
    rows: list[list[int]], size: int, seed: int | None
) -> None:
    data = data_of(rows)
    if data.rows() < size:
        with pytest.raises(errors.InvalidData, match=f"for {size} workers"):
            data.share(0, size, seed=seed)
        return
    shares = [data.share(rank, size, seed=seed) for rank in range(size)]
    read = [
        (piece.path, piece.group, row)
        for piece in itertools.chain(*shares)
        for row in range(piece.begin, piece.end)
    ]
    expected = [
        (file.path, group, row)
        for file in data.splits["train"]
        for group, count in enumerate(file.rows)
        for row in range(count)
    ]
    assert sorted(read) == expected
    if seed is None:
        assert read == expected
    counts = [sum(piece.rows for piece in share) for share in shares]
    assert counts == [data.rows_of(rank, size) for rank in range(size)]
    assert max(counts) - min(counts) <= 1
    assert data.steps(size, 7) == -(-min(counts) // 7)


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), max_size=12), st.integers(1, 50), st.integers(0, 3))
def test_mixing_keeps_every_row_whole_and_once(sizes: list[int], window: int, seed: int) -> None:
    ends = np.cumsum([0, *sizes])
    blocks = [(np.arange(a, b), np.arange(a, b) * 10) for a, b in itertools.pairwise(ends.tolist())]
    for mixed in (
        list(mix(blocks, window, np.random.default_rng(seed))),
        list(gather(blocks, window)),
    ):
        rows = [row for block in mixed for row in zip(*block, strict=True)]
        assert sorted(rows) == [(i, i * 10) for i in range(int(ends[-1]))]
        if mixed:
            assert min(len(block[0]) for block in mixed[:-1] or mixed) >= min(1, int(ends[-1]))


def test_mixing_carries_rows_beyond_their_block() -> None:
    blocks = [(np.arange(i, i + 100),) for i in range(0, 1000, 100)]
    first = next(iter(mix(blocks, 400, np.random.default_rng(0))))[0]
    assert len(first) >= 200
    assert len(set(first // 100)) == 4


def test_an_index_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    run = Store.create(tmp_path).run("r")
    data = ExportedData(
        run.store,
        Columns(("x",), ("y",), "w"),
        {**SCALARS, "w": ColumnSpec("array", "float32", (2, 3))},
        {"train": (DataFile("a", (1, 2), 30),), "validation": ()},
    )
    data.save(run)
    assert ExportedData.load(run) == data
    for text in ("[]", "{}", "no json", '{"version": 99}'):
        with pytest.raises(errors.InvalidData):
            ExportedData.from_json(text, run.store)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (((), ("y",)), "must name a column"),
        (("x", ("y",)), "list of column names"),
        ((("x", "x"), ("y",)), "named twice: 'x'"),
        ((("x",), ("x",)), "named twice: 'x'"),
        (((1,), ("y",)), "1 is no column name"),
        ((("x",), (), "w"), "needs labels"),
    ],
)
def test_columns_that_make_no_example_are_refused(arguments: Any, words: str) -> None:
    with pytest.raises(errors.InvalidOption, match=words):
        Columns(*arguments)
