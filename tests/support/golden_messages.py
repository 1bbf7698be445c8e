"""The example messages in tests/native/testdata, which every implementation must agree on.

They are written by the NumPy oracle; `python -m tests.support.golden_messages` makes them anew.
Only a new version of the format may change those that are there.
"""

from __future__ import annotations

import json
import pathlib

import numpy as np
import numpy.typing as npt

from tests.support import message_oracle as oracle

TESTDATA = pathlib.Path(__file__).parents[1] / "native" / "testdata"
INDEX = TESTDATA / "messages.json"


def scattered(elements: int, density: float) -> tuple[oracle.Integers, npt.NDArray[np.bool_]]:
    """Entries at places that look random and are the same everywhere: no random generator."""
    numbers = np.arange(elements, dtype=np.uint64)
    for _ in range(3):
        numbers = (numbers * np.uint64(0x9E3779B97F4A7C15) + np.uint64(12345)) % np.uint64(2**63)
        numbers ^= numbers >> np.uint64(29)
    indices = np.flatnonzero(numbers % np.uint64(10**6) < np.uint64(int(density * 10**6)))
    return indices.astype(np.int64), numbers[indices] >> np.uint64(40) & np.uint64(1) == 1


def states(elements: int, iteration: int) -> oracle.Integers:
    """What elements send, in halves: some in every way, a span of them nothing."""
    made = np.zeros(elements, np.int64)
    for density, full in ((0.4, False), (0.2, True)):
        indices, negative = scattered(elements, density)
        signs = 1 - 2 * negative.astype(np.int64)
        made[indices] = 2 * signs if full else oracle.half_signs(elements, iteration)[indices]
    made[2048:4096] = 0
    return made


def messages() -> dict[str, bytes]:
    """The examples by name."""
    made = {}
    for name, elements, density in (
        ("one_element", 1, 1.0),
        ("empty", 57000, 0.0),
        ("sparse", 57000, 0.01),
        ("spans", 100001, 0.05),
        ("dense", 20000, 0.6),
        ("all", 4097, 1.0),
        ("very_sparse", 150000, 1e-4),
    ):
        header = oracle.Header(threshold=0.001, elements=elements, iteration=1234)
        made[name] = oracle.encode(header, *scattered(elements, density))
    header = oracle.Header(threshold=0.5, elements=5000, iteration=7, value=0.75)
    made["value"] = oracle.encode(header, *scattered(5000, 0.1))
    indices, negative = scattered(57000, 0.01)
    values = np.float32(2.0**-10) * (1 + indices // 9000 % 4).astype(np.float32)
    header = oracle.Header(2.0**-10, 57000, 1234, runs=oracle.runs_of(values))
    made["table"] = oracle.encode(header, indices, negative)
    indices, negative = scattered(6000, 0.5)
    raw = np.zeros(6000, np.float32)
    raw[indices] = np.where(negative, -1, 1) / (indices + 1)
    raw[2048:4096] = 0
    made["raw"] = oracle.encode_raw(oracle.Header(0, 6000, 99), raw, log2_span=11)
    header = oracle.Header(threshold=0.001, elements=5003, iteration=7)
    made["four_states"] = oracle.encode_bitmap4(header, states(5003, 7))
    return made


def index() -> str:
    """One example a line: what decoding it gives, named by its CRC32C."""
    lines = []
    for name, message in messages().items():
        header, count, sums = oracle.decode(message)
        line = {
            "file": f"{name}.bin",
            "elements": header.elements,
            "count": count,
            "decoded_crc32c": oracle.crc32c(sums.astype("<f4").tobytes()),
        }
        lines.append(json.dumps(line))
    return "[\n" + ",\n".join(lines) + "\n]\n"


if __name__ == "__main__":
    TESTDATA.mkdir(exist_ok=True)
    for example, content in messages().items():
        (TESTDATA / f"{example}.bin").write_bytes(content)
    INDEX.write_text(index())
