"""`keras_strom.run`: a function on workers of this machine, as a notebook calls it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_strom
from keras_strom import errors

QUIET: dict[str, Any] = {"verbose": 0, "env": {"TF_CPP_MIN_LOG_LEVEL": "3"}}


def train(epochs: int, *, killed: str = "") -> tuple[int, list[float], list[np.ndarray]]:
    """Of worker 1 the first process ends in the middle, where `killed` names a file to be made."""
    import keras

    class Ends(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            if keras_strom.rank() == 1 and batch == 3 and killed and not os.path.exists(killed):
                Path(killed).touch()
                os.kill(os.getpid(), signal.SIGKILL)

    with keras_strom.StromStrategy().scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(256, 4)).astype(np.float32)
    history = model.fit(x, x[:, :2], epochs=epochs, verbose=0, callbacks=[Ends()])
    return keras_strom.rank(), history.history["loss"], model.get_weights()


def assert_trained_together(results: list[Any], epochs: int) -> None:
    assert [rank for rank, *_ in results] == [0, 1]
    assert all(len(losses) == epochs for _, losses, _ in results)
    for one, other in zip(results[0][2], results[1][2], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.jobs
def test_workers_train_together_and_results_come_in_rank_order() -> None:
    assert_trained_together(keras_strom.run(train, (2,), num_proc=2, **QUIET), epochs=2)


@pytest.mark.jobs
def test_a_worker_that_is_killed_is_started_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = {"killed": str(tmp_path / "killed")}
    results = keras_strom.run(train, [3], killed, num_proc=2, **QUIET)
    assert_trained_together(results, epochs=3)
    assert "it is started again (failure 1 of 3)" in capsys.readouterr().out


def cold(fn: Any, *args: Any, **options: Any) -> list[Any]:
    """Calls a function that needs no TensorFlow."""
    return keras_strom.run(fn, *args, **{"num_proc": 2, "warm_start": False, **QUIET, **options})


@pytest.mark.jobs
def test_enough_workers_begin_and_the_others_join_them(tmp_path: Path) -> None:
    """Worker 1 comes only when worker 0 has trained its first batch."""

    def train_apart(begun: str) -> tuple[int, int]:
        import time

        import keras

        class Batch(keras.callbacks.Callback):  # type: ignore[misc]
            def on_train_batch_end(self, batch: int, logs: object = None) -> None:
                Path(begun).touch()

        deadline = time.monotonic() + 120
        while keras_strom.rank() == 1 and not os.path.exists(begun):
            assert time.monotonic() < deadline, "worker 0 has not begun without worker 1"
            time.sleep(0.05)
        with keras_strom.StromStrategy().scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
            model.compile("sgd", "mse")
        x = np.zeros((64, 4), np.float32)
        model.fit(x, x[:, :2], epochs=2, verbose=0, callbacks=[Batch()])
        return keras_strom.rank(), keras_strom.size()

    begun = str(tmp_path / "begun")
    results = keras_strom.run(train_apart, (begun,), num_proc=2, min_workers=1, **QUIET)
    assert results == [(0, 2), (1, 2)]


def test_one_worker_and_another_thread_will_do() -> None:
    results: list[Any] = []
    caller = threading.Thread(
        target=lambda: results.extend(cold(lambda x: x + keras_strom.size(), (4,), num_proc=1))
    )
    caller.start()
    caller.join()
    assert results == [5]


@pytest.mark.parametrize("shown", [True, False])
def test_an_exception_ends_the_job_and_says_everything_once(
    shown: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> None:
        rank = keras_strom.rank()
        with open(tmp_path / f"calls-{rank}", "a") as file:
            file.write("x")
        sys.stdout.write(f"before {rank}\n")
        if rank == 1:
            raise ValueError("out of cheese")
        signal.pause()

    with pytest.raises(errors.WorkerFailed) as caught:
        cold(work, stream_logs=shown)
    said = str(caught.value)
    assert said.startswith("worker 1 on ")
    assert said.count("\nValueError: out of cheese") == 1
    assert ("before 1" in said) is not shown
    assert ("[1] before 1" in capsys.readouterr().out) is shown
    assert (tmp_path / "calls-1").read_text() == "x"  # It would be raised again.


def test_what_a_worker_returns_may_be_unknown_here(tmp_path: Path) -> None:
    (tmp_path / "only_there.py").write_text("class Own:\n    pass\n")

    def work(folder: str) -> Any:
        import importlib
        import sys

        sys.path.insert(0, folder)
        return importlib.import_module("only_there").Own()

    with pytest.raises(errors.StromError, match=r"worker 0 cannot be read here: .*only_there"):
        cold(work, (str(tmp_path),), num_proc=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_proc": None}, r'num_proc=4\) or where \(hosts="a:4,b:4"\)'),
        ({"num_proc": 0}, "num_proc=0"),
        ({"num_proc": 2.0}, "num_proc=2.0"),
        ({"hosts": ["a", "b"]}, r"hosts=\['a', 'b'\] must be a text"),
        ({"hosts": "a:x"}, "hosts='a:x': 'x' after a is no number"),
        ({"ssh_args": "-p 2222"}, "no effect without hosts"),
        ({"ssh_args": "'", "hosts": "a:2"}, "ssh_args=': no closing quotation"),
        ({"network": 40100}, "network=40100 must be a NetworkConfig"),
        ({"max_failures": -1}, "max_failures=-1"),
        ({"start_timeout": 0}, "start_timeout=0"),
        ({"drain_seconds": 0}, "drain_seconds=0 must be a positive, finite number of seconds"),
        ({"min_workers": 0}, "min_workers=0"),
        ({"min_workers": 3}, "min_workers=3 is more than num_proc=2"),
        ({"env": {"KERAS_STROM_RANK": "1"}}, "env must not set KERAS_STROM_RANK"),
        ({"env": ["A"]}, "env"),
        ({"warm_start": "no"}, "warm_start='no' must be True or False"),
        ({"stream_logs": None}, "stream_logs=None must be True or False"),
        ({"verbose": 2}, "verbose=2 must be 0 or 1"),
        ({"dashboard": "a page"}, "dashboard"),
        ({"args": 5}, "args=5 must be a tuple or a list"),
        ({"kwargs": ()}, r"kwargs=\(\) must be a dict"),
        ({"fn": 5}, "fn=5 cannot be called"),
        ({"fn": threading.Lock().acquire}, "cannot be pickled"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(options: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.InvalidOption, match=words):
        keras_strom.run(**{"fn": len, "num_proc": 2, **options})


def test_more_workers_than_memory_can_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keras_strom.runner.fleet.available_memory", lambda: 2 << 26)
    with pytest.raises(errors.NotEnoughSlots, match=r"3 workers .* hold 2 at most: .* num_proc="):
        keras_strom.run(os.getpid, num_proc=3)
