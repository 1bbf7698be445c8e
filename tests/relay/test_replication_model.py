"""The replication rules hold under random schedules, and each of them is needed."""

from __future__ import annotations

import dataclasses
import importlib.util
import pathlib
import sys
from collections import Counter
from types import ModuleType

import pytest


def _load(name: str) -> ModuleType:
    path = pathlib.Path(__file__).parents[1] / "support" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


model = _load("replication_model")


def test_the_rules_hold_under_every_seed() -> None:
    faults: Counter[str] = Counter()
    for seed in range(200):
        run = model.Model(seed, model.Rules())
        assert not run.run(), f"seed {seed}"
        faults += run.faults
    assert min(faults[kind] for kind in ("kill", "lag", "move", "join", "snapshot")) > 200


@pytest.mark.parametrize("rule", [field.name for field in dataclasses.fields(model.Rules)])
def test_no_rule_can_be_left_out(rule: str) -> None:
    rules = dataclasses.replace(model.Rules(), **{rule: False})
    assert any(model.Model(seed, rules).run() for seed in range(200)), f"{rule} is not needed"
