"""Checkpoints' parts and donated state that somebody has made up, or that are damaged."""

from __future__ import annotations

import contextlib
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_strom import errors
from keras_strom.recovery import packed_arrays
from keras_strom.recovery.checkpoint_files import CheckpointFolder, Part
from keras_strom.recovery.donation import Donation
from keras_strom.recovery.resume import DataPosition
from tests.support.made_up import VALUES, bent, damaged

pytestmark = pytest.mark.fuzz

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros((0, 4), np.int64)}
PART = Part(0, 2, 1, DataPosition(3, 7), 10, 37, (1e-3,), ARRAYS).to_bytes()
DONATION = Donation(DataPosition(3, 7), (1e-3,), ARRAYS).to_bytes()


def sealed(data: bytes) -> bytes:
    """With a checksum that fits, where there is a place for one."""
    try:
        place = packed_arrays._place_of_checksum(data)
    except ValueError:
        return data
    zeroed = data[:place] + b"00000000" + data[place + 8 :]
    return data[:place] + b"%08x" % zlib.crc32(zeroed) + data[place + 8 :]


@st.composite
def made_up(draw: st.DrawFn, honest: bytes) -> bytes:
    """Other values, other descriptions of arrays, or other bytes."""
    how = draw(st.integers(0, 2))
    if how == 0:
        return draw(damaged(honest))
    if how == 1:
        return sealed(draw(damaged(honest)))
    header = json.loads(packed_arrays._header(honest))
    arrays = honest[8 + int.from_bytes(honest[:8], "little") :]
    if draw(st.booleans()):
        values = json.loads(header["__metadata__"]["values"])
        header["__metadata__"]["values"] = json.dumps(draw(bent(values)))
    else:
        header = draw(bent(header))
    text = json.dumps(header, separators=(",", ":")).encode()
    return sealed(len(text).to_bytes(8, "little") + text + arrays)


@settings(settings.get_profile("fuzz"), max_examples=80, deadline=None)
@given(made_up(PART))
def test_a_part_is_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(errors.CorruptMessage, errors.Refused):
        part = Part.from_bytes(data)
        assert Part.from_bytes(part.to_bytes()).steps == part.steps


@settings(settings.get_profile("fuzz"), max_examples=80, deadline=None)
@given(made_up(DONATION))
def test_a_donation_is_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(errors.CorruptMessage, errors.Refused):
        donation = Donation.from_bytes(data)
        assert Donation.from_bytes(donation.to_bytes()).place == donation.place


@settings(settings.get_profile("fuzz"), max_examples=40, deadline=None)
@given(VALUES.map(json.dumps).map(str.encode) | damaged(b'{"epoch": 3}'))
@example(b'{"epoch": 1e400}')
@example(b"[" * 100_000)
def test_a_masters_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    folder: Any = tmp_path_factory.mktemp("checkpoints")
    Path(folder, "master.json").write_bytes(content)
    with contextlib.suppress(errors.StoreUnavailable):
        assert CheckpointFolder(str(folder), kept=1, workers=1).epoch > 0
