"""Indexes of exported data that somebody has made up, or that are damaged."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import example, given, settings

from keras_strom import errors
from keras_strom.spark.data.columns import Columns, ColumnSpec
from keras_strom.spark.data.exported import TRAIN, VALIDATION, DataFile, ExportedData
from keras_strom.spark.data.store import Store
from tests.support.made_up import bent, damaged

pytestmark = pytest.mark.fuzz

INDEX = ExportedData(
    Store("/data"),
    Columns(("x", "z"), ("y",)),
    {
        "x": ColumnSpec("array", "float32", (2, 3)),
        "z": ColumnSpec("string", "string"),
        "y": ColumnSpec("scalar", "int64"),
    },
    {
        TRAIN: (DataFile("/data/a", (10, 20), 300), DataFile("/data/b", (5,), 50)),
        VALIDATION: (DataFile("/data/c", (2,), 10),),
    },
)


@settings(settings.get_profile("fuzz"), max_examples=80, deadline=None)
@given(bent(json.loads(INDEX.to_json())).map(json.dumps) | damaged(INDEX.to_json().encode()))
@example("[" * 100_000)
@example(json.dumps({**json.loads(INDEX.to_json()), "specs": []}))
@example(json.dumps({**json.loads(INDEX.to_json()), "splits": {"train": [{"path": 1}]}}))
def test_an_index_that_is_made_up_is_refused_or_can_be_read(text: str | bytes) -> None:
    try:
        found = ExportedData.from_json(text, INDEX.store)
    except errors.InvalidData as error:
        str(error)
        return
    for split in found.splits:
        with contextlib.suppress(errors.InvalidData):
            assert sum(piece.rows for piece in found.share(0, 1, split, seed=3)) == found.rows(
                split
            )
    assert ExportedData.from_json(found.to_json(), INDEX.store) == found
