"""One worker trains on the CPU and on GPUs with each option; both are to end equal.

A card computes with other roundings than a CPU: there steps by way of the host and steps that stay
on the card end equal, and near the CPU's.

gpu_alone.py [kernels] CASE ...: ends well, or says what differs. With `kernels` steps stay on the
GPU where its kernels can do them.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

from tests.support import gpu, two_devices

KERNELS = "kernels" in sys.argv
gpu.load(2, delay=200, kernels=KERNELS)

import keras  # noqa: E402

from keras_strom import (  # noqa: E402
    AdaptiveThreshold,
    FixedThreshold,
    ResidualClipping,
    ShakeUp,
    StromStrategy,
    UpdateClipping,
)

TAU = 2e-3
CASES: dict[str, dict[str, Any]] = {
    "defaults": {"threshold": AdaptiveThreshold()},
    "fixed": {},
    "clipped": {"residual_clipping": ResidualClipping(1.5, every=2)},
    "local": {"local_steps": 2},
    "rows": {},
    "encoded": {
        "local_apply": "encoded",
        "residual_clipping": ResidualClipping(1.5, every=2),
        "shake_up": ShakeUp(every=3, factor=0.3),
        "momentum_masking": True,
    },
    "each_variable": {
        "threshold": AdaptiveThreshold(per_variable=True),
        "update_clipping": UpdateClipping(multiple=1.0, window=2),
        "local_steps": 2,
    },
    "compiled": {"jit_compile": True},
    "mixed": {},
    "two_devices": {},
}


def dense() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(16, "relu"),
            keras.layers.BatchNormalization(momentum=0.5),
            keras.layers.Dense(3),
        ]
    )


def table() -> keras.Model:
    layers = [keras.layers.Embedding(40, 4), keras.layers.Flatten(), keras.layers.Dense(3)]
    return keras.Sequential([keras.Input((2,), dtype="int32"), *layers])


def train(case: str, devices: Any) -> tuple[list[np.ndarray], Any]:
    """The weights and all that is left over, and the report."""
    keras.utils.set_random_seed(3)
    options = {"threshold": FixedThreshold(TAU), **CASES[case]}
    strategy = StromStrategy(devices=devices, always_encode=True, **options)
    policy = "mixed_float16" if case == "mixed" else "float32"
    keras.mixed_precision.set_global_policy(policy)
    build: Callable[[], keras.Model] = table if case == "rows" else dense
    optimizer = "adam"
    if case in ("rows", "encoded"):
        optimizer = keras.optimizers.SGD(0.5, momentum=0.9 * (case == "encoded"))
    with strategy.scope():
        model = build()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    random = np.random.default_rng(1)
    x = random.normal(size=(96, 6)).astype(np.float32)
    if case == "rows":
        x = random.integers(0, 40, (96, 2))
    model.fit(x, random.integers(0, 3, 96), batch_size=8, epochs=1, verbose=0, shuffle=False)
    first = devices if isinstance(devices, str) else devices[0]
    for weight in model.weights:
        assert (
            first.replace("/", ":")
            in strategy.experimental_local_results(weight.value)[0].device.lower()
        )
    sharing = strategy._sharing
    left = sharing.step.residuals(sharing.space.size)
    return [*model.get_weights(), left], strategy.last_report


def compare(case: str) -> str:
    """How they differ; "" = not at all."""
    devices: list[Any] = ["/cpu:0", "/gpu:1"]
    if case == "two_devices":
        devices = [two_devices.TWO_DEVICES, ["/gpu:0", "/gpu:1"]]
    (here, report), (there, other) = (train(case, names) for names in devices)
    if gpu.is_card():
        near = zip(here[:-1], there[:-1], strict=True)
        if not all(np.allclose(*pair, rtol=1e-3, atol=3 * TAU) for pair in near):
            return f"{case}: the CPU's weights {here[:-1]} are far from the card's {there[:-1]}"
        with mock.patch.dict(os.environ, {"KERAS_STROM_GPU_STEP": "off"}):
            here, report = train(case, devices[1])
    assert np.any(here[-1]), "nothing is left to be compared"
    wrong = [i for i, pair in enumerate(zip(here, there, strict=True)) if not np.array_equal(*pair)]
    if wrong:
        return f"{case}: arrays {wrong} of {len(here)} differ"
    same = dataclasses.replace(other, seconds=report.seconds)
    if KERNELS:  # which add sums up in another order
        assert np.isclose(other.residual_mass, report.residual_mass, rtol=1e-5)
        same = dataclasses.replace(same, residual_mass=report.residual_mass)
    return "" if report == same else f"{case}: {report} on the CPU, {other} on the GPU"


if __name__ == "__main__":
    sys.exit(
        "\n".join(filter(None, map(compare, (name for name in sys.argv[1:] if name != "kernels"))))
        or None
    )
