"""keras_strom.ops: what they are in TensorFlow's terms. What they compute is judged by
tests/codec/test_codec_contract.py.
"""

import doctest
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels

from keras_strom import codec, errors, ops
from keras_strom._native.ops import operations

UPDATE = [0.25, -1.5, 0.5, 2.0]
ZEROS = [0.0] * 4


def a_message() -> Any:
    return ops.threshold_encode(UPDATE, ZEROS, 1.0)[0]


def test_the_examples_in_the_documentation_run() -> None:
    failed, run = doctest.testmod(ops)
    assert failed == 0
    assert run > 0


def test_they_speak_the_same_bytes_as_the_codec_on_arrays() -> None:
    residual = np.zeros(4, np.float32)
    message = codec.encode(np.asarray(UPDATE, np.float32), residual, 1.0)
    tensor, after, count = ops.threshold_encode(UPDATE, ZEROS, 1.0)
    assert tensor.dtype == tf.uint8
    assert tensor.numpy().tobytes() == message.bytes
    assert int(count) == message.count
    np.testing.assert_array_equal(after, residual)
    received = tf.io.decode_raw(message.bytes, tf.uint8)
    np.testing.assert_array_equal(ops.decode(received, 4), codec.decode(message.bytes, 4))


def test_bitmap_encode_is_the_bitmap_coding() -> None:
    bitmap = ops.bitmap_encode(UPDATE, ZEROS, 1.0)
    named = ops.threshold_encode(UPDATE, ZEROS, 1.0, coding="bitmap")
    np.testing.assert_array_equal(bitmap[0], named[0])


def test_no_argument_changes() -> None:
    update, residual = np.asarray(UPDATE, np.float32), np.zeros(4, np.float32)
    kept = tf.Variable(residual)
    for argument in (residual, tf.constant(residual), kept, kept.value()):
        message, _, _ = ops.threshold_encode(update, argument, 1.0)
        ops.apply(message, argument)
        np.testing.assert_array_equal(argument, ZEROS)
    np.testing.assert_array_equal(update, UPDATE)


def test_a_tensor_may_be_update_and_residual_at_once() -> None:
    both = tf.constant(UPDATE)
    message, after, _ = ops.threshold_encode(both, both, 1.0)
    np.testing.assert_array_equal(both, UPDATE)
    np.testing.assert_array_equal(after + ops.decode(message, 4), np.multiply(2, UPDATE))


def test_what_nobody_else_reads_is_changed_where_it_is() -> None:
    def address(tensor: Any) -> Any:
        return tf.py_function(lambda t: np.asarray(memoryview(t)).ctypes.data, [tensor], tf.int64)

    @tf.function(autograph=False)
    def step(update: Any, residual: Any, parameters: Any) -> list[Any]:
        residual, parameters = residual + 0.5, parameters + 0.5
        before = [address(residual), address(parameters)]
        with tf.control_dependencies(before):
            message, residual, _ = ops.threshold_encode(update, residual, 1.0)
            parameters = ops.apply(message, parameters)
        return [*before, address(residual), address(parameters)]

    addresses = [int(each) for each in step(tf.constant(UPDATE), tf.zeros(4), tf.zeros(4))]
    assert addresses[:2] == addresses[2:]


def test_a_training_loop_in_a_graph_loses_nothing() -> None:
    residual, parameters = tf.Variable(tf.zeros([64])), tf.Variable(tf.zeros([64]))

    @tf.function
    def train(updates: Any) -> Any:
        sent = tf.constant(0, tf.int64)
        for update in updates:
            message, after, count = ops.threshold_encode(update, residual, 0.5)
            residual.assign(after)
            parameters.assign(ops.apply(message, parameters))
            sent += count
        return sent

    updates = np.random.default_rng(0).normal(size=(50, 64)).astype(np.float32)
    assert int(train(updates)) > 0
    np.testing.assert_allclose(residual + parameters, updates.sum(0, np.float64), atol=1e-4)


def test_the_shapes_are_known_when_a_graph_is_built() -> None:
    @tf.function
    def build(update: Any, residual: Any, unknown: Any) -> None:
        message, after, count = ops.threshold_encode(update, residual, 1.0)
        assert message.shape.as_list() == [None]
        assert after.shape.as_list() == [2, 3]  # what each of them knows, put together
        assert count.shape.as_list() == []
        assert ops.decode(message, 6).shape.as_list() == [6]
        assert ops.decode(message, tf.size(unknown)).shape.as_list() == [None]
        assert ops.apply(message, residual).shape.as_list() == [None, 3]
        with pytest.raises(ValueError, match=r"Dimension 0 .* must be equal"):
            ops.threshold_encode(update, tf.zeros([3, 4]), 1.0)
        with pytest.raises(ValueError, match="must be rank 0"):
            ops.threshold_encode(update, residual, [1.0])
        with pytest.raises(ValueError, match="must be rank 1"):
            ops.apply(tf.zeros([2, 2], tf.uint8), update)

    build.get_concrete_function(
        tf.TensorSpec([2, None]), tf.TensorSpec([None, 3]), tf.TensorSpec(None)
    )


def test_they_are_stateless() -> None:
    operations()
    for name in ("StromThresholdEncode", "StromDecode", "StromApplyMessage"):
        graph = tf.Graph()
        with graph.as_default():
            message, _, _ = ops.threshold_encode(UPDATE, ZEROS, 1.0)
            ops.decode(message, 4), ops.apply(message, ZEROS)
        (operation,) = (found for found in graph.get_operations() if found.type == name)
        assert not operation.op_def.is_stateful


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            (UPDATE, [0.0] * 5, 1.0),
            r"update has shape \[4\] and residual \[5\]; both need the same",
        ),
        (([], [], 1.0), r"update is empty, its shape is \[0\]"),
        ((UPDATE, ZEROS, [1.0]), r"threshold must be a scalar, its shape is \[1\]"),
        ((UPDATE, ZEROS, 0.0), "the threshold is 0.0.*; it must be a finite float32 over 0"),
        ((UPDATE, ZEROS, float("nan")), "the threshold is nan; it must be a finite"),
        (([1, float("inf"), float("nan"), 1], ZEROS, 1.0), "2 of 4 elements, the first at index 1"),
    ],
)
def test_arguments_that_are_wrong_are_invalid_in_words(arguments: Any, words: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        ops.threshold_encode(*arguments)


def test_messages_that_are_wrong_are_refused_in_words() -> None:
    message = a_message()
    with pytest.raises(tf.errors.DataLossError, match=r"not a valid update message: .* cut short"):
        ops.decode(message[:-1], 4)
    with pytest.raises(tf.errors.InvalidArgumentError, match="of 4 parameters and does not fit 5"):
        ops.apply(message, tf.zeros(5))
    with pytest.raises(tf.errors.InvalidArgumentError, match="size must be a scalar, 1 or more"):
        ops.decode(message, 0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="message must be a uint8 vector"):
        ops.apply([[1]], tf.zeros(4))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"parameters is empty"):
        ops.apply(message, tf.zeros([0, 4]))


def test_other_dtypes_are_refused() -> None:
    with pytest.raises((TypeError, ValueError, tf.errors.InvalidArgumentError), match="float"):
        ops.threshold_encode(tf.zeros(4, tf.float64), ZEROS, 1.0)
    with pytest.raises((TypeError, ValueError, tf.errors.InvalidArgumentError), match="uint8"):
        ops.decode(tf.zeros(4, tf.int32), 4)


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_the_step_may_be_a_variable(dtype: tf.DType) -> None:
    step = tf.Variable(7, dtype=dtype)
    update = tf.constant([0.5, 0.5, -2.0])
    message, after, count = ops.threshold_encode(
        update, tf.zeros(3), 1.0, coding="bitmap4", iteration=step
    )
    assert int(count) == 2
    np.testing.assert_array_equal(after, [0.5, 0, -1])
    assert codec.read(message.numpy().tobytes()).iteration == 7


def test_a_step_that_is_none_is_refused() -> None:
    for wrong in ([1, 2], -1, 2**35):
        with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=r"iteration|rank 0"):
            ops.threshold_encode(UPDATE, ZEROS, 1.0, iteration=wrong)
    with pytest.raises((TypeError, ValueError, tf.errors.InvalidArgumentError), match="int64"):
        ops.threshold_encode(UPDATE, ZEROS, 1.0, iteration=1.0)


def test_options_that_are_unknown_or_without_effect_are_refused() -> None:
    wrong: Any = "huffman"
    with pytest.raises(errors.InvalidOption, match="coding is 'huffman'"):
        ops.threshold_encode(UPDATE, ZEROS, 1.0, coding=wrong)
    with pytest.raises(errors.InvalidOption, match="no effect with coding='sparse'"):
        ops.threshold_encode(UPDATE, ZEROS, 1.0, coding="sparse", prefer="speed")


def test_asking_for_a_gradient_says_why_there_is_none() -> None:
    source = tf.Variable(UPDATE)
    message = a_message()
    with tf.GradientTape(persistent=True) as tape:
        _, after, _ = ops.threshold_encode(2 * source, ZEROS, 1.0)
        applied = ops.apply(message, 2 * source)
        decoded = ops.decode(ops.threshold_encode(2 * source, ZEROS, 1.0)[0], 4)
    with pytest.raises(LookupError, match=r"StromThresholdEncode has no gradient: .* constant"):
        tape.gradient(after, source)
    with pytest.raises(LookupError, match=r"StromApplyMessage has no gradient: a message is bytes"):
        tape.gradient(applied, source)
    assert tape.gradient(decoded, source) is None
    with tf.GradientTape() as tape:
        _, after, _ = ops.threshold_encode(tf.stop_gradient(2 * source), ZEROS, 1.0)
        loss = tf.reduce_sum(after + source)
    np.testing.assert_array_equal(tape.gradient(loss, source), np.ones(4))


def test_xla_refuses_them_by_name() -> None:
    @tf.function(jit_compile=True)
    def compiled(update: Any) -> Any:
        return ops.threshold_encode(update, ZEROS, 1.0)[1]

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"unsupported.*StromThresholdEncode"):
        compiled(tf.constant(UPDATE))


# ------------------------------------------------------------------ on a GPU


@pytest.mark.parametrize("name", ["StromThresholdEncode", "StromApplyMessage"])
def test_the_codec_has_kernels_for_a_gpu(name: str) -> None:
    """Registered whatever the machine; each opens libstrom_cuda.so when it first runs."""
    operations()
    registered = kernels.get_registered_kernels_for_op(name).kernel
    on_gpu = next(kernel for kernel in registered if kernel.device_type == "GPU")
    assert "message" in on_gpu.host_memory_arg


def test_a_gpu_gives_the_bits_of_the_cpu() -> None:
    if not tf.config.list_physical_devices("GPU"):
        pytest.skip("no GPU that TensorFlow sees")
    random = np.random.default_rng(1)
    update, residual = random.normal(size=(2, 100_003)).astype(np.float32)
    wanted, wanted_after, wanted_count = ops.threshold_encode(update, residual, 1.5)
    with tf.device("/gpu:0"):
        message, after, count = ops.threshold_encode(
            tf.identity(update), tf.identity(residual), 1.5
        )
        added = ops.apply(message, tf.identity(residual))
    assert message.numpy().tobytes() == wanted.numpy().tobytes()
    np.testing.assert_array_equal(after, wanted_after)
    np.testing.assert_array_equal(added, ops.apply(wanted, residual))
    assert int(count) == int(wanted_count)
