"""The native codec against the NumPy oracle: same bytes out, same numbers in, no mass lost."""

import json

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_strom import errors
from keras_strom._native import codec
from tests.support import golden_messages
from tests.support import message_oracle as oracle

Floats = npt.NDArray[np.float32]


def native_encode(update: Floats, residual: Floats, threshold: float) -> tuple[bytes, int]:
    """The message of `residual + update`, and its count; `residual` keeps the rest."""
    return codec.encode(update, residual, residual, threshold)


def native_decode(message: bytes, elements: int) -> Floats:
    """What `message` adds to zeros."""
    parameters = np.zeros(elements, np.float32)
    codec.apply(message, parameters)
    return parameters


def entries(elements: int, density: float, seed: int) -> Floats:
    """+1, -1 or 0 for each element."""
    random = np.random.default_rng(seed)
    signs = random.choice(np.array([-1, 1], np.float32), elements)
    return np.where(random.random(elements) < density, signs, np.float32(0)).astype(np.float32)


sizes = st.one_of(
    st.integers(0, 200), st.sampled_from([2047, 2048, 2049, 65535, 65537]), st.integers(0, 150_000)
)
densities = st.one_of(st.sampled_from([0.0, 1e-4, 1e-3, 0.01, 0.5, 1.0]), st.floats(0, 1))
seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=80, deadline=None)
@given(sizes, densities, seeds)
def test_native_and_oracle_write_the_same_bytes(elements: int, density: float, seed: int) -> None:
    update = entries(elements, density, seed)
    residual = np.zeros_like(update)
    message, count = native_encode(update, residual, 1.0)
    indices = np.flatnonzero(update).astype(np.int64)
    assert count == len(indices)
    assert message == oracle.encode(oracle.Header(1.0, elements), indices, update[indices] < 0)
    assert not residual.any()


@settings(max_examples=80, deadline=None)
@given(sizes, densities, seeds, st.sampled_from([1e-3, 0.1, 3.0]))
def test_no_mass_is_lost(elements: int, density: float, seed: int, threshold: float) -> None:
    random = np.random.default_rng(seed)
    update = random.normal(0, threshold, elements).astype(np.float32)
    update[random.random(elements) > density] = 0
    before = random.uniform(-0.9 * threshold, 0.9 * threshold, elements).astype(np.float32)
    after = before.copy()
    message, count = native_encode(update, after, threshold)
    header, decoded_count, decoded = oracle.decode(message)
    assert (header.elements, decoded_count) == (elements, count)
    np.testing.assert_array_equal(decoded, native_decode(message, elements))
    total = before.astype(np.float64) + update
    np.testing.assert_allclose(after.astype(np.float64) + decoded, total, atol=1e-6 * threshold)
    np.testing.assert_array_equal(decoded != 0, np.abs(before + update) >= np.float32(threshold))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40_000), densities, seeds, st.integers(11, 21), st.floats(width=32).map(abs))
def test_native_reads_what_the_oracle_writes(
    elements: int, density: float, seed: int, log2_span: int, value: float
) -> None:
    if not np.isfinite(value):
        value = 1.0
    signs = entries(elements, density, seed)
    indices = np.flatnonzero(signs).astype(np.int64)
    header = oracle.Header(0.25, elements, 2**34, value)
    message = oracle.encode(header, indices, signs[indices] < 0, log2_span)
    np.testing.assert_array_equal(native_decode(message, elements), signs * np.float32(value))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(100, 40_000),
    st.floats(1e-3, 1),
    seeds,
    st.integers(11, 21),
    st.lists(st.floats(2.0**-126, 2.0**100, width=32), min_size=2, max_size=40, unique=True),
)
def test_native_reads_tables_of_values(
    elements: int, density: float, seed: int, log2_span: int, values: list[float]
) -> None:
    signs = entries(elements, density, seed)
    signs[[0, -1]] = 1, -1
    held = np.array([oracle.table_value(value) for value in values], np.float32)
    borders = np.sort(np.random.default_rng(seed).integers(0, elements, len(values) - 1))
    magnitudes = held[np.searchsorted(borders, np.arange(elements), side="right")]
    indices = np.flatnonzero(signs).astype(np.int64)
    runs = oracle.runs_of(magnitudes[indices])
    header = oracle.Header(0.25, elements, 7, runs=runs)
    if len(runs) < 2:
        return
    message = oracle.encode(header, indices, signs[indices] < 0, log2_span)
    np.testing.assert_array_equal(native_decode(message, elements), signs * magnitudes)
    for end in {0, 13, len(message) // 2, len(message) - 1}:
        with pytest.raises(errors.CorruptMessage):
            native_decode(message[:end], elements)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40_000), densities, seeds, st.integers(11, 16))
def test_native_reads_raw_spans(elements: int, density: float, seed: int, log2_span: int) -> None:
    raw = entries(elements, density, seed) * np.float32(0.3)
    message = oracle.encode_raw(oracle.Header(0, elements), raw, log2_span)
    np.testing.assert_array_equal(native_decode(message, elements), raw)


@settings(max_examples=400, deadline=None)
@given(
    st.one_of(
        st.sampled_from(sorted(golden_messages.messages().items())),
        st.just(("table", golden_messages.messages()["table"])),
    ),
    st.data(),
)
def test_both_refuse_the_same_damaged_messages(
    example: tuple[str, bytes], data: st.DataObject
) -> None:
    damaged = bytearray(example[1])
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.integers(0, min(len(damaged), 60) - 1))
        damaged[place] = data.draw(st.integers(0, 255))
    damaged[4:8] = oracle.crc32c(bytes(damaged[:4] + damaged[8:])).to_bytes(4, "little")
    elements = next(
        line["elements"]
        for line in json.loads(golden_messages.INDEX.read_text())
        if line["file"] == f"{example[0]}.bin"
    )
    try:
        header, _, sums = oracle.decode(bytes(damaged))
    except oracle.MalformedError:
        sums = None
    except MemoryError:  # a flat space that fits in no memory: nothing to compare
        return
    if sums is None or header.elements != elements:
        with pytest.raises(errors.StromError):
            native_decode(bytes(damaged), elements)
    else:
        np.testing.assert_array_equal(native_decode(bytes(damaged), elements), sums)


@pytest.mark.parametrize("name", sorted(golden_messages.messages()))
def test_examples_are_what_the_oracle_writes_and_the_native_codec_reads(name: str) -> None:
    stored = (golden_messages.TESTDATA / f"{name}.bin").read_bytes()
    assert stored == golden_messages.messages()[name]
    header, _, sums = oracle.decode(stored)
    np.testing.assert_array_equal(native_decode(stored, header.elements), sums)


def test_the_index_of_the_examples_is_current() -> None:
    assert golden_messages.INDEX.read_text() == golden_messages.index()


def test_an_update_that_is_not_finite_is_refused() -> None:
    update = np.array([1, np.nan, np.inf], np.float32)
    residual = np.zeros(3, np.float32)
    with pytest.raises(
        errors.StromError, match="NaN or infinite in 2 of 3 elements, the first at index 1"
    ):
        native_encode(update, residual, 0.5)
    np.testing.assert_array_equal(residual, [0, 0, 0])


def test_a_message_for_another_size_is_refused() -> None:
    message = oracle.encode(oracle.Header(1.0, 10), np.array([3]), np.array([True]))
    with pytest.raises(errors.StromError, match="is of 10 parameters and does not fit 11"):
        native_decode(message, 11)
