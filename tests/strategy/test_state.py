"""Files, callbacks and weights assigned between fits, with several workers.

Each job runs tests/support/scripts/state.py in two processes, twice: the second goes on from the
files and from the backup that the first has left when it was interrupted.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.scripts import state
from tests.support.two_workers import WORKERS, run_two_workers

pytestmark = pytest.mark.jobs

SCRIPT = Path(state.__file__)

# Asynchronous workers have a folder each for the backup, as machines without a common file system.
MODES = {"0": "1", "None": "2"}


class Jobs:
    """What the workers of both jobs have written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parts = [
            [json.loads((folder / f"{part}_{rank}.json").read_text()) for rank in range(WORKERS)]
            for part in (1, 2)
        ]


_folders: list[tempfile.TemporaryDirectory[str]] = []  # removed when the test run ends


@functools.cache
def jobs(mode: str) -> Jobs:
    """Runs both jobs once a mode; the checks below share them."""
    _folders.append(tempfile.TemporaryDirectory(prefix="keras-strom-state-"))
    folder = _folders[-1].name
    for part in ("1", "2"):
        run_two_workers(SCRIPT, folder, mode, part, env={"TEST_BACKUP_FOLDERS": MODES[mode]})
    return Jobs(Path(folder))


@pytest.fixture(params=list(MODES))
def both(request: pytest.FixtureRequest) -> Jobs:
    return jobs(request.param)


# ------------------------------------------------------------------ the first job


def test_callbacks_of_keras_write_on_the_chief_alone(both: Jobs) -> None:
    first, second = both.parts[0]
    assert first["files"] == ["1.keras", "2.keras", "best.weights.h5", "board", "log.csv"]
    assert second["files"] == []
    lines = (both.folder / "0" / "log.csv").read_text().splitlines()
    columns = lines[0].split(",")
    assert [name for name in columns if not name.startswith("strom/")][:4] == [
        "epoch",
        "accuracy",
        "loss",
        "val_accuracy",
    ]
    assert "strom/density" in columns
    assert len(lines) == 3


def test_a_users_own_callback_runs_on_every_worker(both: Jobs) -> None:
    assert sorted(path.name for path in both.folder.glob("user_*")) == ["user_0", "user_1"]


def test_what_another_worker_assigns_between_fits_is_lost_with_a_warning(both: Jobs) -> None:
    for part in both.parts[0]:
        assert part["went_on_from_the_chiefs"]
    first, second = both.parts[0]
    assert not [words for words in first["warnings"] if "are lost" in words]
    assert [words for words in second["warnings"] if "are lost" in words and "worker 0" in words]


def test_weights_that_the_chief_loads_between_fits_are_everybodys(both: Jobs) -> None:
    for part in both.parts[0]:
        assert part["took_what_the_chief_loaded"]


def test_weights_that_are_assigned_between_fits_get_no_updates_of_the_old_ones(both: Jobs) -> None:
    for part in both.parts[0]:
        assert np.unique(np.concatenate([np.ravel(v) for v in part["assigned"]])).tolist() == [0.5]


def test_the_learning_rate_that_the_chief_decides_is_everybodys(both: Jobs) -> None:
    first, second = (part["reduced"] for part in both.parts[0])
    assert first == [0.25, 0.25, 0.125, 0.0625]
    if both is jobs("0"):
        assert second == first
    else:  # One that is ahead takes it over an epoch later.
        assert set(second) <= set(first)
        assert second == sorted(second, reverse=True)


# ------------------------------------------------------------------ the second job


def test_a_workers_own_schedule_finds_the_rate_that_it_has_set(both: Jobs) -> None:
    for rank, part in enumerate(both.parts[0]):
        rates = 1e-3 * (rank + 1) * np.array([1, 0.5, 0.25])
        np.testing.assert_allclose(part["scheduled"], rates, rtol=1e-6)


def test_an_interrupted_job_goes_on_at_the_chiefs_epoch_with_its_learning_rate(both: Jobs) -> None:
    steps = both.parts[0][0]["steps"]
    for part in both.parts[1]:
        assert part["epochs"] == [2, 3, 4]
        np.testing.assert_allclose(part["rates"], 0.03, rtol=1e-6)
        assert part["steps"][0] == steps
    assert not (both.folder / "backup_0").exists()


@pytest.mark.parametrize("name", ["weights", "loaded", "adapted"])
def test_the_second_job_ends_with_the_same_bits_on_all_workers(both: Jobs, name: str) -> None:
    first, second = both.parts[1]
    assert first[name] == second[name]


def test_a_model_file_loads_in_scope_with_its_optimizers_state(both: Jobs) -> None:
    for part in both.parts[1]:
        assert part["loaded_steps"] == 12


_PLAIN = """
import sys

sys.modules["keras_strom"] = None  # importing it is an error
import keras, numpy as np, tensorflow as tf

folder = sys.argv[1]
wanted = np.load(folder + "/trained.npz")
model = keras.models.load_model(folder + "/trained.keras")
np.testing.assert_allclose(model.predict(wanted["x"], verbose=0), wanted["y"], rtol=1e-6)
assert int(model.optimizer.iterations.numpy()) == 12
model.fit(wanted["x"], np.zeros(len(wanted["x"])), verbose=0)
model.load_weights(folder + "/0/best.weights.h5")
exported = tf.saved_model.load(folder + "/exported")
served = exported.signatures["serving_default"](tf.constant(wanted["x"]))
np.testing.assert_allclose(next(iter(served.values())).numpy(), wanted["y"], rtol=1e-5, atol=1e-6)
"""


def test_files_are_plain_keras_and_tensorflow() -> None:
    """In a process where keras_strom does not exist."""
    command = [sys.executable, "-c", _PLAIN, str(jobs("0").folder)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    completed = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert completed.returncode == 0, completed.stderr[-4000:]


def test_tensorboard_reads_the_chiefs_curves() -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="TensorBoard is not installed",
    )
    curves: Any = accumulator.EventAccumulator(str(jobs("0").folder / "0" / "board" / "train"))
    curves.Reload()
    assert "epoch_loss" in curves.Tags()["tensors"]
