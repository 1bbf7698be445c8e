"""How a `fit` of two workers ends, well or not, and that the job lives on.

The cases are those of tests/scripts/fit_endings.py, one job for each mode.
"""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from keras_strom import callbacks
from tests.scripts import fit_endings
from tests.test_lifecycle import launch

MODES = ["None", "0"]

both_modes = pytest.mark.parametrize("mode", MODES)


@functools.cache
def job(mode: str) -> list[dict[str, Any]]:
    """What each worker's cases have returned; the checks below share it."""
    with tempfile.TemporaryDirectory() as folder:
        done = launch(Path(fit_endings.__file__), folder, mode, timeout=400)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-4000:]
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(2)]


def results(mode: str, name: str) -> list[dict[str, Any]]:
    """Of one case, by rank."""
    return [worker[name] for worker in job(mode)]


@both_modes
def test_what_the_chief_writes_at_the_end_is_there_when_fit_returns_elsewhere(mode: str) -> None:
    for result in results(mode, "the_chief_writes_what_all_read"):
        assert result == {"equal": True}


@both_modes
def test_metrics_may_have_several_values(mode: str) -> None:
    for result in results(mode, "a_metric_has_several_values"):
        assert result == {"loss": [2], "f1": [2, 3], "val_f1": [2, 3]}


def test_who_looks_for_a_file_of_the_chief_learns_where_it_is(tmp_path: Path) -> None:
    script = tmp_path / "loads.py"
    script.write_text(
        "import os, keras, numpy as np, keras_strom\n"
        "os.chdir(os.environ['HERE']); os.mkdir(str(keras_strom.rank()))\n"
        "os.chdir(str(keras_strom.rank()))\n"  # Two machines without a common disk.
        "with keras_strom.StromStrategy().scope():\n"
        "    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])\n"
        "    model.compile('sgd', 'mse')\n"
        "best = keras.callbacks.ModelCheckpoint('best.keras')\n"
        "model.fit(np.ones((8, 2)), np.ones(8), batch_size=1, callbacks=[best])\n"
        "keras.models.load_model('best.keras')\n"
    )
    script.write_text(script.read_text().replace("os.environ['HERE']", repr(str(tmp_path))))
    done = launch(script, timeout=200)
    assert done.returncode != 0
    assert "in fit only worker 0 writes files (ModelCheckpoint best.keras)" in done.stdout
    assert "read them on worker 0 alone (if keras_strom.is_chief(): ...)" in done.stdout


def test_only_a_missing_file_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "_left_to_the_chief", {"ModelCheckpoint best.keras": None})
    for error, explained in (
        (FileNotFoundError("best.keras"), True),
        (ValueError("File not found: filepath=best.keras"), True),
        (ValueError("bad data"), False),
    ):
        callbacks.explain_missing_file(error)
        callbacks.explain_missing_file(error)  # By a function's runner and by Python itself.
        assert len(getattr(error, "__notes__", [])) == explained
