"""A pytest plugin that runs each of Keras's own tests in the scope of a strategy.

--strom-scope=one_device is TensorFlow's OneDeviceStrategy, --strom-scope=strom a lone worker's
StromStrategy.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import types
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--strom-scope", choices=["one_device", "strom"], required=True)


def pytest_configure(config: pytest.Config) -> None:
    for marker in ("requires_trainable_backend", "multi_device"):  # Of Keras's conftest.py.
        config.addinivalue_line("markers", f"{marker}: as Keras says")
    from keras.src import testing

    # A file of tests for all backends imports it at its top, whatever the backend.
    if importlib.util.find_spec("jax") is None:
        sys.modules["jax"] = types.ModuleType("jax")
    make = _strategies()[config.getoption("--strom-scope")]
    original = testing.TestCase.setUp

    @functools.wraps(original)
    def set_up(test: Any) -> None:
        original(test)  # It clears the session, which would end a scope around it.
        scope = make().scope()
        scope.__enter__()
        test.addCleanup(scope.__exit__, None, None, None)

    testing.TestCase.setUp = set_up


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("multi_device"):
            item.add_marker(pytest.mark.skip(reason="needs several devices"))


def _strategies() -> dict[str, Any]:
    import tensorflow as tf

    import keras_strom

    one_device = functools.partial(tf.distribute.OneDeviceStrategy, "/cpu:0")
    return {"one_device": one_device, "strom": keras_strom.StromStrategy}
