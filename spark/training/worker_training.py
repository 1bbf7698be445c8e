"""What each worker of an estimator's `fit` does when updates are shared, and what any `fit` leaves.

An interrupted run goes on from its last whole epoch: after each one the chief puts Keras's own
backup into the store, in one file, which appears in one piece.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import keras
import numpy as np

import keras_strom
from keras_strom import errors
from keras_strom.strategy.building import build_for

from ..data.exported import VALIDATION, ExportedData
from ..data.reader import dataset
from ..data.store import StoreRun
from ..inference.serialization import MODEL, PackedModel, save
from ..runner.timeline import Phase, Recorder

if TYPE_CHECKING:
    from keras_strom.strategy.strategy import StromStrategy

_HISTORY = "history.json"
#: Of a backup: the joint model's, as text.
_CYCLES = "joint_cycles"
#: Of a finished run, in its folder: says what it was.
_FINISHED = "finished.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """The same value for every worker.

    Attributes:
        model: what is trained.
        code: pickled: the user's callbacks, transformation and strategy (`Code`).
        data: what is trained on.
        batch_size, val_batch_size, epochs, train_steps_per_epoch, validation_steps_per_epoch,
            shuffle, verbose: as given to the estimator.
        seed: of everything random.
        run: where the chief writes; None = nowhere.
    """

    model: PackedModel
    code: bytes
    data: ExportedData
    batch_size: int
    val_batch_size: int
    epochs: int
    train_steps_per_epoch: int | None
    validation_steps_per_epoch: int | None
    shuffle: bool
    seed: int
    verbose: int
    run: StoreRun | None


@dataclasses.dataclass(frozen=True)
class Code:
    """What the user gave that only Python can carry."""

    callbacks: Any = None
    transformation_fn: Any = None
    strategy: Any = None

    def made_callbacks(self) -> list[Any]:
        """The callbacks, made here where a function makes them.

        Raises:
            InvalidOption: a function that makes something else.
        """
        made = self.callbacks() if callable(self.callbacks) else self.callbacks
        several = [] if made is None else made
        if not isinstance(several, list | tuple) or not all(
            isinstance(one, keras.callbacks.Callback) for one in several
        ):
            raise errors.InvalidOption(
                f"callbacks={self.callbacks!r} has made {made!r}, no list of keras.callbacks."
                "Callback"
            )
        return list(several)

    def pickled(self) -> bytes:
        """As bytes.

        Raises:
            InvalidOption: it cannot be pickled.
        """
        try:
            return bytes(cloudpickle.dumps(self))
        except Exception as error:
            raise errors.InvalidOption(
                f"callbacks, transformation_fn or strategy cannot be pickled: {error}; a function "
                "that makes them on the worker can"
            ) from error


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a training leaves.

    Attributes:
        history: what `fit` has logged, a value an epoch.
        suffix: of the model's file.
        file: its content; empty where it is in the store.
    """

    history: dict[str, list[Any]]
    suffix: str
    file: bytes = dataclasses.field(default=b"", repr=False)


@dataclasses.dataclass(frozen=True)
class WorkerResult:
    """What a worker returns.

    Attributes:
        phases: what it did, and when.
        trained: the chief's, which is everybody's; the others' is None.
    """

    phases: tuple[Phase, ...]
    trained: Trained | None


def train(plan: TrainingPlan) -> WorkerResult:
    """Trains as one worker of several that share updates."""
    recorder = Recorder(keras_strom.rank())
    recorder.enter("start")
    trained = _train(plan, recorder)
    recorder.leave()
    return WorkerResult(tuple(recorder.phases), trained)


def _train(plan: TrainingPlan, recorder: Recorder) -> Trained | None:
    code: Code = cloudpickle.loads(plan.code)
    rank, size = keras_strom.rank(), keras_strom.size()
    # Not the same on every worker, or all would drop out the same units; the chief's weights count.
    keras.utils.set_random_seed((plan.seed + rank) % (1 << 32))
    strategy = make_strategy(code.strategy)
    with strategy.scope():
        model = plan.model.load()
    data = _training_data(plan, code, rank, size)
    callbacks = code.made_callbacks()
    with tempfile.TemporaryDirectory() as directory:
        backup = None
        if plan.run is not None:
            if size == 1 and not model.built:  # BackupAndRestore needs the variables.
                build_for(model, data.element_spec)
            backup = Backup(plan.run, Path(directory), strategy)
            backup.fetch()
            callbacks.append(backup)
        callbacks.append(_Phases(recorder))
        fitted = model.fit(
            data,
            validation_data=_validation_data(plan, code),
            validation_steps=plan.validation_steps_per_epoch,
            epochs=plan.epochs,
            steps_per_epoch=plan.train_steps_per_epoch,
            callbacks=callbacks,
            shuffle=False,  # The dataset does.
            verbose=plan.verbose,
        )
        if not keras_strom.is_chief():
            return None
        history = logged(fitted.history)
        if backup is not None:
            history = joined(epochs_before(fitted, backup.before), history)
    recorder.enter("save")
    return leave(plan, model, history)


def make_strategy(given: Any) -> Any:
    """The strategy that an estimator's `strategy` stands for.

    Raises:
        InvalidOption: a function that makes something else.
    """
    from keras_strom.strategy.strategy import StromStrategy

    if not callable(given):
        return StromStrategy(**(given or {}))
    made = given()
    if not isinstance(made, StromStrategy):
        raise errors.InvalidOption(f"strategy={given!r} has made {made!r}, no StromStrategy")
    return made


class Backup(keras.callbacks.BackupAndRestore):  # type: ignore[misc]
    """Keras's backup in a folder of this worker's, and the chief's in the store.

    Args:
        run: whose it is.
        directory: of this worker alone, empty.
        strategy: the worker's, whose joint model's cycles belong to the backup; None = it has none.
    """

    def __init__(
        self, run: StoreRun, directory: Path, strategy: StromStrategy | None = None
    ) -> None:
        super().__init__(directory / "backup", delete_checkpoint=False)
        self._run = run
        self._directory = directory
        self._strategy = strategy
        self.before: dict[str, list[Any]] = {}
        self._since: dict[str, list[Any]] = {}

    def fetch(self) -> None:
        """Takes over what the store has, before `fit`."""
        if not self._run.store.exists(backup_file(self._run)):
            return
        content = self._run.store.read_bytes(backup_file(self._run))
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            archive.extractall(self._directory)
        self.before = json.loads((self._directory / _HISTORY).read_text())
        cycles = self._directory / _CYCLES
        if self._strategy is not None and cycles.exists():  # Earlier backups have none.
            self._strategy.joint_cycles = int(cycles.read_text())

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """After Keras's own backup."""
        super().on_epoch_end(epoch, logs)
        for name, value in (logs or {}).items():
            self._since.setdefault(name, []).append(_plain(value))
        history = joined(self.before, self._since)
        (self._directory / _HISTORY).write_text(json.dumps(history))
        if self._strategy is not None:
            (self._directory / _CYCLES).write_text(str(self._strategy.joint_cycles))
        self._run.store.write_bytes(backup_file(self._run), _zipped(self._directory))


class _Phases(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes what a worker's `fit` does; the recorder's open phase ends with its first epoch."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Steps follow."""
        self._recorder.enter("train")

    def on_test_begin(self, logs: Any = None) -> None:
        """Validation follows."""
        self._recorder.enter("evaluate")

    def on_test_end(self, logs: Any = None) -> None:
        """The other callbacks follow."""
        self._recorder.enter("callbacks")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """After the last epoch updates are still on their way, and replicas are compared."""
        self._recorder.enter("finish")


def backup_file(run: StoreRun) -> str:
    """Where the backup of an unfinished run is."""
    return f"{run.checkpoints}/backup.zip"


def model_file(run: StoreRun, suffix: str) -> str:
    """Where the trained model is: `run.model`, or its weights beside it."""
    return run.model.removesuffix(MODEL) + suffix


def joined(before: Mapping[str, list[Any]], after: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """One history after another."""
    return {name: [*before.get(name, []), *after.get(name, [])] for name in {**before, **after}}


def epochs_before(fitted: Any, history: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """The epochs of a run's history that come before those of a `fit`.

    A chief that comes after the end has all epochs of the others, its predecessor's among them.

    Args:
        fitted: what `fit` has returned.
        history: from epoch 0 on.
    """
    begin = min(fitted.epoch, default=None)
    return {name: values[:begin] for name, values in history.items()}


def logged(history: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """What Keras has logged, as JSON can have it."""
    return {name: [_plain(one) for one in values] for name, values in history.items()}


def _plain(result: Any) -> Any:
    """A metric's result: a float, or lists of them where it has several values.

    What a callback has logged that is no number stays as it is, or is its text where JSON cannot
    have it.
    """
    if not isinstance(result, str | bytes):  # Some of which `float` would read.
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            if np.ndim(result) == 0:
                return float(result)
            if np.asarray(result).dtype.kind not in "OSU":
                return np.asarray(result, np.float64).tolist()
    try:
        json.dumps(result)
    except (TypeError, ValueError, RecursionError):
        return str(result)
    return result


def leave(plan: TrainingPlan, model: keras.Model, history: dict[str, list[Any]]) -> Trained:
    """Writes a trained model to where it belongs; the backup is not needed any more."""
    file, suffix = save(model)
    run = plan.run
    if run is None:
        return Trained(history, suffix, file)
    run.store.write_bytes(model_file(run, suffix), file)
    run.store.write_bytes(run.history, json.dumps(history, indent=1).encode())
    finished = {"epochs": plan.epochs, "suffix": suffix}
    run.store.write_bytes(f"{run.path}/{_FINISHED}", json.dumps(finished).encode())
    run.store.delete(run.checkpoints)
    return Trained(history, suffix)


def finished(run: StoreRun) -> tuple[int, Trained] | None:
    """The epochs of a run that has trained them all, and what it has left; None = it has not."""
    record = f"{run.path}/{_FINISHED}"
    if not run.store.exists(record):
        return None
    found = json.loads(run.store.read_bytes(record))
    history = json.loads(run.store.read_bytes(run.history))
    return found["epochs"], Trained(history, found["suffix"])


def begin_anew(run: StoreRun) -> None:
    """Forgets how far a run has come; its model stays until there is another."""
    run.store.delete(run.checkpoints)
    run.store.delete(f"{run.path}/{_FINISHED}")


def _training_data(plan: TrainingPlan, code: Code, rank: int, size: int) -> Any:
    data = dataset(
        plan.data,
        rank=rank,
        size=size,
        batch_size=plan.batch_size,
        shuffle=plan.shuffle,
        seed=plan.seed,
        transformation_fn=code.transformation_fn,
    )
    # An epoch of so many steps goes on where the last one stopped.
    return data if plan.train_steps_per_epoch is None else data.repeat()


def _validation_data(plan: TrainingPlan, code: Code) -> Any:
    """All of it on every worker, so that callbacks see the same figures everywhere."""
    if VALIDATION not in plan.data.splits:
        return None
    return dataset(
        plan.data,
        VALIDATION,
        batch_size=plan.val_batch_size,
        transformation_fn=code.transformation_fn,
    )


def _zipped(directory: Path) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for folder, _, names in os.walk(directory):
            for name in names:
                path = Path(folder, name)
                archive.write(path, path.relative_to(directory))
    return content.getvalue()
