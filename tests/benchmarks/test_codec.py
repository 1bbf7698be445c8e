"""The codec's benchmark: what it compares ours with does the same work, and its bound is one."""

import math
import stat
from pathlib import Path

import numpy as np
import pytest

from benchmarks import message_sizes, other_encoders
from benchmarks.native_codec import NativeCodec


@pytest.mark.parametrize("kind", [other_encoders.NumPyEncoder, other_encoders.TensorFlowEncoder])
def test_other_encoders_send_what_reached_the_threshold_and_keep_the_rest(
    kind: type[other_encoders.NumPyEncoder] | type[other_encoders.TensorFlowEncoder],
) -> None:
    density = 0.05
    updates = other_encoders.Updates(1 << 14)
    residual, threshold = other_encoders.Updates(1 << 14).residual(density)
    encoder = kind(updates, density)  # draws the same residual
    total = residual + updates.noise[: residual.size]
    reached = np.abs(total) >= threshold
    assert encoder.encode(encoder.prepare(0)) == reached.sum()
    left = total - np.where(reached, np.copysign(np.float32(threshold), total), 0)
    np.testing.assert_allclose(np.asarray(encoder._residual), left, atol=1e-6)


@pytest.mark.parametrize("density", [1e-3, 1e-2, 0.1])
def test_the_density_stays_what_was_asked_for(density: float) -> None:
    updates = other_encoders.Updates(1 << 17)
    run = updates.timer(other_encoders.NumPyEncoder(updates, density), density)
    for _ in range(20):
        assert run() > 0  # and raises where the density has moved


def test_the_bound_is_the_entropy_of_random_places() -> None:
    # log2 of the number of ways to choose m of n places, and a sign for each entry.
    elements, entries = 1_000_000, 10_000
    ways = (
        math.lgamma(elements + 1) - math.lgamma(entries + 1) - math.lgamma(elements - entries + 1)
    ) / math.log(2)
    bound = message_sizes.entropy_bound(entries / elements)
    assert bound == pytest.approx(ways / entries + 1, rel=1e-3)
    assert bound == pytest.approx(9.08, abs=0.005)


def test_a_random_message_has_the_entries_and_the_density_that_were_asked_for() -> None:
    size = message_sizes.random_message(5000, 0.01)
    assert size.entries == 5000
    assert size.entries / size.elements == pytest.approx(0.01, rel=0.1)
    assert 1 < size.over_bound < 1.05


def test_halves_leave_less_waiting_for_two_bits_an_element() -> None:
    whole, halves = (message_sizes.waiting(coding, 2.0, steps=10) for coding in ("auto", "bitmap4"))
    assert halves.mean_residual < 0.8 * whole.mean_residual
    assert whole.density < halves.density
    assert 2 < halves.bits_per_element < 2.05


def test_a_native_program_that_fails_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "codec_bench"
    program.write_text(
        '#!/bin/sh\necho \'{"measurements": [], "kernels": []}\'\nread line\nexit 3\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    native = NativeCodec(1024, program=program)
    with pytest.raises(RuntimeError, match="exit status 3"):
        native.measure("encode")
    with pytest.raises(FileNotFoundError, match="make bench-codec"):
        NativeCodec(1024, program=tmp_path / "missing")


def test_a_real_training_sends_nothing_first_and_then_something() -> None:
    first, *_, last = message_sizes.real_messages(12)
    assert first.entries == 0
    assert last.entries > 0
