"""What every implementation of the codec keeps: the law that nothing is lost, first of all.

The NumPy oracle judges: messages, residuals and counts are its own to the last bit.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_strom import codec
from keras_strom._native import codec as native
from tests.support.codec_implementations import (
    CODINGS,
    IMPLEMENTATIONS,
    LEAST_OF_BITMAP4,
    Encoded,
    Floats,
    Implementation,
    Oracle,
    Unavailable,
)

ORACLE = Oracle()
LARGEST = float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)


@pytest.fixture(scope="session", params=IMPLEMENTATIONS)
def implementation(request: pytest.FixtureRequest) -> Implementation:
    try:
        return IMPLEMENTATIONS[request.param]()
    except Unavailable as reason:
        pytest.skip(str(reason))


def floats(values: Sequence[float] | npt.NDArray[np.generic]) -> Floats:
    return np.asarray(values, np.float32)


def random_case(size: int, density: float, seed: int) -> tuple[Floats, Floats, float]:
    """An update, a residual below the threshold, and a threshold that `density` of sums reach."""
    random = np.random.default_rng(seed)
    threshold = float(np.float32(10 ** random.uniform(-4, 2)))
    sums = random.uniform(0, 0.99, size)
    sums = np.where(random.random(size) < density, sums * 3 + 1.01, sums)
    sums *= threshold * random.choice([-1, 1], size)
    residual = floats(random.uniform(-0.99, 0.99, size) * threshold)
    return floats(sums) - residual, residual, threshold


def assert_nothing_is_lost(update: Floats, before: Floats, after: Floats, decoded: Floats) -> None:
    """residual_before + update == residual_after + decoded, but for two roundings of the sum."""
    had = before.astype(np.float64) + update
    has = after.astype(np.float64) + decoded.reshape(after.shape)
    assert (np.abs(had - has) <= np.abs(had) * 2**-23 + SMALLEST).all()


def assert_same(found: Encoded, expected: Encoded) -> None:
    assert found.message == expected.message
    assert found.entries == expected.entries
    np.testing.assert_array_equal(found.residual, expected.residual)
    np.testing.assert_array_equal(np.signbit(found.residual), np.signbit(expected.residual))


def check(
    implementation: Implementation, update: Floats, residual: Floats, threshold: float
) -> None:
    """Every coding: as the oracle has it, nothing lost, and read back by both."""
    tau = np.float32(threshold)
    for coding, prefer in implementation.codings:
        if coding == "bitmap4" and tau < LEAST_OF_BITMAP4:
            continue
        sizes = {np.float32(0), tau, tau / 2 if coding == "bitmap4" else tau}
        for iteration in (6, 7) if coding == "bitmap4" else (7,):
            options = (threshold, coding, prefer, iteration)
            given_update = update.copy()
            found = implementation.encode(given_update, residual.copy(), *options)
            np.testing.assert_array_equal(given_update, update)
            assert_same(found, ORACLE.encode(update, residual, *options))
            decoded = implementation.decode(found.message, update.size)
            np.testing.assert_array_equal(decoded, ORACLE.decode(found.message, update.size))
            assert np.count_nonzero(decoded) == found.entries
            assert set(np.abs(decoded)) <= sizes
            assert_nothing_is_lost(update, residual, found.residual, decoded)


sizes = st.one_of(
    st.integers(1, 300),
    st.sampled_from([2047, 2048, 2049, 4095, 4097, 65_535, 65_537]),
    st.integers(1, 40_000),
)
densities = st.one_of(st.sampled_from([0.0, 1e-4, 1e-3, 0.01, 0.5, 1.0]), st.floats(0, 1))
seeds = st.integers(0, 2**32 - 1)
half = st.floats(-LARGEST / 2, LARGEST / 2, width=32)


@settings(max_examples=25, deadline=None)
@given(sizes, densities, seeds)
def test_nothing_is_lost_whatever_the_coding(
    implementation: Implementation, size: int, density: float, seed: int
) -> None:
    check(implementation, *random_case(size, density, seed))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(half, half), min_size=1), st.floats(SMALLEST, LARGEST, width=32))
def test_any_finite_numbers_are_encoded(
    implementation: Implementation, pairs: list[tuple[float, float]], threshold: float
) -> None:
    update, residual = floats(pairs).T.copy()
    check(implementation, update, residual, threshold)


@settings(max_examples=10, deadline=None)
@given(
    st.integers(1, 5000),
    st.lists(st.tuples(densities, st.sampled_from(CODINGS)), max_size=6),
    seeds,
)
def test_nothing_is_lost_when_the_coding_switches(
    implementation: Implementation, size: int, steps: list[tuple[float, tuple[str, str]]], seed: int
) -> None:
    random = np.random.default_rng(seed)
    residual = np.zeros(size, np.float32)
    parameters = np.zeros(size, np.float32)
    wanted = np.zeros(size)
    for iteration, (density, options) in enumerate(steps):
        coding, prefer = options if options in implementation.codings else ("auto", "size")
        update = floats(
            np.where(random.random(size) < density, 1.0, 0.01) * random.normal(size=size)
        )
        wanted += update
        encoded = implementation.encode(
            *(update, residual, 0.5, coding, prefer, iteration)  # type: ignore[arg-type]
        )
        residual = encoded.residual
        parameters = implementation.apply(encoded.message, parameters)
    np.testing.assert_allclose(
        parameters.astype(np.float64) + residual, wanted, atol=1e-6 * (len(steps) + 1)
    )


@pytest.mark.parametrize("size", [1, 2, 15, 17, 63, 64, 65, 4095, 4096, 4097, 2**21 - 1, 2**21 + 3])
def test_every_element_is_reached_up_to_an_odd_tail(
    implementation: Implementation, size: int
) -> None:
    update = np.zeros(size, np.float32)
    update[[0, size // 2, size - 1]] = [2, -2, 2]
    encoded = implementation.encode(update, np.zeros_like(update), 1.0)
    np.testing.assert_array_equal(implementation.decode(encoded.message, size), update / 2)
    np.testing.assert_array_equal(encoded.residual, update / 2)


@pytest.mark.parametrize(("value", "entries"), [(0.0, 0), (0.999, 0), (-1.0, 70_001), (7, 70_001)])
def test_none_and_all_over_the_threshold(
    implementation: Implementation, value: float, entries: int
) -> None:
    update = np.full(70_001, value, np.float32)
    residual = np.zeros_like(update)
    check(implementation, update, residual, 1.0)
    assert implementation.encode(update, residual, 1.0).entries == entries


@pytest.mark.parametrize(
    "values",
    [
        [0.0, -0.0, 1.0, -1.0],
        [SMALLEST, -SMALLEST, 0.0],
        np.nextafter(np.float32(1), np.float32([0, 2])),
        np.nextafter(np.float32(-1), np.float32([0, -2])),
        [LARGEST, -LARGEST],
    ],
)
@pytest.mark.parametrize("threshold", [1.0, SMALLEST, LARGEST])
def test_numbers_at_the_edge(
    implementation: Implementation, values: list[float], threshold: float
) -> None:
    update = floats(values)
    check(implementation, update, np.zeros_like(update), threshold)


def test_each_coding_is_the_one_that_was_asked_for() -> None:
    update, residual, threshold = random_case(40_000, 0.02, seed=1)
    for coding in ("sparse", "bitmap", "bitmap4"):
        found = native.describe(ORACLE.encode(update, residual, threshold, coding).message)
        spans = {
            "sparse": found.sparse_spans,
            "bitmap": found.bitmap_spans,
            "bitmap4": found.bitmap4_spans,
        }
        assert spans.pop(coding) > 0
        assert not any(spans.values())


def test_shapes_are_kept(implementation: Implementation) -> None:
    update, residual, threshold = random_case(24, 0.5, seed=2)
    shape = (2, 3, 4)
    encoded = implementation.encode(update.reshape(shape), residual.reshape(shape), threshold)
    assert encoded.residual.shape == shape
    parameters = np.ones(shape, np.float32)
    assert implementation.apply(encoded.message, parameters).shape == shape


def test_applying_adds_to_what_is_there(implementation: Implementation) -> None:
    update, residual, threshold = random_case(5000, 0.3, seed=3)
    encoded = implementation.encode(update, residual, threshold)
    start = np.random.default_rng(4).normal(size=5000).astype(np.float32)
    expected = start + implementation.decode(encoded.message, 5000)
    np.testing.assert_array_equal(implementation.apply(encoded.message, start), expected)


# ------------------------------------------------------------------ halves


@pytest.fixture
def with_halves(implementation: Implementation) -> Implementation:
    if ("bitmap4", "size") not in implementation.codings:
        pytest.skip("it does not encode with bitmap4")
    return implementation


def test_a_half_leaves_where_it_has_the_sign_of_the_step(with_halves: Implementation) -> None:
    update = floats([0.5, 0.5, -0.5, -0.5, 0.75, 0.75, 0.4, -1.0, 1.5])
    for iteration, sent in (
        (0, [0.5, 0, 0, -0.5, 0.5, 0, 0, -1, 1]),
        (1, [0, 0.5, -0.5, 0, 0, 0.5, 0, -1, 1]),
    ):
        residual = np.zeros_like(update)
        encoded = with_halves.encode(update, residual, 1.0, "bitmap4", iteration=iteration)
        np.testing.assert_array_equal(with_halves.decode(encoded.message, 9), floats(sent))
        np.testing.assert_array_equal(encoded.residual, update - floats(sent))
        assert encoded.entries == np.count_nonzero(sent)


@pytest.mark.parametrize("drift", [0.11, -0.11])
@pytest.mark.parametrize("first", [0, 1])
def test_halves_favour_neither_sign(with_halves: Implementation, drift: float, first: int) -> None:
    """What drifts slowly up or down is sent in full, on every element, whenever the steps begin."""
    size, steps = 67, 100
    update = np.full(size, drift, np.float32)
    residual = np.zeros(size, np.float32)
    sent = np.zeros(size, np.float32)
    halves = 0
    for iteration in range(first, first + steps):
        encoded = with_halves.encode(update, residual, 1.0, "bitmap4", iteration=iteration)
        residual = encoded.residual
        added = with_halves.decode(encoded.message, size)
        halves += np.count_nonzero(np.abs(added) == 0.5)
        sent += added
    assert 0.5 * halves == np.abs(sent).sum() > 0
    # A half waits for its step at most: what is left is below it and one step's drift.
    assert (np.abs(residual) < 0.5 + 2 * abs(drift)).all()
    np.testing.assert_allclose(sent, steps * drift - residual, atol=1e-4)


def test_both_signs_send_the_same(with_halves: Implementation) -> None:
    """Of an update and its negative, the one a step later is the other's mirror image."""
    update, residual, threshold = random_case(5000, 0.2, seed=7)
    up = with_halves.encode(update, residual.copy(), threshold, "bitmap4", iteration=3)
    down = with_halves.encode(-update, -residual, threshold, "bitmap4", iteration=4)
    np.testing.assert_array_equal(up.residual, -down.residual)
    np.testing.assert_array_equal(
        with_halves.decode(up.message, 5000), -with_halves.decode(down.message, 5000)
    )


def test_a_threshold_whose_half_is_not_exact_is_refused(with_halves: Implementation) -> None:
    update, residual = floats([1.0, 2.0]), floats([0.0, 0.0])
    below = float(np.nextafter(np.float32(LEAST_OF_BITMAP4), np.float32(0)))
    with pytest.raises(with_halves.invalid):
        with_halves.encode(update, residual, below, "bitmap4")
    np.testing.assert_array_equal(residual, [0, 0])
    tiny = floats([LEAST_OF_BITMAP4 / 2, LEAST_OF_BITMAP4])
    encoded = with_halves.encode(tiny, residual, LEAST_OF_BITMAP4, "bitmap4")
    np.testing.assert_array_equal(with_halves.decode(encoded.message, 2), tiny)


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("update", "residual", "threshold"),
    [
        ([], [], 1.0),
        ([math.nan], [0], 1.0),
        ([0, math.inf, 3], [1, 1, 1], 1.0),
        ([*[5.0] * 70_000, -math.inf], [0.0] * 70_001, 1.0),
        ([0, 3, 3], [0, math.nan, 0], 1.0),
        ([3, LARGEST], [0, LARGEST], 1.0),
        ([2, 2], [0, 0, 0], 1.0),
        ([2, 2], [0, 0], 0.0),
        ([2, 2], [0, 0], -1.0),
        ([2, 2], [0, 0], math.nan),
        ([2, 2], [0, 0], math.inf),
    ],
)
def test_what_cannot_be_encoded_is_refused_and_nothing_changes(
    implementation: Implementation, update: list[float], residual: list[float], threshold: float
) -> None:
    given_update, given_residual = floats(update), floats(residual)
    with pytest.raises(implementation.invalid):
        implementation.encode(given_update, given_residual, threshold)
    np.testing.assert_array_equal(given_update, floats(update))
    np.testing.assert_array_equal(given_residual, floats(residual))


@pytest.mark.parametrize("coding", ["auto", "bitmap4"])
def test_messages_cut_short_or_altered_are_refused_and_nothing_changes(
    implementation: Implementation, coding: codec.Coding
) -> None:
    message = ORACLE.encode(*random_case(300, 0.05, seed=5), coding).message
    parameters = np.ones(300, np.float32)
    damaged = [message[:size] for size in range(len(message))]
    damaged += [
        message[:place] + bytes([message[place] ^ 0x81]) + message[place + 1 :]
        for place in range(len(message))
    ]
    for bytes_ in [*damaged, message + b"\0"]:
        with pytest.raises(implementation.corrupt):
            implementation.apply(bytes_, parameters)
    np.testing.assert_array_equal(parameters, np.ones(300))


@pytest.mark.parametrize("size", [0, 1, 299, 301])
def test_a_message_of_another_size_is_refused_and_nothing_changes(
    implementation: Implementation, size: int
) -> None:
    message = implementation.encode(*random_case(300, 0.05, seed=6)).message
    parameters = np.ones(size, np.float32)
    with pytest.raises(implementation.invalid):
        implementation.apply(message, parameters)
    np.testing.assert_array_equal(parameters, np.ones(size))
