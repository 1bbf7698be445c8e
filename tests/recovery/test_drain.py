"""Workers that are asked to leave hand over what they have learnt, and others go on at their batch.

Each job runs tests/support/scripts/elastic.py in processes over a real relay on the loopback. What
is to happen when is agreed through files, so that a slow machine changes nothing.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_strom import errors
from keras_strom.runner.console import Console
from keras_strom.runner.launcher import Job, launch
from keras_strom.runner.work import Script
from keras_strom.sharing.progress import Progress
from tests.support.elastic_jobs import Ended, run
from tests.support.faults import Fault
from tests.support.scripts import elastic
from tests.support.two_workers import VARIABLES

#: Batches of an epoch of each of two workers.
PER_EPOCH = 60


def check(ended: Ended, *ranks: int, batch: int) -> None:
    """The workers of these ranks have drained after `batch` batches, and lost and repeated none."""
    ended.check()
    assert "lost" not in {kind for kind, _ in ended.events}
    assert sorted(rank for kind, rank in ended.events if kind == "drained") == sorted(ranks)
    assert "(failure" not in ended.output
    for rank in ranks:
        assert ended.results[rank]["attempt"] == 1
        words = (
            rf"worker {rank} \(attempt 0\) has drained: (.*); [\d.]+ s after .*, at step {batch}"
        )
        assert re.search(words, ended.output)
        epoch, gone = divmod(batch, PER_EPOCH)
        batches = ended.results[rank]["fits"][0]["batches"]
        assert batches[0] == [epoch, PER_EPOCH - gone]
        assert all(count == PER_EPOCH for _, count in batches[1:])
        assert f"worker {rank} has drained; it is started again" in ended.output


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("mode", "rank", "sharing"),
    [
        ("sigterm", 1, {}),
        ("drain", 0, {"local_apply": "encoded", "local_steps": 4}),
    ],
    ids=["by SIGTERM", "the chief, by itself, with local steps"],
)
def test_another_worker_goes_on_at_the_batch_of_one_that_was_asked_to_leave(
    tmp_path: Path, mode: Any, rank: int, sharing: dict[str, Any]
) -> None:
    work = elastic.Job(epochs=3, hold_at=PER_EPOCH + 30, sharing=sharing)
    ended = run(tmp_path, work, Fault(mode=mode, rank=rank, step=PER_EPOCH + 21))
    check(ended, rank, batch=PER_EPOCH + 21)
    assert re.search(r"[1-9]\d* elements of its residual, a mass of [\d.e-]+, were", ended.output)


@pytest.mark.jobs
def test_one_that_is_asked_between_two_fits_leaves_as_the_next_begins(tmp_path: Path) -> None:
    work = elastic.Job(epochs=1, fits=2, hold_at=PER_EPOCH + 10)
    ended = run(tmp_path, work, Fault(mode="drain", rank=1, step=PER_EPOCH))
    ended.check()
    # Its residual is that of the first fit.
    assert re.search(r"[1-9]\d* elements of its residual.*, at step 60", ended.output)
    assert ended.results[1]["fits"][1]["batches"] == [[0, PER_EPOCH]]


@pytest.mark.jobs
def test_all_workers_may_leave_at_once(tmp_path: Path) -> None:
    leave = [Fault(mode="drain", rank=rank, step=PER_EPOCH + 30) for rank in range(2)]
    work = elastic.Job(epochs=3, sharing={"max_staleness": 0})
    check(run(tmp_path, work, *leave), 0, 1, batch=PER_EPOCH + 30)


@pytest.mark.jobs
def test_beside_a_joint_model_a_worker_leaves_in_order(tmp_path: Path) -> None:
    work = elastic.Job(epochs=3, hold_at=PER_EPOCH + 30, method="MPCA")
    ended = run(tmp_path, work, Fault(mode="drain", rank=1, step=PER_EPOCH + 20))
    assert ("drained", 1) in ended.events
    assert "has drained: nothing was left here" in ended.output


@pytest.mark.jobs
def test_the_workers_of_a_machine_that_goes_leave_and_the_job_says_that_no_other_has_room(
    tmp_path: Path,
) -> None:
    output, path = io.StringIO(), tmp_path / "gone"
    work = elastic.Job(epochs=50, pause=0.01)
    job = Job(
        work=Script(elastic.__file__, (str(tmp_path), json.dumps(vars(work)))),
        workers=2,
        env=VARIABLES,
        drain_signal="SIGUSR2",
        drain_file=str(path),
        warm_start=True,
    )

    def say_so() -> None:
        tick = threading.Event()
        while len(list(tmp_path.glob("trains-*"))) < 2:
            tick.wait(0.02)
        os.kill(os.getpid(), signal.SIGUSR2)

    speaker = threading.Thread(target=say_so, daemon=True)
    speaker.start()
    with pytest.raises(errors.WorkerFailed, match="it has drained, and no host has room for it"):
        launch(job, Console(2, output))
    shown = output.getvalue()
    assert "keras-strom: SIGUSR2: this machine's workers drain" in shown
    assert shown.count("no other host has a slot free") == 2
    assert len(re.findall(r"\(attempt 0\) has drained: ", shown)) == 2


def test_a_worker_leaves_between_two_steps_of_an_optimizer_that_accumulates() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=3), "mse")
    seen = []

    class Looks(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            seen.append(Progress(model).is_between_steps())

    model.fit(np.ones((7, 2)), np.ones((7, 1)), batch_size=1, verbose=0, callbacks=[Looks()])
    assert seen == [True, False, False, True, False, False, True]
