"""keras_strom.codec: what it accepts, what it refuses and in which words. The numbers themselves
are judged by tests/codec/test_codec_contract.py.
"""

import doctest
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from keras_strom import codec, errors
from keras_strom._native import codec as native

Floats = npt.NDArray[np.float32]
UPDATE = np.array([0.25, -1.5, 0.5, 2.0], np.float32)


def residual_of(update: Floats) -> Floats:
    return np.full_like(update, 0.125)


def read_only() -> Floats:
    array = residual_of(UPDATE)
    array.flags.writeable = False
    return array


def unaligned() -> Floats:
    return np.frombuffer(bytearray(17), np.uint8)[1:].view(np.float32)


def test_the_examples_in_the_documentation_run() -> None:
    for module in (codec, native):
        failed, run = doctest.testmod(module)
        assert failed == 0
        assert run > 0 or module is native


def test_a_message_tells_what_it_is() -> None:
    residual = residual_of(UPDATE)
    message = codec.encode(UPDATE, residual, 1.0)
    assert (message.size, message.count, message.threshold) == (4, 2, 1.0)
    assert message.density == 0.5
    assert message.bits_per_entry == 8 * len(message.bytes) / 2
    assert codec.read(message.bytes) == message
    assert "bytes" not in repr(message)


def test_a_message_without_entries_is_a_message() -> None:
    residual = residual_of(UPDATE)
    message = codec.encode(UPDATE, residual, 100.0)
    assert (message.count, message.density) == (0, 0)
    assert math.isinf(message.bits_per_entry)
    np.testing.assert_array_equal(residual, UPDATE + np.float32(0.125))
    np.testing.assert_array_equal(codec.decode(message.bytes, 4), np.zeros(4))


@pytest.mark.parametrize("shape", [(), (24,), (4, 6), (2, 1, 3, 4)])
def test_arrays_of_any_shape_are_taken_as_flat(shape: tuple[int, ...]) -> None:
    update = np.arange(1, 1 + math.prod(shape), dtype=np.float32).reshape(shape)
    residual = np.zeros(shape, np.float32)
    message = codec.encode(update, residual, 10)
    flat = np.zeros(update.size, np.float32)
    assert codec.encode(update.reshape(-1).copy(), flat, 10) == message
    np.testing.assert_array_equal(residual.reshape(-1), flat)
    parameters = np.ones(shape, np.float32)
    codec.apply(message.bytes, parameters)
    added = codec.decode(message.bytes, update.size)
    np.testing.assert_array_equal(parameters.reshape(-1), 1 + added)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_messages_come_as_any_kind_of_bytes(kind: Callable[[bytes], Any]) -> None:
    message = codec.encode(UPDATE, residual_of(UPDATE), 1.0)
    np.testing.assert_array_equal(codec.decode(kind(message.bytes), 4), [0, -1, 0, 1])
    assert codec.read(kind(message.bytes)) == message


def test_the_threshold_is_what_float32_makes_of_it() -> None:
    message = codec.encode(UPDATE, residual_of(UPDATE), 0.1)
    assert message.threshold == float(np.float32(0.1))


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("update", "words"),
    [
        ([1.0, 2.0], "update is of type list; it must be a NumPy array of float32"),
        (UPDATE.astype(np.float64), r"update is float64; .*update.astype\(numpy.float32\)"),
        (UPDATE.astype(">f4"), "update is >f4; it must be float32"),
        (UPDATE[::2], r"update is not C-contiguous; pass numpy.ascontiguousarray\(update\)"),
        (np.asfortranarray(np.ones((2, 2), np.float32)), "update is not C-contiguous"),
        (np.zeros((3, 0), np.float32), r"update is empty, shape \(3, 0\)"),
        (np.ma.masked_less(UPDATE, 0), r"update is a masked array, .*update.filled\(0\)"),
        (unaligned(), r"update is not aligned in memory; pass update.copy\(\)"),
    ],
)
def test_an_update_that_cannot_be_read_in_place_is_refused(update: Any, words: str) -> None:
    residual = residual_of(UPDATE)
    with pytest.raises(errors.InvalidOption, match=words):
        codec.encode(update, residual, 1.0)
    np.testing.assert_array_equal(residual, residual_of(UPDATE))


@pytest.mark.parametrize(
    ("residual", "words"),
    [
        ([0.0] * 4, "residual is of type list"),
        (np.zeros(4), "residual is float64"),
        (np.zeros(8, np.float32)[::2], "residual is not C-contiguous"),
        (read_only(), r"residual is read-only and changes in place; pass residual.copy\(\)"),
        (np.zeros(5, np.float32), r"the update has shape \(4,\) and the residual \(5,\)"),
        (np.zeros((2, 2), np.float32), r"the update has shape \(4,\) and the residual \(2, 2\)"),
        (UPDATE, r"update and residual share memory; .*update.copy\(\)"),
    ],
)
def test_a_residual_that_cannot_change_in_place_is_refused(residual: Any, words: str) -> None:
    before = np.array(residual)
    with pytest.raises(errors.InvalidOption, match=words):
        codec.encode(UPDATE, residual, 1.0)
    np.testing.assert_array_equal(residual, before)


def test_memory_that_overlaps_in_part_is_refused() -> None:
    memory = np.zeros(6, np.float32)
    with pytest.raises(errors.InvalidOption, match="share memory"):
        codec.encode(memory[:4], memory[2:], 1.0)


@pytest.mark.parametrize("threshold", [0, 0.0, -1.0, math.nan, math.inf, 1e-60, 1e60, 10**400])
def test_a_threshold_that_is_not_over_0_and_finite_is_refused(threshold: float) -> None:
    residual = residual_of(UPDATE)
    with pytest.raises(errors.InvalidOption, match="it must be over 0 and finite as float32"):
        codec.encode(UPDATE, residual, threshold)
    np.testing.assert_array_equal(residual, residual_of(UPDATE))


@pytest.mark.parametrize("threshold", [None, "1", True, np.True_, np.ones(4), 1j, np.complex64(1)])
def test_a_threshold_that_is_no_number_is_refused(threshold: Any) -> None:
    with pytest.raises(errors.InvalidOption, match=r"the threshold is of type .* a number"):
        codec.encode(UPDATE, residual_of(UPDATE), threshold)


def test_unknown_codings_and_preferences_are_refused_with_the_ones_there_are() -> None:
    wrong: Any = np.array(["auto", "sparse"])
    with pytest.raises(errors.InvalidOption, match=r"coding is array.*it must be one of"):
        codec.encode(UPDATE, residual_of(UPDATE), 1.0, coding=wrong)
    wrong = "huffman"
    with pytest.raises(
        errors.InvalidOption, match=r"'huffman'; .*'auto', 'sparse', 'bitmap', 'bitmap4'"
    ):
        codec.encode(UPDATE, residual_of(UPDATE), 1.0, coding=wrong)
    with pytest.raises(errors.InvalidOption, match=r"prefer is 'huffman'; .*'size', 'speed'"):
        codec.encode(UPDATE, residual_of(UPDATE), 1.0, prefer=wrong)


@pytest.mark.parametrize("coding", ["sparse", "bitmap", "bitmap4"])
def test_a_preference_without_effect_is_refused(coding: codec.Coding) -> None:
    with pytest.raises(errors.InvalidOption, match=f"'speed' has no effect with coding='{coding}'"):
        codec.encode(UPDATE, residual_of(UPDATE), 1.0, coding=coding, prefer="speed")


def test_a_message_says_the_senders_step() -> None:
    for coding in ("auto", "bitmap4"):
        message = codec.encode(
            UPDATE, residual_of(UPDATE), 1.0, coding=coding, iteration=np.int64(2**35 - 1)
        )
        assert message.iteration == 2**35 - 1
        assert codec.read(message.bytes) == message


@pytest.mark.parametrize("iteration", [-1, 2**35, 1.0, "1", None, True, np.array([1, 2])])
def test_an_iteration_that_is_refused_changes_nothing(iteration: Any) -> None:
    residual = residual_of(UPDATE)
    with pytest.raises(errors.InvalidOption, match=r"the iteration is .*; it must be"):
        codec.encode(UPDATE, residual, 1.0, iteration=iteration)
    np.testing.assert_array_equal(residual, residual_of(UPDATE))


def test_a_bitmap_of_four_states_takes_two_bits_an_element() -> None:
    update = np.random.default_rng(8).normal(size=100_000).astype(np.float32)
    for threshold in (0.1, 1.0, 3.0):
        message = codec.encode(update, np.zeros_like(update), threshold, coding="bitmap4")
        bits = message.bits_per_entry * message.density
        assert 2 < bits < 2.05


@pytest.mark.parametrize("size", [1, 4097, 70_001])
def test_an_update_that_is_not_finite_is_refused_and_nothing_changes(size: int) -> None:
    update = np.full(size, 3, np.float32)
    update[[size // 2, size - 1]] = [np.inf, np.nan]
    residual = residual_of(update)
    count = len({size // 2, size - 1})
    words = f"update is NaN or infinite in {count} of {size} elements, the first at index "
    with pytest.raises(errors.NotFinite, match=words + str(size // 2)):
        codec.encode(update, residual, 1.0)
    np.testing.assert_array_equal(residual, residual_of(update))


def test_a_residual_that_is_not_finite_and_a_sum_that_overflows_are_refused() -> None:
    residual = np.array([0, 0, -np.inf, 0], np.float32)
    with pytest.raises(errors.NotFinite, match="residual is NaN or infinite in 1 of 4 elem"):
        codec.encode(UPDATE, residual, 1.0)
    largest = np.full(4, np.finfo(np.float32).max)
    with pytest.raises(errors.NotFinite, match=r"over the largest float32 in 4 of 4 elements"):
        codec.encode(largest.copy(), largest, 1.0)
    np.testing.assert_array_equal(largest, np.full(4, np.finfo(np.float32).max))


def test_every_message_cut_short_is_refused_and_nothing_changes() -> None:
    whole = codec.encode(UPDATE, residual_of(UPDATE), 1.0).bytes
    parameters = np.ones(4, np.float32)
    for size in range(len(whole)):
        with pytest.raises(
            errors.CorruptMessage, match=r"not a valid update message: .* cut short"
        ):
            codec.apply(whole[:size], parameters)
    np.testing.assert_array_equal(parameters, np.ones(4))


def test_every_altered_byte_is_noticed() -> None:
    whole = codec.encode(UPDATE, residual_of(UPDATE), 1.0).bytes
    for place in range(len(whole)):
        altered = bytearray(whole)
        altered[place] ^= 0x10
        with pytest.raises(errors.CorruptMessage):
            codec.decode(altered, 4)
        with pytest.raises(errors.CorruptMessage):
            codec.read(altered)


def test_a_message_of_another_size_is_refused_and_nothing_changes() -> None:
    message = codec.encode(UPDATE, residual_of(UPDATE), 1.0).bytes
    parameters = np.ones(5, np.float32)
    with pytest.raises(errors.InvalidOption, match="is of 4 parameters and does not fit 5"):
        codec.apply(message, parameters)
    np.testing.assert_array_equal(parameters, np.ones(5))
    with pytest.raises(errors.InvalidOption, match="is of 4 parameters and does not fit 3"):
        codec.decode(message, 3)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "size is 0"),
        (2**62, "size is 4611686018427387904; it must be 1 to 2"),
        (-4, "size is -4"),
        (4.0, "size is 4.0; it must be an integer"),
    ],
)
def test_a_size_that_is_none_is_refused(size: Any, words: str) -> None:
    message = codec.encode(UPDATE, residual_of(UPDATE), 1.0).bytes
    with pytest.raises(errors.InvalidOption, match=words):
        codec.decode(message, size)


def test_what_is_no_message_at_all_is_refused() -> None:
    message: Any = codec.encode(UPDATE, residual_of(UPDATE), 1.0)
    with pytest.raises(errors.InvalidOption, match=r"pass message\.bytes"):
        codec.decode(message, 4)
    with pytest.raises(errors.InvalidOption, match="the message is of type str; it must be bytes"):
        codec.decode("message", 4)  # type: ignore[arg-type]


def test_parameters_that_cannot_change_in_place_are_refused() -> None:
    message = codec.encode(UPDATE, residual_of(UPDATE), 1.0).bytes
    wrong: list[Any] = [[0.0] * 4, np.zeros(4), np.zeros(8, np.float32)[::2], read_only()]
    for parameters in wrong:
        with pytest.raises(errors.InvalidOption, match="parameters is "):
            codec.apply(message, parameters)
