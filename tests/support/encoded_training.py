"""What training under StromStrategy must do to the parameters, restated for any form of training.

K plain Keras models, one a worker, train side by side, each in its own thread. Around every step
of theirs stands `EncodedWorker.step`: what the step did to the parameters goes into the residual,
what has reached tau leaves, and every worker adds the messages of all in the order of ranks. What
the step did also stays in the worker's own model, which gets the others' messages alone; what all
workers share is shown when an epoch or the training ends. A fixed threshold, no clipping, a scale
of 1; synchronous, so no order of arrival matters.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np

from tests.support.optimizer_oracle import encode

# A worker that waits for another as long as this waits for one that has failed.
PATIENCE_SECONDS = 60


class EncodedWorkers:
    """Where K workers meet after each step.

    Args:
        size: K.
        threshold: tau.
    """

    def __init__(self, size: int, threshold: float) -> None:
        self.size = size
        self.threshold = np.float32(threshold)
        self.messages: list[list[np.ndarray]] = [[] for _ in range(size)]
        self.barrier = threading.Barrier(size, timeout=PATIENCE_SECONDS)
        self.sent = 0
        self.each = [EncodedWorker(self, rank) for rank in range(size)]

    def train(self, train: Callable[[EncodedWorker], Any]) -> list[Any]:
        """Runs `train` for each worker at once and gives what each has returned."""
        with ThreadPoolExecutor(self.size) as pool:
            return [done.result() for done in [pool.submit(train, w) for w in self.each]]


class EncodedWorker:
    """One of them: encodes what its steps do."""

    def __init__(self, workers: EncodedWorkers, rank: int) -> None:
        self.rank = rank
        self.size = workers.size
        self._workers = workers
        self._residuals: dict[int, np.ndarray] = {}
        self._shared: dict[int, tuple[Any, np.ndarray]] = {}  # In training: variables, and G.
        self._optimizers: list[Any] = []  # Of the models that were trained.
        self._own: dict[int, np.ndarray] = {}  # While G is shown: what training goes on from.

    def begin(self, *models: Any) -> None:
        """Training of `models` begins: their variables include the residual from now on.

        Of updates of other optimizers than theirs nothing waits any more.
        """
        for model in models:
            optimizer = getattr(model, "optimizer", None)
            if optimizer is not None and not any(optimizer is known for known in self._optimizers):
                self._optimizers.append(optimizer)
                for variable in _trained((model,)):
                    self._residuals.pop(id(variable), None)
        for variable in _trained(models):
            if id(variable) in self._shared:
                continue
            shared = variable.numpy().copy()
            self._shared[id(variable)] = (variable, shared)
            residual = self._residuals.get(id(variable))
            if residual is not None:
                variable.assign(np.where(residual != 0, shared + residual, shared))

    def show_shared(self) -> None:
        """The variables show what all workers share."""
        if self._own:
            return
        for key, (variable, shared) in self._shared.items():
            self._own[key] = variable.numpy().copy()
            variable.assign(shared)

    def go_on(self) -> None:
        """Undoes `show_shared`."""
        for key, own in self._own.items():
            self._shared[key][0].assign(own)
        self._own.clear()

    def end(self) -> None:
        """The training has ended with what all workers share."""
        self.show_shared()
        self._shared.clear()
        self._own.clear()

    @contextlib.contextmanager
    def step(self, *models: Any) -> Iterator[None]:
        """Stands around a step that trains `models`."""
        self.go_on()
        self.begin(*models)
        variables = _trained(models)
        before = [variable.numpy().copy() for variable in variables]
        try:
            yield
        except BaseException:
            self._workers.barrier.abort()
            raise
        self._share(variables, before)

    def callback(self) -> keras.callbacks.Callback:
        """`step` around every batch of a fit."""
        return _EncodeBatches(self)

    def _share(self, variables: list[Any], before: list[np.ndarray]) -> None:
        workers = self._workers
        after = [variable.numpy() for variable in variables]
        message = []
        for variable, new, old in zip(variables, after, before, strict=True):
            residual = self._residuals.setdefault(id(variable), np.zeros_like(old))
            message.append(encode(residual, new, old, workers.threshold))
        workers.messages[self.rank] = message
        workers.barrier.wait()
        received = list(workers.messages)
        for i, (variable, own) in enumerate(zip(variables, after, strict=True)):
            shared = self._shared[id(variable)][1]
            for rank, part in enumerate(received):
                shared = shared + part[i]
                if rank != self.rank:
                    own = own + part[i]
            self._shared[id(variable)] = (variable, shared)
            variable.assign(own)
        if self.rank == 0:
            workers.sent += sum(int(np.count_nonzero(p)) for m in received for p in m)
        workers.barrier.wait()


def _trained(models: tuple[Any, ...]) -> list[Any]:
    return [variable for model in models for variable in model.trainable_variables]


class _EncodeBatches(keras.callbacks.Callback):
    def __init__(self, worker: EncodedWorker) -> None:
        super().__init__()
        self._worker = worker

    def on_train_begin(self, logs: Any = None) -> None:
        self._worker.begin(self.model)

    def on_test_begin(self, logs: Any = None) -> None:
        self._worker.show_shared()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._worker.show_shared()

    def on_train_end(self, logs: Any = None) -> None:
        self._worker.end()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._step = self._worker.step(self.model)
        self._step.__enter__()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._step.__exit__(None, None, None)
