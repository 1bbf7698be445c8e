"""The codec on a device, and the same code in its emulation: libstrom.so's bytes and bits.

The whole contract of the codec runs on the device in test_codec_contract.py (`cuda`); here is what
is small enough for the emulation too, and what only the C interface shows.
"""

import concurrent.futures
import ctypes

import numpy as np
import pytest

from tests.support import cuda_library
from tests.support.codec_implementations import DEVICE_CODINGS, Oracle
from tests.support.cuda_library import (
    CallError,
    Cuda,
    Floats,
    NotHereError,
    Options,
    Result,
    Segment,
)

ORACLE = Oracle()


@pytest.fixture(scope="module", params=["device", "emulated"])
def cuda(request: pytest.FixtureRequest) -> Cuda:
    try:
        return cuda_library.device() if request.param == "device" else cuda_library.emulated()
    except NotHereError as reason:
        pytest.skip(str(reason))


def random_update(size: int, density: float, seed: int = 1) -> tuple[Floats, Floats]:
    """An update and a residual of which about `density` reaches 1."""
    random = np.random.default_rng(seed)
    update = np.where(random.random(size) < density, 3, 0.3) * random.uniform(-1, 1, size)
    return update.astype(np.float32), random.uniform(-0.5, 0.5, size).astype(np.float32)


@pytest.mark.parametrize("size", [1, 4097, 30_000])
@pytest.mark.parametrize("density", [0.0, 0.01, 1.0])
def test_messages_and_residuals_are_the_oracles(cuda: Cuda, size: int, density: float) -> None:
    update, residual = random_update(size, density)
    for coding, prefer in DEVICE_CODINGS:
        message, after, count = cuda.encode(update, residual, 1.0, coding, prefer)
        expected = ORACLE.encode(update, residual, 1.0, coding, prefer)
        assert (message, count) == (expected.message, expected.entries)
        np.testing.assert_array_equal(after, expected.residual)
        parameters = np.linspace(-1, 1, size, dtype=np.float32)
        np.testing.assert_array_equal(
            cuda.apply(message, parameters), ORACLE.apply(message, parameters)
        )


@pytest.mark.parametrize("size", [1, 4097, 30_000])
@pytest.mark.parametrize("iteration", [6, 7])
def test_bitmaps_of_four_states_are_applied(cuda: Cuda, size: int, iteration: int) -> None:
    update, residual = random_update(size, 0.3)
    message = ORACLE.encode(update, residual, 1.0, "bitmap4", iteration=iteration).message
    parameters = np.linspace(-1, 1, size, dtype=np.float32)
    np.testing.assert_array_equal(
        cuda.apply(message, parameters), ORACLE.apply(message, parameters)
    )


def test_encoding_in_four_states_is_refused_with_what_to_do(cuda: Cuda) -> None:
    with pytest.raises(CallError, match=r"bitmap4.*: encode on the CPU, or take coding bitmap"):
        cuda.encode(*random_update(100, 0.3), 1.0, "bitmap4")


def test_a_step_gives_the_variable_its_value_before_and_what_was_sent(cuda: Cuda) -> None:
    update, residual = random_update(9000, 0.05)
    before = np.random.default_rng(2).normal(size=9000).astype(np.float32)
    after = before + update
    places = [cuda.memory.put(array) for array in (before, after, before, residual)]
    result = Result()
    cuda.find_entries(9000, [Segment(0, 9000, *places)], Options(1, 1, 0, 1), result)
    (message,) = cuda.write_messages()
    expected = ORACLE.encode(after - before, residual, 1.0)
    assert message == expected.message
    assert (result.stepped, result.count) == (1, expected.entries)
    np.testing.assert_array_equal(cuda.memory.get(places[3], residual), expected.residual)
    np.testing.assert_array_equal(cuda.memory.get(places[2], before), ORACLE.apply(message, before))
    assert result.max_residual == np.abs(expected.residual).max()
    np.testing.assert_allclose(result.sum_residual, np.abs(expected.residual).sum(), rtol=1e-5)
    for place in places:
        cuda.memory.free(place)


def test_the_entries_stay_on_the_device_in_their_order(cuda: Cuda) -> None:
    update, residual = random_update(9000, 0.05)
    cuda.encode(update, residual, 1.0)
    codes, count = ctypes.c_void_p(), ctypes.c_int64()
    cuda.call("entries", cuda._codec, ctypes.byref(codes), ctypes.byref(count))
    total = update + residual
    indices = np.flatnonzero(np.abs(total) >= 1)
    found = cuda.memory.get(int(codes.value or 0), np.empty(count.value, np.uint32))
    np.testing.assert_array_equal(found, indices * 2 + np.signbit(total[indices]))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_update_that_is_not_finite_is_refused_in_words(cuda: Cuda, bad: float) -> None:
    update, residual = random_update(5000, 0.05)
    update[4321] = bad
    with pytest.raises(CallError, match=r"first in element 4321 \(1 in all variables\)") as refusal:
        cuda.encode(update, residual, 1.0)
    assert refusal.value.code == cuda_library.NOT_FINITE


def test_a_damaged_message_is_refused(cuda: Cuda) -> None:
    update, residual = random_update(5000, 0.05)
    message, _, _ = cuda.encode(update, residual, 1.0)
    with pytest.raises(CallError, match="checksum") as refusal:
        cuda.apply(message[:-1] + bytes([message[-1] ^ 1]), update)
    assert refusal.value.code == cuda_library.CORRUPT


def test_a_closed_codec_is_refused(cuda: Cuda) -> None:
    handle = ctypes.c_int64()
    cuda.call("codec_create", ctypes.c_int64(1 << 20), None, ctypes.byref(handle))
    cuda.call("codec_close", handle)
    with pytest.raises(CallError, match="closed"):
        cuda.call("codec_close", handle)


def test_a_message_limit_that_no_span_fits_is_refused(cuda: Cuda) -> None:
    with pytest.raises(CallError, match="max_message_bytes"):
        cuda.call("codec_create", ctypes.c_int64(1000), ctypes.byref(ctypes.c_int64()))


def test_a_thread_that_had_no_device_is_left_without_one(cuda: Cuda) -> None:
    """Else memory would be taken on the first card, which another worker may use."""
    if not isinstance(cuda.memory, cuda_library.CudaRuntime):
        pytest.skip("the emulation has no contexts")
    driver = ctypes.CDLL("libcuda.so.1")
    segment = Segment(0, 4096, None, None, None, None, None)

    def context_after_use() -> int | None:
        handle, context = ctypes.c_int64(), ctypes.c_void_p()
        cuda.call("codec_create", ctypes.c_int64(1 << 20), None, ctypes.byref(handle))
        cuda.call("reserve", handle, ctypes.byref(segment), ctypes.c_int64(1))
        cuda.call("codec_close", handle)
        assert driver.cuCtxGetCurrent(ctypes.byref(context)) == 0
        return context.value

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        assert thread.submit(context_after_use).result() is None


def test_the_library_says_where_there_is_no_device() -> None:
    try:
        library = ctypes.CDLL(str(cuda_library.library_path()))
    except NotHereError as reason:
        pytest.skip(str(reason))
    count = ctypes.c_int32(-1)
    assert library.strom_cuda_device_count(ctypes.byref(count)) == 0
    if count.value > 0:
        pytest.skip("there is a device")
    library.strom_cuda_last_error.restype = ctypes.c_char_p
    handle = ctypes.c_int64()
    assert library.strom_cuda_codec_create(ctypes.c_int64(1 << 20), ctypes.byref(handle)) < 0
    assert b"no CUDA device" in library.strom_cuda_last_error()
