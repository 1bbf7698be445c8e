"""A job that is killed in the middle goes on from its checkpoint, with any number of workers.

Each job runs tests/support/scripts/elastic.py in processes over a real relay on the loopback.
"""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_strom import NetworkConfig, errors
from keras_strom.recovery.checkpoint_files import Part
from keras_strom.runner.console import Console
from keras_strom.runner.launcher import Job, launch
from keras_strom.runner.work import Script
from tests.support import faults
from tests.support.elastic_jobs import latest_parts, run_until_killed
from tests.support.faults import Fault
from tests.support.scripts import elastic
from tests.support.two_workers import VARIABLES

pytestmark = pytest.mark.jobs

WORK = elastic.Job(epochs=4, pause=0.02)
#: Batches of an epoch, of all workers together.
BATCHES = WORK.rows // WORK.batch


def taken_by(rank: int, parts: dict[int, Part]) -> Part:
    """The part that a worker of the next run takes: its own, or another's."""
    return parts[rank] if rank in parts else parts[sorted(parts)[rank % len(parts)]]


def run_again(folder: Path, workers: int, checkpoints: Path) -> list[dict[str, Any]]:
    """Runs the job to its end; what its workers have left, in rank order."""
    output = io.StringIO()
    work = json.dumps(vars(dataclasses.replace(WORK, pause=0.0)))
    job = Job(
        work=Script(elastic.__file__, (str(folder), work)),
        workers=workers,
        network=NetworkConfig(checkpoint_dir=str(checkpoints)),
        env=VARIABLES,
        warm_start=True,
    )
    try:
        launch(job, Console(workers, output))
    finally:
        sys.stdout.write(output.getvalue())  # Shown where the test fails.
    results = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(workers)]
    weights = [dict(np.load(folder / f"{rank}.npz")) for rank in range(workers)]
    for other in weights[1:]:
        for name, value in weights[0].items():
            np.testing.assert_array_equal(other[name], value)
    # What undisturbed jobs learn is right for 0.96 of the test data.
    assert all(result["accuracy"] > 0.93 for result in results)
    return [{**result, "output": output.getvalue()} for result in results]


@pytest.mark.parametrize("again", [2, 3])
def test_a_job_that_was_killed_goes_on(again: int, tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    parts = run_until_killed(tmp_path, WORK, checkpoints, workers=3)
    results = run_again(tmp_path, again, checkpoints)
    per_epoch = BATCHES // again
    for rank, result in enumerate(results):
        place = parts[rank if again == 3 and rank in parts else min(parts)].place
        (epoch, first), *later = result["fits"][0]["batches"]
        done = round(place.batch * per_epoch / (BATCHES // 3))
        assert (epoch, first) == (place.epoch, per_epoch - done)
        assert later == [[number, per_epoch] for number in range(epoch + 1, WORK.epochs)]
        # The optimizer goes on as well.
        trained = int(taken_by(rank, parts).arrays["optimizer 0/0"])
        assert result["fits"][0]["iterations"][0] == trained
        assert result["steps"] == trained + first + per_epoch * len(later)
    assert f"goes on from the checkpoint {checkpoints}" in results[0]["output"]
    all_have_their_own = again == 3 and len(parts) == 3
    assert ("without the residuals" in results[0]["output"]) != all_have_their_own
    # It has ended well: the next run begins anew.
    assert [path.name for path in checkpoints.iterdir()] == ["master.json"]


TWO_FITS = """
import os, pathlib, sys
import keras, numpy as np
import keras_strom

folder, rate = pathlib.Path(sys.argv[1]), float(sys.argv[2])
rank, again = keras_strom.rank(), (folder / "died").exists()

def build(**options):
    layers = [keras.Input((4,)), keras.layers.Dense(3), keras.layers.BatchNormalization()]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(rate, **options), "mse", jit_compile=False)
    return model

class EndsOnceThereIsACheckpoint(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.stop_training = again
        if not again and list(folder.glob("checkpoints/checkpoint-*/000000.fit2.*")):
            (folder / "died").touch()
            os._exit(7)

with keras_strom.StromStrategy().scope():
    first, second = build(use_ema=True), build()
x = np.random.default_rng(1).normal(size=(64, 4)).astype("float32")
fit = {"x": x, "y": x.sum(1), "batch_size": 8, "verbose": 0}
first.fit(**fit, epochs=3)
np.savez(folder / f"{'again' if again else 'before'}_{rank}.npz", *first.get_weights())
second.fit(**fit, epochs=100000, callbacks=[EndsOnceThereIsACheckpoint()])
"""


def test_a_fit_that_was_over_has_the_weights_that_it_had(tmp_path: Path) -> None:
    (script := tmp_path / "two_fits.py").write_text(TWO_FITS)
    network = NetworkConfig(
        checkpoint_dir=str(tmp_path / "checkpoints"), checkpoint_interval=0.1, failure_timeout=1.0
    )

    def run(rate: str) -> str:
        output = io.StringIO()
        work = Script(str(script), (str(tmp_path), rate))
        job = Job(work=work, workers=2, network=network, env=VARIABLES, warm_start=True)
        try:
            launch(job, Console(2, output))
        finally:
            sys.stdout.write(output.getvalue())
        return output.getvalue()

    with pytest.raises(errors.WorkerFailed):
        run("0.01")
    output = run("0.02")
    assert "fit 1 was over when the checkpoint" in output
    assert "fit 2 in epoch" in output
    assert "goes on as the checkpoint has it (0.01), not as the script gives it (0.02)" in output
    before = np.load(tmp_path / "before_0.npz")
    for rank in range(2):
        again = np.load(tmp_path / f"again_{rank}.npz")
        for name in before.files:
            np.testing.assert_array_equal(again[name], before[name])


def test_on_spark_a_run_that_failed_goes_on(spark: Any, tmp_path: Path) -> None:
    from keras_strom.spark import run as run_on_spark

    folder, per_epoch = tmp_path / "checkpoints", BATCHES // 2
    network = NetworkConfig(checkpoint_dir=str(folder), checkpoint_interval=0.2)
    killed = Fault(mode="kill", rank=1, step=2 * per_epoch + 30)

    def run_once(env: dict[str, str]) -> list[dict[str, Any]]:
        return run_on_spark(
            elastic.train,
            (WORK, str(tmp_path)),
            num_proc=2,
            max_failures=0,
            network=network,
            env=env,
            spark=spark,
        )

    with pytest.raises(errors.WorkerFailed):
        run_once(faults.to_environ(killed))
    parts = latest_parts(folder)
    if 1 in parts:
        assert 0 < parts[1].place.epoch * per_epoch + parts[1].place.batch <= 2 * per_epoch + 30
    results = run_once({})
    for rank, result in enumerate(results):
        place = parts[rank if rank in parts else min(parts)].place
        (epoch, first), *later = result["fits"][0]["batches"]
        assert (epoch, first) == (place.epoch, per_epoch - place.batch)
        assert later == [(number, per_epoch) for number in range(epoch + 1, WORK.epochs)]
    for one, other in zip(results[0]["weights"], results[1]["weights"], strict=True):
        np.testing.assert_array_equal(one, other)
    assert not list(folder.glob("checkpoint-*"))
