"""The live page of a job on Spark: its workers tell of themselves through their tasks."""

import re
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("prometheus_client")

from keras_strom import errors
from keras_strom.dashboard import reading
from keras_strom.spark import ParameterAveraging, StromEstimator, run
from keras_strom.spark.runner.messages import Said, parse_from_task
from tests.support import simulated_job


def train(stop: str) -> int:
    """Trains until a file is there; the number of steps."""
    import keras
    import numpy as np

    import keras_strom

    with keras_strom.StromStrategy().scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")

    class Ends(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            time.sleep(0.02)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = Path(stop).exists()

    x = np.ones((32, 4), np.float32)
    model.fit(x, x[:, :1], batch_size=4, epochs=100_000, verbose=0, callbacks=[Ends()])
    return int(model.optimizer.iterations.numpy())


def test_the_page_of_a_run_shows_its_workers_while_they_train(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    stop, seen = tmp_path / "stop", []

    def look() -> None:
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline and not stop.exists():
            try:
                state = reading.read_state(reading.find_page(None))
            except errors.StromError:
                time.sleep(0.1)
                continue
            steps = [row[state["columns"].index("step_seconds")] for row in state["workers"]]
            trains = state["activities"] == {"training": 2} and all(steps)
            if trains and "loss" in state["metrics"]:  # Noted once a second.
                seen.append(state)
                stop.touch()
            time.sleep(0.1)
        stop.touch()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    steps = run(train, (str(stop),), num_proc=2, spark=spark, verbose=0, dashboard=True)
    thread.join()
    assert all(steps)
    (state,) = seen
    assert state["name"] == "train"
    assert "loss" in state["metrics"]
    assert all(row[state["columns"].index("round_trip")] is not None for row in state["workers"])
    with pytest.raises(errors.StromError):  # The page is gone with the job.
        reading.find_page(None)


def test_a_task_passes_on_what_its_worker_says() -> None:
    record = simulated_job.record(1, 2, 3)
    said = parse_from_task({"type": "status", "record": record.to_json()})
    assert isinstance(said, Said)
    assert said.record.steps == record.steps
    with pytest.raises(errors.CorruptMessage):
        parse_from_task({"type": "status", "record": "nonsense"})


def test_a_page_that_cannot_be_served_is_refused_before_data_are_read(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        estimator = StromEstimator(model_fn=list, feature_cols=["x"], dashboard=port)
        with pytest.raises(errors.AddressError, match=f"127.0.0.1:{port}.*another port"):
            estimator.fit_on_parquet(str(tmp_path / "nowhere"))


def test_an_estimator_asks_for_a_page_as_run_does() -> None:
    with pytest.raises(errors.InvalidOption, match=re.escape("dashboard='nowhere'")):
        StromEstimator(dashboard="nowhere")
    averaging = ParameterAveraging()
    names = (
        "strategy",
        "network",
        "min_proc",
        "max_proc",
        "max_failures",
        "drain_seconds",
        "use_gpu",
    )
    values = dict.fromkeys(names)
    averaging.check({**values, "dashboard": False})
    with pytest.raises(errors.InvalidOption, match="dashboard has no effect"):
        averaging.check({**values, "dashboard": True})
