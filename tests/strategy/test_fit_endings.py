"""How a `fit` of two workers ends, well or not, and that the job lives on.

The cases are those of tests/support/scripts/fit_endings.py, one job for each mode.
"""

from __future__ import annotations

import functools
import re
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from keras_strom import errors
from keras_strom.sharing.training_step import JointPlan
from keras_strom.strategy import callbacks, fit_failure, generation
from tests.support import two_workers
from tests.support.scripts import fit_endings
from tests.support.two_workers import launch, run_two_workers

#: Lines of a script, behind its imports.
SMALL_MODEL = (
    "with keras_strom.StromStrategy().scope():\n"
    "    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])\n"
    "    model.compile('sgd', 'mse')\n"
)

pytestmark = pytest.mark.jobs

MODES = ["None", "0"]

both_modes = pytest.mark.parametrize("mode", MODES)


@functools.cache
def job(mode: str) -> list[dict[str, Any]]:
    """What each worker's cases have returned; the checks below share it."""
    with tempfile.TemporaryDirectory() as folder:
        run_two_workers(Path(fit_endings.__file__), folder, mode)
        return two_workers.results(folder)


def results(mode: str, name: str) -> list[dict[str, Any]]:
    """Of one case, by rank."""
    return [worker[name] for worker in job(mode)]


@both_modes
def test_what_the_chief_writes_at_the_end_is_there_when_fit_returns_elsewhere(mode: str) -> None:
    for result in results(mode, "the_chief_writes_what_all_read"):
        assert result == {"equal": True}


@both_modes
def test_the_chief_decides_whether_an_epoch_ends_early(mode: str) -> None:
    for result in results(mode, "worker_1_wants_to_stop_within_an_epoch"):
        assert result == {"batches": 2 * 6, "epochs": [0, 1]}


@both_modes
def test_the_chief_decides_after_an_epoch_too_and_another_worker_says_so(mode: str) -> None:
    first, second = results(mode, "worker_1_wants_to_stop_after_an_epoch")
    assert first == {"epochs": [0, 1], "warned": []}
    assert second["epochs"] == [0, 1]
    assert [words[: words.index(",")] for words in second["warned"]] == [
        "worker 1: a callback has set model.stop_training"
    ]


@both_modes
def test_early_stopping_off_the_chief_is_no_news(mode: str) -> None:
    first, second = results(mode, "early_stopping_of_worker_1_comes_first")
    assert first == {"epochs": [0, 1, 2, 3], "warned": [], "stopped": 0}
    assert second == first | {"stopped": 3}


@both_modes
def test_arrays_that_are_not_as_long_on_all_workers_are_warned_of(mode: str) -> None:
    warned = [each["warned"] for each in results(mode, "the_arrays_of_worker_1_are_shorter")]
    # Who ends the epoch first knows nothing of the other's, unless they end it together.
    assert any(warned) if mode == "None" else all(warned)
    for rows, found in zip([96, 80], warned, strict=True):
        assert len(found) <= 1
        assert all(f"have {rows} rows here, and 88.0 in the workers' mean" in one for one in found)


@both_modes
def test_metrics_may_have_several_values(mode: str) -> None:
    for result in results(mode, "a_metric_has_several_values"):
        assert result == {"loss": [2], "f1": [2, 3], "val_f1": [2, 3]}


@both_modes
def test_constraints_hold_in_validation_callbacks_and_afterwards(mode: str) -> None:
    first, second = results(mode, "constraints_hold_wherever_one_looks")
    for result in (first, second):
        assert result["negative"] == [0.0] * 8
        assert result["norm"] <= 0.1 * (1 + 1e-5)
        assert result["moved"]
        assert result["assigned_outside"] == 0
    assert first["digest"] == second["digest"]


@both_modes
@pytest.mark.parametrize(
    ("rank", "name"),
    [
        (0, "a_nan_of_the_chief_ends_the_training"),
        (1, "a_nan_of_worker_1_ends_the_training"),
        (1, "a_nan_of_worker_1_that_loss_scaling_skips"),
    ],
)
def test_a_nan_ends_the_training_of_all_workers_as_its_callback_says(
    mode: str, rank: int, name: str
) -> None:
    first, second = results(mode, name)
    for number, result in enumerate((first, second)):
        assert result["raised"] == ""
        assert result["loss_is_nan"]
        epoch_ends, training_ends = result["called"][-2:]
        assert epoch_ends.startswith(f"epoch {result['epochs'] - 1} ends")
        # Without order the other may hear of it when its epoch's callbacks are through.
        assert epoch_ends.endswith("loss nan") or (mode == "None" and number != rank)
        assert training_ends == "training ends"
        assert result["finite"]
        assert result["learns"]
    assert (first, second)[rank]["epochs"] == 1  # Without order the other may be ahead.
    assert mode == "None" or first["epochs"] == second["epochs"]
    assert first["digest"] == second["digest"]
    assert first["digest_after"] == second["digest_after"]


@both_modes
def test_a_nan_that_no_callback_looks_for_fails_the_fit_of_all_workers(mode: str) -> None:
    first, second = results(mode, "a_nan_that_no_callback_looks_for")
    assert second["raised"].startswith("NotFinite: ")
    assert first["raised"].startswith("FitFailed: fit has failed on worker 1 (NotFinite: ")
    for result in (first, second):
        assert result["finite"]
        assert result["learns"]
    assert first["digest"] == second["digest"]
    assert first["digest_after"] == second["digest_after"]


@both_modes
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("where", fit_endings.FAILING)
def test_a_fit_that_fails_on_one_worker_fails_on_all_and_the_next_starts_together(
    mode: str, rank: int, where: str
) -> None:
    both = results(mode, f"worker_{rank}_fails_{where}")
    cause = f"RuntimeError: on purpose in {fit_endings.FAILING[where]}"
    assert both[rank]["raised"] == cause
    assert both[1 - rank]["raised"].startswith(
        f"FitFailed: fit has failed on worker {rank} ({cause}), and so on all workers"
    )
    for result in both:
        assert result["learns"]
        assert result["workers"], "each trained alone"
    assert both[0]["digest"] == both[1]["digest"]


@both_modes
def test_fits_in_a_row_that_fail_before_they_start_all_fail_on_all(mode: str) -> None:
    first, second = results(mode, "worker_1_fails_before_the_start_three_times")
    cause = "RuntimeError: on purpose in on_train_begin"
    assert second["all_raised"] == [cause] * 3
    for raised in first["all_raised"]:
        assert raised.startswith(f"FitFailed: fit has failed on worker 1 ({cause}), and so on all")
    for result in (first, second):
        assert result["learns"]
        assert result["workers"], "each trained alone"
    assert first["digest"] == second["digest"]


@both_modes
def test_a_fit_in_a_callback_is_refused_in_the_last_epoch_and_after_it_too(mode: str) -> None:
    first, second = results(mode, "fits_in_a_callback")
    for result in (first, second):
        assert set(result["raised"]) == {"on_epoch_end", "on_train_end"}
        for words in result["raised"].values():
            assert "call no fit in a callback of another one" in words
        assert result["learns"]
    assert first["digest"] == second["digest"]


@both_modes
def test_a_custom_loop_in_a_callback_is_refused_too(mode: str) -> None:
    first, second = results(mode, "begins_in_a_callback")
    for result in (first, second):
        assert "a training has not ended yet" in result["raised"]
        assert result["learns"]
    assert first["digest"] == second["digest"]


@both_modes
def test_a_train_step_that_shares_nothing_is_refused(mode: str) -> None:
    for result in results(mode, "a_train_step_assigns_all_itself"):
        assert re.match(r"(UnsupportedModel|FitFailed): .*train_step changes ", result["raised"])
        assert "self.optimizer.apply(gradients, variables)" in result["raised"]
        assert result["learns"]


@both_modes
def test_a_first_fit_that_fails_before_it_starts_fails_on_all(mode: str) -> None:
    first, second = results(mode, "the_first_fit_fails")
    assert second["raised"] == "RuntimeError: on purpose in on_train_begin"
    # A chief that joins only after that is told of it as it comes to the start.
    assert "on worker 1 (RuntimeError: on purpose in on_train_begin)" in first["raised"]
    assert first["learns"]
    assert second["learns"]
    assert first["digest"] == second["digest"]


def test_where_failures_are_allowed_the_others_train_on_and_say_so(tmp_path: Path) -> None:
    script = tmp_path / "leaves.py"
    script.write_text(
        "import pathlib, time, keras, numpy as np, keras_strom\n"
        f"left = pathlib.Path({str(tmp_path / 'left')!r})\n"
        "class Leaves(keras.callbacks.Callback):\n"
        "    def on_epoch_begin(self, epoch, logs=None):\n"
        "        if epoch == 1 and keras_strom.rank() == 1:\n"
        "            raise RuntimeError('on purpose')\n"
        "        while epoch == 1 and not left.exists():\n"
        "            time.sleep(0.01)\n"
        "strategy = keras_strom.StromStrategy()\n"
        "with strategy.scope():\n"
        "    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])\n"
        "    model.compile('sgd', 'mse')\n"
        "random = np.random.default_rng(0)\n"
        "x, y = random.normal(size=(64, 2)), 9 * random.normal(size=64)\n"
        "try:\n"
        "    history = model.fit(x, y, 1, epochs=3, verbose=0, callbacks=[Leaves()]).history\n"
        "    print('epochs', len(history['loss']), strategy.last_report)\n"
        "except RuntimeError as error:\n"
        "    print('caught', error)\n"
        "    left.touch()\n"
        "model.fit(x, y, 1, epochs=3, verbose=0)\n"
        "print('updates', strategy.last_report.updates_applied)\n"
    )
    done = launch(script, options=("--max-failures", "1"))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "[1] caught on purpose" in lines
    told = "worker 1 left to join anew: its fit failed: RuntimeError: on purpose"
    assert any(line.startswith("[0] epochs 3 ") and told in line for line in lines), lines
    assert f"[0] worker 0 (attempt 0) trains on while {told}" in lines
    updates = [int(line.split()[-1]) for line in lines if " updates " in line[:12]]
    assert len(updates) == 2, lines
    assert min(updates) > 0, "each trained alone"


def test_a_worker_that_comes_after_the_end_has_the_history_of_the_chief(tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    script.write_text(
        "import json, os, pathlib, time, keras, numpy as np, keras_strom\n"
        f"ended = pathlib.Path({str(tmp_path / 'ended')!r})\n"
        "class Dies(keras.callbacks.Callback):\n"
        "    def on_epoch_begin(self, epoch, logs=None):\n"
        "        if epoch == 1 and keras_strom.rank() == 1:\n"
        "            os._exit(3)\n"
        "while os.environ['KERAS_STROM_ATTEMPT'] != '0' and not ended.exists():\n"
        "    time.sleep(0.01)\n"
        "strategy = keras_strom.StromStrategy()\n"  # Who has joined is waited for at the end.
        "with strategy.scope():\n"
        "    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])\n"
        "    model.compile('sgd', 'mse')\n"
        "x, y = np.ones((64, 2)), np.ones(64)\n"
        "fit = model.fit(x, y, 1, epochs=3, verbose=0, callbacks=[Dies()], validation_split=0.1,"
        " validation_freq=2)\n"
        "ended.touch()\n"
        "print('history', json.dumps(fit.history), fit.epoch)\n"
        "print('steps', strategy.last_report.steps)\n"
    )
    done = launch(script, options=("--max-failures", "1"))
    assert "[1] steps 0" in done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if " history " in line[:13]]
    assert sorted(line[:4] for line in lines) == ["[0] ", "[1] "], done.stdout
    assert lines[0][4:] == lines[1][4:]
    assert '"val_loss"' in lines[1]
    assert '"strom/density"' in lines[1]


@pytest.mark.parametrize("has_returned", [True, False])
def test_a_start_without_the_chiefs_values_is_tried_again_where_the_chief_may_be_on_its_way(
    monkeypatch: pytest.MonkeyPatch, has_returned: bool
) -> None:
    words = "the chief's values do not fill the model's 9 parameters, and the master has none of "
    refusal = errors.Refused(words + "its own")
    outcomes: list[Any] = [refusal, refusal, np.zeros(9, np.float32)]
    joined: list[Mock] = []

    def join() -> Mock:
        outcome = outcomes[len(joined)]
        start = Mock(side_effect=[outcome])  # An exception is raised.
        status = {"notices": [], "failure": "", "counters": {"bytes_sent": 0, "bytes_received": 0}}
        joined.append(Mock(start=start, status=Mock(return_value=status)))
        return joined[-1]

    monkeypatch.setattr(generation, "_CHIEF_SECONDS", 0.0)
    sharing = Mock(started=True, ended=None, join=join, fits=2, has_returned=has_returned)
    sharing.options_text = "threshold=None"
    sharing.environment.join_timeout = 60.0
    sharing.environment.is_chief = False
    sharing.worker = join()
    fit = generation.Generation(sharing, [])
    if not has_returned:  # Nobody has left to come back.
        with pytest.raises(errors.Refused, match="none of its own"):
            fit._start_with_others(layout=1, joint=JointPlan())
        return
    assert fit._start_with_others(layout=1, joint=JointPlan()).size == 9
    assert len(joined) == 3
    assert all(worker.close.called for worker in joined[:2])


def test_who_has_joined_anew_by_the_start_of_a_training_is_not_lost_in_it() -> None:
    failed = "worker 1 left to join anew: its fit failed: ValueError: bad data"
    notices = ["worker 2 was lost: silent", failed]
    worker = Mock(status=Mock(side_effect=lambda: {"notices": list(notices)}))
    lost = fit_failure.LostMeanwhile(worker)
    assert lost.words() == []
    notices += [failed, "worker 3 was lost: silent"]
    lost.training_starts()
    assert lost.words() == ["worker 3 was lost: silent"]
    notices += ["worker 2 left to join anew: fit 3 failed on worker 2: ValueError", failed]
    assert lost.words() == ["worker 3 was lost: silent", failed]


def test_it_is_told_once_who_was_lost_and_who_is_back(caplog: pytest.LogCaptureFixture) -> None:
    failed = "worker 1 left to join anew: its fit failed: ValueError: bad data"
    notices = ["worker 2 was lost: silent", "worker 2 is back"]
    worker = Mock(status=Mock(side_effect=lambda: {"notices": list(notices)}))
    lost = fit_failure.LostMeanwhile(worker)
    notices += [failed, "worker 1 has joined anew"]  # It is here by the start.
    lost.training_starts()
    lost.tell("worker 0 (attempt 0)")
    assert not caplog.messages
    sought = "the master at 10.0.0.1:2222 is out of reach (no authentic packet); looking for it"
    found = "the master at 10.0.0.1:2222 answers again"
    notices += [failed, "worker 1 has joined anew", sought, found, "worker 2 has left"]
    for _ in range(2):
        lost.tell("worker 0 (attempt 0)")
        lost.tell("worker 0 (attempt 0)")
        notices += ["worker 2 was lost: silent", "worker 2 is back"]
    who = "worker 0 (attempt 0)"
    assert caplog.messages == [
        f"{who} trains on while {failed}",
        f"{who}: worker 1 has joined anew",
        f"{who}: {sought}",
        f"{who}: {found}",
        f"{who} trains on while worker 2 was lost: silent",
        f"{who}: worker 2 is back",
    ]


def test_who_waits_for_a_start_hears_that_the_fit_has_failed_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counters = {"bytes_sent": 0, "bytes_received": 0}
    notices: list[str] = []
    sharing = Mock(started=True, ended=None, fits=3)
    sharing.worker.status.return_value = {"notices": notices, "counters": counters}
    monkeypatch.setattr(generation, "hand_over_if_asked", Mock())
    waiting = generation.Generation(sharing, [])
    waiting._while_waiting()
    notices.append("worker 1 left to join anew: fit 2 failed on worker 1: ValueError: of before")
    waiting._while_waiting()
    notices.append("worker 1 left to join anew: fit 3 failed on worker 1: ValueError: bad data")
    with pytest.raises(errors.FitFailed, match=r"worker 1 \(ValueError: bad data\)"):
        waiting._while_waiting()


def test_a_start_that_waits_for_one_who_has_ended_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    counters = {"bytes_sent": 0, "bytes_received": 0}
    sharing = Mock(started=False, ended=None, fits=1, told_of=set())
    sharing.worker.status.return_value = {"notices": ["worker 1 has left"], "counters": counters}
    monkeypatch.setattr(generation, "hand_over_if_asked", Mock())
    waiting = generation.Generation(sharing, [])
    for _ in range(2):
        waiting._while_waiting()
    assert caplog.text.count("worker 1 has ended without a training") == 1


def test_a_fit_without_one_who_has_ended_says_so(tmp_path: Path) -> None:
    script = tmp_path / "ends_early.py"
    script.write_text(
        "import keras, numpy as np, keras_strom\n"
        + SMALL_MODEL
        + "for _ in range(3 if keras_strom.is_chief() else 1):\n"
        "    model.fit(np.ones((8, 2)), np.ones(8), verbose=0)\n"
    )
    done = launch(script)
    assert done.returncode == 0
    assert done.stdout.count("worker 1 has ended, so this training begins without its part") == 1


def test_a_fit_of_a_new_model_without_the_chief_who_has_ended_says_so(tmp_path: Path) -> None:
    script = tmp_path / "ends_early.py"
    script.write_text(
        "import keras, numpy as np, keras_strom\n"
        "strategy = keras_strom.StromStrategy()\n"
        "for units in (1,) if keras_strom.is_chief() else (1, 2):\n"
        "    with strategy.scope():\n"
        "        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(units)])\n"
        "        model.compile('sgd', 'mse')\n"
        "    model.fit(np.ones((8, 2)), np.ones((8, units)), verbose=0)\n"
    )
    done = launch(script)
    assert done.returncode == 1
    assert "worker 0, with whose values a new model begins, takes no part" in done.stderr


def test_the_others_of_a_script_that_fails_between_two_fits_hear_why(tmp_path: Path) -> None:
    script = tmp_path / "fails_between.py"
    script.write_text(
        "import os, time, keras, numpy as np, keras_strom\n"
        + SMALL_MODEL
        + "model.fit(np.ones((8, 2)), np.ones(8), verbose=0)\n"
        "if not keras_strom.is_chief() and os.environ['KERAS_STROM_ATTEMPT'] == '0':\n"
        "    raise ValueError('bad data')\n"
        "connection = model.distribute_strategy._sharing.worker\n"
        "deadline = time.monotonic() + 60\n"
        "while keras_strom.is_chief() and time.monotonic() < deadline:\n"
        "    if any('bad data' in text for text in connection.status()['notices']): break\n"
        "    time.sleep(0.02)\n"
        "model.fit(np.ones((8, 2)), np.ones(8), verbose=0)\n"
    )
    done = launch(script, options=["--max-failures", "1"])
    assert done.returncode == 0
    assert done.stdout.count("[0] worker 1's script has failed (ValueError: bad data)") == 1
    assert "must call fit equally often" not in done.stdout


@pytest.mark.parametrize("on_loss", ["stop", "wait"])
@pytest.mark.parametrize("joins", [True, False])
def test_who_waits_for_one_whose_script_has_ended_without_a_training_fails_at_once(
    tmp_path: Path, on_loss: str, joins: bool
) -> None:
    script = tmp_path / "never_trains.py"
    script.write_text(
        "import sys, keras, numpy as np, keras_strom\n"
        + ("strategy = keras_strom.StromStrategy()\n" if joins else "")
        + "if not keras_strom.is_chief(): sys.exit()\n"
        + (SMALL_MODEL.replace("keras_strom.StromStrategy()", "strategy") if joins else SMALL_MODEL)
        + "model.fit(np.ones((8, 2)), np.ones(8), verbose=0)\n"
    )
    done = launch(script, options=["--start-timeout", "600", "--on-master-loss", on_loss])
    assert done.returncode == 1
    assert "Refused: worker 1 has ended without a training, so none can start" in done.stderr


LOOP = (
    "model.optimizer.build(model.trainable_variables)\n"
    "strategy = model.distribute_strategy\n"
    "strategy.begin(model)\n"
    "deadline = time.monotonic() + 60\n"
    "while keras_strom.is_chief() and time.monotonic() < deadline:\n"
    "    model.train_on_batch(np.ones((8, 2)), np.ones(8))\n"
)


def test_a_custom_loop_cannot_be_joined_in_its_middle_and_says_so(tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    script.write_text(
        "import os, time, keras, numpy as np, keras_strom\n"
        + SMALL_MODEL
        + LOOP
        + "if not keras_strom.is_chief(): os._exit(3)\n"
    )
    done = launch(script, options=["--max-failures", "1"])
    assert done.returncode != 0
    assert "worker 1 was started again while the others are in, or past, this custom" in done.stdout


@pytest.mark.parametrize(
    ("checkpoints", "outlives", "words"),
    [(object(), False, "checkpoint_dir is for training"), (None, True, "on_master_loss=.wait. is")],
)
def test_a_custom_loop_is_refused_what_cannot_go_on_in_its_middle(
    checkpoints: object | None, outlives: bool, words: str
) -> None:
    sharing = Mock(started=True, ended=None, fits=0, checkpoints=checkpoints)
    sharing.worker.outlives = outlives
    counters = {"bytes_sent": 0, "bytes_received": 0}
    sharing.worker.status.return_value = {"notices": [], "counters": counters}
    with pytest.raises(errors.UnsupportedModel, match=words):
        generation.Generation(sharing, []).start()
    sharing.worker.start.assert_not_called()


def test_who_looks_for_a_file_of_the_chief_learns_where_it_is(tmp_path: Path) -> None:
    script = tmp_path / "loads.py"
    script.write_text(
        "import os, keras, numpy as np, keras_strom\n"
        "os.chdir(os.environ['HERE']); os.mkdir(str(keras_strom.rank()))\n"
        "os.chdir(str(keras_strom.rank()))\n"  # Two machines without a common disk.
        + SMALL_MODEL
        + "best = keras.callbacks.ModelCheckpoint('best.keras')\n"
        "model.fit(np.ones((8, 2)), np.ones(8), batch_size=1, callbacks=[best])\n"
        "keras.models.load_model('best.keras')\n"
    )
    script.write_text(script.read_text().replace("os.environ['HERE']", repr(str(tmp_path))))
    done = launch(script)
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
