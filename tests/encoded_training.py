"""What training under StromStrategy must do to the parameters, restated for any form of training.

K plain Keras models, one a worker, train side by side, each in its own thread. Around every step
of theirs stands `EncodedWorker.step`: what the step did to the parameters goes into the residual,
what has reached tau leaves, and every worker adds the messages of all in the order of ranks. A
fixed threshold, no clipping, a scale of 1; synchronous, so no order of arrival matters.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np

from tests.optimizer_oracle import encode

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

    @contextlib.contextmanager
    def step(self, *models: Any) -> Iterator[None]:
        """Stands around a step that trains `models`."""
        variables = [v for model in models for v in model.trainable_variables]
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
        for i, (variable, value) in enumerate(zip(variables, before, strict=True)):
            for part in received:
                value = value + part[i]
            variable.assign(value)
        if self.rank == 0:
            workers.sent += sum(int(np.count_nonzero(p)) for m in received for p in m)
        workers.barrier.wait()


class _EncodeBatches(keras.callbacks.Callback):
    def __init__(self, worker: EncodedWorker) -> None:
        super().__init__()
        self._worker = worker

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._step = self._worker.step(self.model)
        self._step.__enter__()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._step.__exit__(None, None, None)
