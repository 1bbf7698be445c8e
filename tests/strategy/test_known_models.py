"""Models that nobody here wrote train on two workers as the oracle says, element by element."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripts import known_models
from tests.support.two_workers import run_two_workers

pytestmark = pytest.mark.jobs

FAST = ("LSTM", "GRU", "transformer", "MobileNetV3Small")
SLOW = ("EfficientNetB0", "ResNet50")


@pytest.fixture(scope="module")
def results_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs one job for several models."""

    @functools.cache
    def run(names: tuple[str, ...]) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("models")
        run_two_workers(Path(known_models.__file__), str(folder), *names)
        results: dict[str, Any] = json.loads((folder / "results.json").read_text())
        return results

    return run


def check(result: dict[str, Any]) -> None:
    assert result["steps"] == known_models.STEPS
    assert result["replica_difference"] == 0
    assert result["moved"] > 0.01 * result["elements"]
    assert result["different"] == 0, result


def test_every_model_is_listed() -> None:
    assert {*FAST, *SLOW} == set(known_models.MODELS)


@pytest.mark.parametrize("name", FAST)
def test_two_workers_train_it_as_the_oracle_says(name: str, results_of: Any) -> None:
    check(results_of(FAST)[name])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SLOW)
def test_two_workers_train_a_large_one_as_the_oracle_says(name: str, results_of: Any) -> None:
    check(results_of(SLOW)[name])
