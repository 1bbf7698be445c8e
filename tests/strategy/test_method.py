"""The methods of StromStrategy: their options, what they refuse, and a lone worker."""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

from keras_strom import (
    EASGD,
    MPCA,
    AllReduce,
    FixedThreshold,
    NetworkConfig,
    PullStart,
    ResidualClipping,
    ShakeUp,
    SparkNet,
    StromStrategy,
    UpdateClipping,
    errors,
)
from keras_strom._native.local_model import MethodStruct
from keras_strom.method import Method
from keras_strom.sharing.optimizers import learning_rates_of
from keras_strom.sharing.options import check_network_beside
from tests.support.two_devices import TWO_DEVICES

# ------------------------------------------------------------------------------- the values

REFUSED = [
    (MPCA, {"phases": 4}, "phases=4 must be 1, 2 or 3"),
    (MPCA, {"phases": True}, "phases=True must be 1, 2 or 3"),
    (MPCA, {"alpha": 1.1}, r"alpha=1.1 must lie in \[0, 1\]"),
    (MPCA, {"alpha": "much"}, "alpha='much' must be a number"),
    (MPCA, {"alpha": float("nan")}, "alpha=nan must lie"),
    (MPCA, {"beta": 0}, r"beta=0 must lie in \(0, 1\]"),
    (MPCA, {"gamma": 2.5}, r"gamma=2.5 must lie in \[0, 2\]"),
    (MPCA, {"delta": 1}, r"delta=1 must lie in \[0, 1\)"),
    (MPCA, {"penalty": "sideways"}, 'penalty=\'sideways\' must be "shift" or "gradient"'),
    (MPCA, {"weighted": 1}, "weighted=1 must be True or False"),
    (MPCA, {"start": 0.5}, "start=0.5 must be a PullStart"),
    (MPCA, {"ramp_cycles": -1}, "ramp_cycles=-1 must be a whole number, 0 or more"),
    (MPCA, {"min_steps": 0}, "min_steps=0 must be a whole number, 1 or more"),
    (PullStart, {"free_cycles": -1}, "free_cycles=-1 must be a whole number, 0 or more"),
    (PullStart, {"alpha": -0.1}, "alpha=-0.1 must lie"),
    (PullStart, {"cycles": 1.5}, "cycles=1.5 must be a whole number"),
    (SparkNet, {"steps": 0}, "steps=0 must be a whole number, 1 or more"),
    (AllReduce, {"average": "models"}, 'average=\'models\' must be "gradients" or "updates"'),
    (AllReduce, {"dtype": "float16"}, 'dtype=\'float16\' must be "float32" or "bfloat16"'),
    (EASGD, {"steps": 2.0}, "steps=2.0 must be a whole number"),
    (EASGD, {"alpha": 2}, r"alpha=2 must lie in \[0, 1\], or be None"),
    (EASGD, {"synchronous": "yes"}, "synchronous='yes' must be True or False"),
]


@pytest.mark.parametrize(("kind", "options", "words"), REFUSED, ids=str)
def test_an_option_out_of_range_is_named_with_what_it_may_be(
    kind: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(errors.InvalidOption, match=words):
        kind(**options)


def test_a_method_gives_its_numbers_for_so_many_workers() -> None:
    numbers = MPCA(phases=2, alpha=1, start=PullStart(free_cycles=3, alpha=0.4)).numbers(8)
    assert (numbers.kind, numbers.phases, numbers.weighted, numbers.alpha) == (1, 2, True, 1.0)
    assert (numbers.start_alpha, numbers.free_cycles, numbers.start_cycles) == (0.4, 3, 20)
    assert SparkNet(steps=58).numbers(8).steps == 58
    assert SparkNet().numbers(8).steps == 0  # As is measured.
    exact = AllReduce().numbers(8)
    assert (exact.kind, exact.steps, exact.bfloat16, exact.gradients) == (2, 1, False, True)
    assert not AllReduce(average="updates").numbers(8).gradients
    assert AllReduce(dtype="bfloat16").numbers(8).bfloat16
    assert EASGD().numbers(9).alpha == pytest.approx(0.1)
    waiting = EASGD(synchronous=True).numbers(9)
    assert (waiting.kind, waiting.beta) == (4, 0.9)  # beta = K alpha
    assert EASGD(synchronous=True, alpha=0.25).numbers(2).beta == 0.5


def test_an_elastic_pull_of_all_at_once_that_overshoots_is_refused() -> None:
    assert EASGD(alpha=0.6).numbers(2).alpha == 0.6
    with pytest.raises(errors.InvalidOption, match=r"beta = K alpha = 1.2.*alpha may be 0.5 here"):
        EASGD(alpha=0.6, synchronous=True).numbers(2)


def test_a_method_is_one_value_however_its_numbers_are_written() -> None:
    assert MPCA(alpha=1).text == MPCA(alpha=1.0).text
    assert MPCA() == pickle.loads(pickle.dumps(MPCA()))
    assert MPCA(gamma=0) != MPCA()
    assert "start=PullStart(free_cycles=2" in MPCA().text


def test_the_library_gets_every_number_of_a_method() -> None:
    numbers = MPCA(gamma=0.5, min_steps=7).numbers(3)
    struct = MethodStruct.of(numbers)
    for name, _ in MethodStruct._fields_:
        assert getattr(struct, name) == getattr(numbers, name)


def test_a_method_needs_neither_tensorflow_nor_spark() -> None:
    code = (
        "import sys, keras_strom; keras_strom.MPCA().numbers(2); "
        "assert not {'tensorflow', 'keras', 'pyspark', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ------------------------------------------------------------------------------- the strategy

OF_UPDATES = {
    "threshold": FixedThreshold(1e-3),
    "residual_clipping": ResidualClipping(),
    "shake_up": ShakeUp(),
    "update_scale": "mean",
    "warmup_steps": 10,
    "momentum_masking": False,
    "update_clipping": UpdateClipping(),
    "local_steps": 2,
    "local_apply": "encoded",
    "max_staleness": 0,
    "always_encode": True,
    "encoding_debug_mode": True,
}


@pytest.mark.parametrize("name", OF_UPDATES)
def test_an_option_of_sharing_updates_is_refused_beside_a_method(name: str) -> None:
    words = rf"{name}=.* has no effect with method=MPCA\(.*leave it out, or leave out method"
    with pytest.raises(errors.InvalidOption, match=words):
        StromStrategy(method=MPCA(), **{name: OF_UPDATES[name]})


@pytest.mark.parametrize("name", sorted(OF_UPDATES.keys() - {"threshold"}))
def test_an_option_of_sharing_updates_is_refused_in_exact_mode(name: str) -> None:
    words = rf"{name}=.* has no effect with threshold=None: leave it out, or give a threshold"
    with pytest.raises(errors.InvalidOption, match=words):
        StromStrategy(threshold=None, **{name: OF_UPDATES[name]})


def test_exact_mode_is_a_method_and_no_other() -> None:
    StromStrategy(threshold=None)
    StromStrategy(threshold=None, method=AllReduce(dtype="bfloat16"))
    with pytest.raises(errors.InvalidOption, match=r"threshold=None is exact mode.*leave out one"):
        StromStrategy(threshold=None, method=MPCA())
    with pytest.raises(errors.InvalidOption, match=r"or None, which withholds nothing"):
        StromStrategy(threshold=0.0)  # type: ignore[arg-type]


def test_defaults_may_be_written_out_beside_a_method() -> None:
    StromStrategy(method=MPCA(), update_scale="auto", max_staleness=None, jit_compile=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"jit_compile": True}, r"XLA \(jit_compile=True\)"),
        ({"devices": TWO_DEVICES}, "over 2 devices"),
    ],
)
def test_a_pull_by_gradients_is_refused_where_no_op_can_be_before_the_optimizer(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(errors.InvalidOption, match=f'penalty="gradient": .*{words}.*"shift"'):
        StromStrategy(method=MPCA(penalty="gradient"), **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"jit_compile": True}, r"XLA \(jit_compile=True\) has no place"),
        ({"devices": TWO_DEVICES}, "a step over 2 devices has no place"),
    ],
)
def test_the_mean_of_gradients_is_refused_where_no_op_can_be_before_the_optimizer(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(errors.InvalidOption, match=rf'{words}.*AllReduce\(average="updates"\)'):
        StromStrategy(threshold=None, **options)
    StromStrategy(method=AllReduce(average="updates"), **options)


def test_the_mean_of_gradients_does_not_wait_for_another_master() -> None:
    network = NetworkConfig(on_master_loss="wait")
    exact = AllReduce(dtype="bfloat16")
    remedy = r"""take method=AllReduce\(average="updates", dtype='bfloat16'\)"""
    with pytest.raises(errors.InvalidOption, match=f"on_master_loss=.*{remedy}"):
        check_network_beside(exact, network)
    check_network_beside(AllReduce(average="updates"), network)


def test_the_learning_rates_that_exact_mode_agrees_on() -> None:
    sgd, adam = keras.optimizers.SGD(0.5), keras.optimizers.Adam(0.25)
    scheduled = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 10))
    scaled = keras.optimizers.LossScaleOptimizer(sgd)
    several = SimpleNamespace(optimizers=[sgd, scheduled, adam])
    found = [list(map(float, learning_rates_of(one))) for one in (scaled, scheduled, several)]
    assert found == [[0.5], [], [0.5, 0.25]]


@pytest.mark.parametrize("method", ["MPCA", MPCA, 3], ids=str)
def test_what_is_no_method_is_refused(method: Any) -> None:
    with pytest.raises(errors.InvalidOption, match=r"must be a method, such as AllReduce\(\)"):
        StromStrategy(method=method)


@pytest.mark.parametrize("method", [None, MPCA()])
def test_cycles_that_are_no_number_of_them_are_refused(method: Method | None) -> None:
    strategy = StromStrategy(method=method)
    for cycles in (-1, 1.5, "7"):
        with pytest.raises(errors.InvalidOption, match="joint_cycles="):
            strategy.joint_cycles = cycles  # type: ignore[assignment]
    assert strategy.joint_cycles == 0


def test_a_lone_worker_with_a_method_trains_as_plain_keras_bit_for_bit() -> None:
    def trained(strategy: StromStrategy | None) -> list[np.ndarray]:
        keras.utils.set_random_seed(3)
        with strategy.scope() if strategy else contextlib.nullcontext():
            layers = [keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
            model = keras.Sequential(layers)
            model.compile("adam", "mse", jit_compile=False)
        x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
        history = model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0)
        assert not any(name.startswith("strom/") for name in history.history)
        return list(model.get_weights())

    strategy = StromStrategy(method=MPCA())
    for ours, plain in zip(trained(strategy), trained(None), strict=True):
        np.testing.assert_array_equal(ours, plain)
    assert strategy.last_report is None
