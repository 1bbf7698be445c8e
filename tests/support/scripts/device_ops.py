"""The same steps of the native ops on the CPU and on a device: every bit must be equal.

Run by tests/gpu/test_device_ops.py: device_ops.py [kernels] CASE ...
"""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.support import gpu

#: Whether steps stay on the device where its kernels can do them.
KERNELS = "kernels" in sys.argv
MEMORY = 2**21 if {"short", "crowded", "flooded"} & set(sys.argv) else 2**30
gpu.load(1, MEMORY, delay=200, kernels=KERNELS)

import pytest  # noqa: E402
import tensorflow as tf  # noqa: E402

from keras_strom import ops  # noqa: E402
from keras_strom._native.local_model import LocalModel  # noqa: E402
from keras_strom._native.ops import operations, translate  # noqa: E402
from keras_strom._native.replica import Replica  # noqa: E402
from keras_strom.method import EASGD, MPCA, SparkNet  # noqa: E402
from keras_strom.relay.training_relay import TrainingMaster, TrainingWorker  # noqa: E402
from keras_strom.sharing.statistics import TOLD  # noqa: E402

#: Of the variables: a kernel, a bias, a table, one that no optimizer changes; and an empty one, of
#: which G is computed whenever it is shown, but where what is left after a training is measured.
SHAPES = ((40, 50), (50,), (30, 8), (25,), *[(0, 3)] * ("gives_back" not in sys.argv))
TABLE = 2
UNTOUCHED = 3
SIZES = [int(np.prod(shape)) for shape in SHAPES]
OFFSETS = [int(offset) for offset in np.cumsum([0, *SIZES])[:-1]]
FIELDS = np.array(TOLD)
TAU = 0.01
STEPS = 6


@dataclasses.dataclass(frozen=True)
class Options:
    """Of StromStep; what the names say there."""

    full: bool = True
    keep_shared: bool = False
    apply_own: bool = False
    take_received: bool = True
    threshold: float | tuple[float, ...] = TAU
    scale: float = 1.0
    clip_multiple: float = 0.0
    norm_limit: float = 0.0
    compare_contents: bool = False
    send_mean: bool = False
    sends_every: int = 1
    by_rows: bool = False
    scatters: bool = False  # The table is changed by rows, of which the op is told nothing.
    momenta: tuple[int, ...] = ()
    shares: tuple[bool, ...] = (True,) * len(SHAPES)
    held: bool = False  # Somebody else holds the values from before a step.


class Worker:
    """Variables on a device, and what a step does to them.

    Args:
        device: where they lie.
        options: of the steps.
        seed: of what the optimizer does.
    """

    def __init__(self, device: str, options: Options, seed: int = 0) -> None:
        self.options = options
        self.replica = Replica()
        self.replica.extend(sum(SIZES))
        self.replica.keep_messages()
        self.seen: list[np.ndarray] = []
        self.steps = 0
        self._device = device
        self._random = np.random.default_rng(seed)
        start = np.random.default_rng(99)
        with tf.device(device):
            self.variables = [
                tf.Variable(start.normal(size=shape), dtype=tf.float32) for shape in SHAPES
            ]
            self._momenta = [
                tf.Variable(start.normal(size=SHAPES[i]), dtype=tf.float32) for i in options.momenta
            ]
            self._zeros = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
        self._step = tf.function(self._step_in_graph, autograph=False)

    def step(self, touches: Sequence[int] = (0, 1, TABLE), scale: float = 0.02) -> None:
        """A step of an optimizer that changes these variables, and the op."""
        held = [variable.read_value() for variable in self.variables] if self.options.held else []
        statistics = self.run(self.arguments(touches, scale))
        self.note(*statistics, *held)

    def arguments(self, touches: Sequence[int], scale: float = 0.02) -> tuple[Any, ...]:
        """What the next step is to get."""
        sends = (self.steps + 1) % self.options.sends_every == 0
        # Without any, rows that wait from the step before are sent all the same.
        rows = self._rows(5 if TABLE in touches else 0)
        with tf.device(self._device):
            updates = [
                tf.constant(self._random.normal(size=shape, scale=scale), tf.float32)
                for shape in SHAPES
            ]
        with tf.device("/cpu:0"):
            numbers = [tf.constant(number) for number in (rows, np.int64(self.steps), sends)]
        return (updates, *numbers, tuple(touches))

    def _rows(self, count: int) -> np.ndarray:
        """Of the table; a card adds up what comes twice in an order of its own."""
        if gpu.is_card():
            return self._random.permutation(SHAPES[TABLE][0])[:count]
        return self._random.integers(0, SHAPES[TABLE][0], count)

    def follow(self, options: Options) -> None:
        """From now on steps have these options."""
        self.options = options
        self._step = tf.function(self._step_in_graph, autograph=False)

    def run(self, arguments: tuple[Any, ...]) -> Any:
        """A step with these, and its statistics."""
        self.steps += 1
        return self._step(*arguments)

    def step_first(self, threshold: float, meanwhile: Callable[[], None] = lambda: None) -> Any:
        """A step over the first variable alone, in an op of its own, `meanwhile` just before it."""
        first = self.variables[0]
        with tf.device(self._device):
            before = first.read_value()
            first.assign_add(tf.fill(SHAPES[0], TAU / 3))
        with tf.device("/cpu:0"):
            iteration, sends = tf.constant(self.steps, tf.int64), tf.constant(True)
            numbers = [tf.constant(number) for number in (threshold, 1.0, 0.0, 0.0)]
        meanwhile()
        with tf.device(self._device):
            statistics = operations().strom_step(
                variables=[first.handle],
                replica=self.replica.handle,
                offsets=[0],
                before=[before],
                rows=[],
                rows_before=[],
                momenta=[],
                momentum_of=[],
                threshold=numbers[0],
                scale=numbers[1],
                clip_multiple=numbers[2],
                norm_limit=numbers[3],
                iteration=iteration,
                sends=sends,
                shares=[True],
                by_rows=[False],
                names=["the first"],
                apply_own=False,
                take_received=True,
                full=True,
            )
        self.note(*statistics)
        return statistics[0].numpy()

    def note(self, *tensors: Any) -> None:
        """Keeps these and what the worker holds now."""
        self.seen += [np.asarray(tensor) for tensor in tensors]
        self.seen += [variable.numpy() for variable in (*self.variables, *self._momenta)]
        self.seen.append(self.replica.read_residual(0, sum(SIZES)))

    def show(self, *, own: bool, forget: bool = False) -> None:
        """StromShowOwn or StromShowShared."""
        if own:
            assigned = operations().strom_show_own(
                **self._where,
                keep_shared=self.options.keep_shared,
                begins=[i != UNTOUCHED for i in range(len(SHAPES))],
            )
        else:
            assigned = operations().strom_show_shared(**self._where, forget=forget)
        self.note(assigned)

    def apply(self) -> None:
        """StromApply."""
        self.note(operations().strom_apply(**self._where))

    def await_step(self, contribution: int) -> None:
        """StromApplyStep."""
        self.note(self.await_release(contribution))

    def await_release(self, contribution: int) -> Any:
        """The same, and nothing is noted."""
        return operations().strom_apply_step(
            **self._where, stepped=True, contribution=contribution, timeout_ns=100 * 10**9
        )

    @property
    def _where(self) -> dict[str, Any]:
        return {
            "variables": [variable.handle for variable in self.variables],
            "replica": self.replica.handle,
            "offsets": OFFSETS,
        }

    def _step_in_graph(
        self, updates: list[Any], rows: Any, step: Any, sends: Any, touches: tuple[int, ...]
    ) -> Any:
        options = self.options
        by_rows = [options.by_rows and i == TABLE for i in range(len(SHAPES))]
        with tf.device(self._device):
            table = self.variables[TABLE]
            rows_before = [tf.gather(table, rows)] if options.by_rows else []
            before = [
                tf.zeros([0]) if alone else variable.read_value()
                for variable, alone in zip(self.variables, by_rows, strict=True)
            ]
            with tf.control_dependencies([*before, *rows_before]):
                for i in touches:
                    if not (by_rows[i] or (options.scatters and i == TABLE)):
                        self.variables[i].assign_add(updates[i])
                    else:
                        changes = tf.gather(updates[i], rows)
                        table.scatter_sub(tf.IndexedSlices(changes, rows))
                for momentum, i in zip(self._momenta, options.momenta, strict=True):
                    momentum.assign_add(updates[i])
            if options.compare_contents:  # As XLA does, of those that it has not changed too.
                for variable, nothing, alone in zip(
                    self.variables, self._zeros, by_rows, strict=True
                ):
                    if not alone:
                        variable.assign_add(nothing.read_value())
            return operations().strom_step(
                **self._where,
                before=before,
                rows=[rows] if options.by_rows else [],
                rows_before=rows_before,
                momenta=[momentum.handle for momentum in self._momenta],
                momentum_of=list(options.momenta),
                threshold=options.threshold,
                scale=options.scale,
                clip_multiple=tf.where(step % 2 == 1, options.clip_multiple, 0.0),
                norm_limit=options.norm_limit,
                iteration=step,
                sends=sends,
                shares=list(options.shares),
                by_rows=by_rows,
                names=[f"variable {i}" for i in range(len(SHAPES))],
                apply_own=options.apply_own,
                take_received=options.take_received,
                compare_contents=options.compare_contents,
                send_mean=options.send_mean,
                full=options.full,
                keep_shared=options.keep_shared,
            )


def alone(options: Options) -> Callable[[str], list[np.ndarray]]:
    """Steps of a worker that nobody hears, with looks at its variables in between."""

    def run(device: str) -> list[np.ndarray]:
        worker = Worker(device, options)
        if options.full:
            worker.show(own=True)
        for i in range(STEPS):
            worker.step(touches=((0, 1, TABLE), (0,), ())[i % 3] if i else (0, 1, TABLE))
            worker.seen.append(
                np.frombuffer(worker.replica.message(0), np.uint8)
                if i == 0 and options.sends_every == 1
                else np.zeros(0)
            )
        if options.full:
            worker.show(own=False)
            worker.show(own=True)
            worker.step()
            worker.show(own=False)
            worker.variables[0].assign(tf.ones(SHAPES[0]))
            worker.variables[1].assign(tf.identity(worker.variables[1]))
            worker.show(own=True)
        worker.variables[1].assign(worker.variables[1] + 1.0)  # Outside of a step.
        worker.step()
        worker.apply()
        worker.step()
        if options.full:
            worker.show(own=False, forget=True)
            worker.step()  # Nothing has said that training begins again.
            worker.show(own=False, forget=True)
        worker.replica.close()
        return worker.seen

    return run


def refused(device: str) -> list[np.ndarray]:
    """An update that is not finite, and a threshold that is none, in both forms."""
    seen = []
    for options in (Options(), Options(full=False, apply_own=True)):
        worker = Worker(device, options)
        worker.step()
        worker.variables[0].assign_add(tf.zeros(SHAPES[0]))
        with pytest.raises(tf.errors.InvalidArgumentError, match="NaN or infinite"):
            worker.step(scale=np.inf)
        worker.note()
        worker.step()
        worker.follow(dataclasses.replace(options, threshold=np.nan))
        with pytest.raises(tf.errors.InvalidArgumentError, match="threshold"):
            worker.step()
        worker.note()
        worker.follow(options)
        worker.step()
        seen += worker.seen
        worker.replica.close()
    return seen


def parted(device: str) -> list[np.ndarray]:
    """Steps over all variables in turn with steps over one, which may be refused."""
    worker = Worker(device, Options())
    worker.step()
    for threshold in (TAU, np.nan, TAU):
        worker.step()
        if np.isnan(threshold):
            with pytest.raises(tf.errors.InvalidArgumentError, match="threshold"):
                worker.step_first(threshold)
            worker.note()
        else:
            worker.step_first(threshold)
    worker.step()
    worker.replica.close()
    return worker.seen


def together(
    options: Options, staleness: int | None, of_first: Options | None = None
) -> Callable[[str], list[np.ndarray]]:
    """Two workers, of which the second one's variables lie on the device.

    Args:
        options: of both.
        staleness: None for asynchronous mode.
        of_first: of the first one, where it has others.
    """

    def run(device: str) -> list[np.ndarray]:
        with TrainingMaster(workers=2, host="127.0.0.1") as master:
            workers = [Worker("/cpu:0", of_first or options), Worker(device, options, 1)]
            connections: list[Any] = [None, None]

            def join(rank: int) -> None:
                connections[rank] = joined(master, workers[rank], rank, staleness)

            on_both(join)
            if options.full:
                for worker in workers:
                    worker.show(own=True)
            for i in range(STEPS):

                def step(rank: int, i: int = i) -> None:
                    workers[rank].step()
                    if staleness is not None:
                        workers[rank].await_step(i - staleness)

                if staleness is not None:
                    on_both(step)
                    continue
                # One after the other, each once what the other has sent is here.
                for rank in (0, 1):
                    leaves_alone = i == 0 or (rank == 1 and options.held)
                    workers[rank].step(touches=(0,) if leaves_alone else (0, 1, TABLE))
                    arrived(connections[1 - rank])
            if staleness is not None:
                on_both(lambda rank: workers[rank].await_step(STEPS - 1))
            if options.full:
                for worker in workers:
                    worker.show(own=False)
                    worker.apply()
            if staleness is not None:
                for one, other in zip(workers[0].variables, workers[1].variables, strict=True):
                    assert np.array_equal(one.numpy(), other.numpy())
            on_both(lambda rank: connections[rank].close("done"))
        for worker in workers:
            worker.replica.close()
        # How far each is ahead of what it has applied depends on the time, where it may.
        return [] if staleness else [*workers[0].seen, *workers[1].seen]

    return run


def joined(master: Any, worker: Worker, rank: int, staleness: int | None) -> Any:
    """The connection of one of two workers, which have begun a generation."""
    connection = TrainingWorker(
        master.credentials, master=master.address, rank=rank, size=2, max_staleness=staleness
    )
    flat = np.concatenate([v.numpy().ravel() for v in worker.variables])
    connection.start(1, flat.size, 7, "", flat if rank == 0 else None)
    worker.replica.bind(connection.handle)
    return connection


def on_both(do: Callable[[int], None]) -> None:
    failed: list[BaseException] = []

    def caught(rank: int) -> None:
        try:
            do(rank)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=caught, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def arrived(connection: Any) -> None:
    """Returns once an update waits there to be applied."""
    while connection.status()["inbox_bytes"] == 0:
        threading.Event().wait(0.001)


class Pulled:
    """Variables on a device, and steps of theirs beside a joint model.

    Args:
        device: where they lie.
        method: which joint model.
        seed: of what the optimizer does.
    """

    def __init__(self, device: str, method: Any, seed: int) -> None:
        start = np.random.default_rng(5)
        self.seen: list[np.ndarray] = []
        self.local = LocalModel()
        self._method = method
        self._device = device
        self._random = np.random.default_rng(seed)
        with tf.device(device):
            self.variables = [tf.Variable(start.normal(size=s), dtype=tf.float32) for s in SHAPES]

    def begin(self, worker: int, rank: int) -> None:
        """From now on exchanges are made through this connection; 0 = nobody is there."""
        numbers = self._method.numbers(2)
        by_gradient = self._method.pulls_by_gradient
        self.local.begin(worker, sum(SIZES), numbers, rank=rank, workers=2, in_gradient=by_gradient)

    def step(self, i: int) -> None:
        """A step of an optimizer that changes all variables, but for step 2."""
        where = {
            "variables": [variable.handle for variable in self.variables],
            "model": self.local.handle,
            "offsets": OFFSETS,
        }
        with tf.device(self._device):
            before = [variable.read_value() for variable in self.variables]
            gradients = [tf.constant(self._random.normal(size=s), tf.float32) for s in SHAPES]
            if self._method.pulls_by_gradient:
                gradients = operations().strom_penalty(**where, gradients=gradients)
                self.seen += [gradient.numpy() for gradient in gradients]
            for variable, gradient in zip(self.variables, gradients, strict=True):
                if i != 2:
                    variable.assign_sub(gradient)
            statistics = operations().strom_pull(
                **where,
                before=before,
                iteration=i,
                joint_now=0,
                names=[f"variable {k}" for k in range(len(SHAPES))],
                watched=list(range(len(SHAPES))),
                joint=0,
                compare_contents=i % 2 == 1,
                timeout_ns=100 * 10**9,
            )
        self.seen.append(statistics.numpy()[:7])  # Behind these are times.
        self.seen += [variable.numpy() for variable in self.variables]


def pulled(method: Any) -> Callable[[str], list[np.ndarray]]:
    """Steps beside a joint model that nobody else has."""

    def run(device: str) -> list[np.ndarray]:
        worker = Pulled(device, method, 1)
        worker.begin(0, 0)
        for i in range(STEPS):
            worker.step(i)
        worker.local.close()
        return worker.seen

    return run


def exchanged(method: Any) -> Callable[[str], list[np.ndarray]]:
    """Two workers that wait for each other, of which the second one's variables lie there."""

    def run(device: str) -> list[np.ndarray]:
        with TrainingMaster(workers=2, host="127.0.0.1") as master:
            workers = [Pulled("/cpu:0", method, 1), Pulled(device, method, 2)]

            def train(rank: int) -> None:
                worker = workers[rank]
                connection = TrainingWorker(
                    master.credentials, master=master.address, rank=rank, size=2
                )
                flat = np.concatenate([v.numpy().ravel() for v in worker.variables])
                seed = flat if rank == 0 else None
                ranges = [(0, flat.size)]
                connection.start(1, flat.size, 7, "", seed, method=method.numbers(2), ranges=ranges)
                worker.begin(connection.handle, rank)
                for i in range(STEPS + 1):  # In one of which nothing changes.
                    worker.step(i)
                connection.close("done")

            on_both(train)
        for worker in workers:
            worker.local.close()
        return [*workers[0].seen, *workers[1].seen]

    return run


def coded(device: str) -> list[np.ndarray]:
    """The operators that a model may use by themselves, in some steps over one residual."""
    random = np.random.default_rng(5)
    with tf.device(device):
        residual, parameters = tf.Variable(tf.zeros([5000])), tf.Variable(tf.ones([5000]))
    seen = []
    subnormal = 2.0**-130
    for i, (coding, tau) in enumerate(
        (("auto", TAU), ("bitmap", TAU), ("bitmap4", TAU), ("bitmap4", TAU), ("auto", subnormal))
    ):
        update = random.normal(size=5000, scale=tau).astype(np.float32)
        with tf.device(device):
            if tau == subnormal:
                residual.assign(tf.zeros([5000]))
                parameters.assign(tf.zeros([5000]))
            message, left, count = ops.threshold_encode(
                *(tf.identity(update), residual.read_value(), tau), coding=coding, iteration=i
            )
            residual.assign(left)
            parameters.assign(ops.apply(message, parameters.read_value()))
        seen += [message.numpy(), count.numpy(), residual.numpy(), parameters.numpy()]
    return seen


def coded_refused(device: str) -> list[np.ndarray]:
    """What these operators do not take, and what they say of it."""
    seen: list[np.ndarray] = []

    def refused(kind: type[Exception], operator: Callable[..., Any], *arguments: Any) -> None:
        with tf.device(device), pytest.raises(kind) as caught:
            operator(*map(tf.identity, arguments))
        ours, _, _ = str(translate(caught.value)).partition(
            " [Op:"
        )  # TensorFlow's, on some devices
        seen.append(np.array(ours))

    def encode(update: float, residual: float, tau: float = TAU, iteration: int = 0) -> None:
        given = [np.linspace(-1, 1, 5000, dtype=np.float32) for _ in range(2)]
        given[0][[4097, 4321]], given[1][[4097, 4321]] = update, residual
        refused(tf.errors.InvalidArgumentError, encoded, *given, tau, iteration)

    def encoded(update: Any, residual: Any, tau: Any, iteration: Any) -> None:
        ops.threshold_encode(update, residual, tau, iteration=iteration)

    largest = float(np.finfo(np.float32).max)
    for values in ((np.nan, 1.0), (1.0, np.inf), (np.nan, -np.inf), (largest, largest)):
        encode(*values)
    for tau in (0.0, -1.0, np.nan):
        encode(1.0, 1.0, tau)
    encode(1.0, 1.0, iteration=-1)
    message = ops.threshold_encode(tf.ones([5000]), tf.zeros([5000]), TAU)[0].numpy()
    for size in (4999, 5001):
        refused(tf.errors.InvalidArgumentError, ops.apply, message, np.ones(size, np.float32))
        assert f"is of 5000 parameters and does not fit {size}" in str(seen[-1])
    message[-1] ^= 1
    refused(tf.errors.DataLossError, ops.apply, message, np.ones(5000, np.float32))
    return seen


ENCODED = Options(full=False, apply_own=True)
#: Which forms of the step there are; each with its steps alone.
CASES: dict[str, Callable[[str], list[np.ndarray]]] = {
    "full": alone(Options()),
    "full_keep_shared": alone(Options(keep_shared=True)),
    "full_scaled": alone(Options(scale=0.5)),
    "full_clipped": alone(Options(clip_multiple=1.0)),
    "full_limited": alone(Options(norm_limit=0.5)),
    "full_measured": alone(Options(norm_limit=float("inf"))),
    "full_contents": alone(Options(compare_contents=True)),
    "full_mean": alone(Options(send_mean=True, sends_every=3)),
    "full_local": alone(Options(sends_every=3)),
    "full_rows": alone(Options(by_rows=True)),
    "full_rows_keep_shared": alone(Options(by_rows=True, keep_shared=True)),
    "full_scattered": alone(Options(scatters=True)),
    "full_scattered_keep_shared": alone(Options(scatters=True, keep_shared=True)),
    "encoded_scattered": alone(Options(full=False, apply_own=True, scatters=True)),
    "full_momenta": alone(Options(momenta=(0, TABLE))),
    "full_unshared": alone(Options(shares=(True, False, True, True, True))),
    "full_thresholds": alone(Options(threshold=(0.01, 0.005, 0.02, 0.01, 0.01))),
    "encoded": alone(ENCODED),
    "encoded_not_own": alone(dataclasses.replace(ENCODED, apply_own=False)),
    "encoded_scaled": alone(dataclasses.replace(ENCODED, scale=0.5, clip_multiple=1.0)),
    "encoded_contents": alone(dataclasses.replace(ENCODED, compare_contents=True)),
    "encoded_mean": alone(dataclasses.replace(ENCODED, send_mean=True, sends_every=3)),
    "encoded_rows": alone(dataclasses.replace(ENCODED, by_rows=True)),
    "encoded_momenta": alone(dataclasses.replace(ENCODED, momenta=(0, 1))),
    "encoded_unshared": alone(dataclasses.replace(ENCODED, shares=(True, False, True, True, True))),
    "encoded_thresholds": alone(
        dataclasses.replace(ENCODED, threshold=(0.01, 0.005, 0.02, 0.01, 0.01))
    ),
    "refused": refused,
    "parted": parted,
    "coded": coded,
    "coded_refused": coded_refused,
    "asynchronous": together(Options(), None),
    "asynchronous_table": together(
        Options(), None, Options(threshold=(0.01, 0.005, 0.02, 0.01, 0.01))
    ),
    "asynchronous_encoded": together(ENCODED, None),
    "asynchronous_held": together(Options(held=True), None),
    "asynchronous_rows": together(Options(by_rows=True), None),
    "synchronous": together(Options(keep_shared=True, take_received=False), 0),
    "synchronous_encoded": together(Options(full=False, take_received=False), 0),
    "bounded": together(Options(keep_shared=True, take_received=False), 2),
    "pulled": pulled(MPCA()),
    "pulled_by_gradient": pulled(MPCA(penalty="gradient")),
    "mean_of_models": exchanged(SparkNet(steps=2)),
    "elastic": exchanged(EASGD(steps=2, synchronous=True)),
}


def is_same(one: np.ndarray, other: np.ndarray) -> bool:
    """To the bit, but for the sums in statistics where kernels have added them up."""
    if KERNELS and one.dtype == np.float64 and one.size == FIELDS.size:
        sums = np.isin(FIELDS, ("sum_residual", "clipped_mass"))
        return np.array_equal(one[~sums], other[~sums]) and np.allclose(one, other, rtol=1e-5)
    return one.tobytes() == other.tobytes()


def main() -> None:
    names = [name for name in CASES if any(map(name.startswith, sys.argv[1:]))]
    assert names
    for name in names:
        here, there = CASES[name]("/cpu:0"), CASES[name]("/gpu:0")
        assert len(here) == len(there), name
        for place, (one, other) in enumerate(zip(here, there, strict=True)):
            words = f"{name}: {place} of {len(here)} differs: {one} is {other} there"
            assert is_same(one, other), words


if __name__ == "__main__":
    main()
