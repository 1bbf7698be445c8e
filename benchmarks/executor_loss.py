"""A Spark executor is killed: until Spark runs its task again, and then until the worker trains.

Spark's own is the time from the kill until the task's Python process is there: Spark notices the
loss, starts a JVM, its Python daemon, and the task. Ours is the time from there until the worker's
first batch has ended: the task's imports, TensorFlow's and Keras's, the user's function, which
builds its model, the join, another worker's state, and the compiled step. All clocks are one, the
machine's; when a process began is the kernel's word. Of some phases the seconds of a processor are
told besides, which other work on the machine changes less.

Target that this benchmark measures, as a part of `make chaos`: rejoin_spark_own_seconds (the median
of what is ours).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks import report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from keras_strom.spark.runner.event import Event

KILLS = 3
_MANY = 1000
_PAUSE_S = 0.1
_STEPS_BETWEEN = 20
_DEADLINE_S = 300.0
_POLL_S = 0.05
_TICKS = os.sysconf("SC_CLK_TCK")

#: What a replacement goes through, in order: the mark that ends each, and whose time it is.
PHASES = (
    ("jvm", "Spark", "the loss is noticed, an executor's JVM is started"),
    ("task", "Spark", "it registers, gets the task, starts Python"),
    ("server", "ours", "imports of the task; it starts the process that imports TensorFlow"),
    ("worker", "ours", "TensorFlow and Keras are imported, the worker is forked"),
    ("function", "ours", "the worker unpickles the function and calls it"),
    ("ready", "ours", "the function builds its model and loads its data"),
    ("trained", "ours", "fit: join, parameters, another worker's state, the first step"),
)


@dataclasses.dataclass(frozen=True)
class Back:
    """One executor that was killed, and its worker's replacement.

    Attributes:
        rank: of the worker.
        killed: when (time.monotonic), as all the others.
        marks: when each phase of `PHASES` had ended.
        processor: seconds of a processor that phases took, of those that are known.
        registered, joined: when the task had registered with the driver, and the worker with the
            master.
    """

    rank: int
    killed: float
    marks: dict[str, float]
    processor: dict[str, float]
    registered: float | None = None
    joined: float | None = None

    @property
    def seconds(self) -> dict[str, float]:
        """How long each phase took."""
        begins = [self.killed, *(self.marks[name] for name, _, _ in PHASES)]
        return {
            name: self.marks[name] - begin
            for (name, _, _), begin in zip(PHASES, begins, strict=False)
        }

    def total(self, whose: str) -> float:
        """The seconds that are Spark's, or ours."""
        seconds = self.seconds
        return sum(seconds[name] for name, owner, _ in PHASES if owner == whose)


# ------------------------------------------------------------------ in a worker


def train(folder: str) -> None:
    """What each worker runs: a small model, until the driver has seen enough."""
    began, used = time.monotonic(), time.process_time()
    import keras

    import keras_strom
    from tests.support.scripts import elastic

    place = pathlib.Path(folder)
    name = f"{keras_strom.rank()}-{os.environ['KERAS_STROM_ATTEMPT']}"
    processes = processes_of_worker()
    keras.utils.set_random_seed(keras_strom.rank())
    with keras_strom.StromStrategy().scope():
        model = elastic.build()
    x, y = elastic.data(elastic.Job.rows, seed=1)
    marks = {**processes.marks, "function": began, "ready": time.monotonic()}
    processor = {"worker": processes.importing, "ready": time.process_time() - used}

    class Note(keras.callbacks.Callback):  # type: ignore[misc]
        steps = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.steps += 1
            if self.steps == 1:
                marks["trained"] = time.monotonic()
                processor["trained"] = time.process_time() - used - processor["ready"]
                found = {"executor": processes.executor, "marks": marks, "processor": processor}
                half = place / f"half-{name}"
                half.write_text(json.dumps(found))
                half.rename(place / f"trains-{name}")
            if self.steps == _STEPS_BETWEEN:
                (place / f"settled-{name}").touch()
            if (place / "enough").exists():
                self.model.stop_training = True
            time.sleep(_PAUSE_S)

    model.fit(x, y, batch_size=16, epochs=_MANY, verbose=0, callbacks=[Note()])


@dataclasses.dataclass(frozen=True)
class Processes:
    """The processes that led to a worker.

    Attributes:
        executor: the id of the executor's JVM.
        marks: when it, the task's Python, the fork server and the worker began.
        importing: seconds of a processor that the fork server has used.
    """

    executor: int
    marks: dict[str, float]
    importing: float


def processes_of_worker() -> Processes:
    """Of this process, which a fork server of a Spark task has forked."""
    server = os.getppid()
    executor = int(pathlib.Path(f"/proc/{server}/cmdline").read_text().split("\0")[4])
    # The JVM has one daemon, which has forked the Python of each of its tasks; the latest is it.
    daemons = children(executor)
    tasks = [pid for daemon in daemons for pid in children(daemon) if pid != server]
    return Processes(
        executor,
        {
            "jvm": began(executor),
            "task": max(map(began, tasks)),
            "server": began(server),
            "worker": began(os.getpid()),
        },
        sum(map(int, stat(server)[11:13])) / _TICKS,
    )


def children(parent: int) -> list[int]:
    """The ids of a process's children."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            pid = int(path.parent.name)
            if int(stat(pid)[1]) == parent:
                found.append(pid)
    return found


def began(pid: int) -> float:
    """When a process began, on the clock of `time.monotonic`, give or take 10 ms."""
    sleeps = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return int(stat(pid)[19]) / _TICKS - sleeps


def stat(pid: int) -> list[str]:
    """What the kernel says of a process, from its state on (proc(5), /proc/pid/stat)."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


# ------------------------------------------------------------------ in the driver


def measure(spark: SparkSession, kills: int = KILLS, workers: int = 2) -> list[Back]:
    """Kills executors, one after the other, while their workers train.

    Args:
        spark: a session with an executor for each worker.
        kills: how many.
        workers: of the job.

    Raises:
        TimeoutError: a worker has not come back.
        WorkerFailed: the job has ended.
    """
    from keras_strom.spark import run

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        struck: list[tuple[int, float]] = []
        trouble: list[BaseException] = []

        def strike() -> None:
            try:
                attempts = [0] * workers
                for number in range(kills):
                    for rank, attempt in enumerate(attempts):
                        _wait_for(folder / f"settled-{rank}-{attempt}")
                    rank = (number + 1) % workers
                    trains = folder / f"trains-{rank}-{attempts[rank]}"
                    os.kill(json.loads(trains.read_text())["executor"], signal.SIGKILL)
                    struck.append((rank, time.monotonic()))
                    attempts[rank] += 1
                    _wait_for(folder / f"settled-{rank}-{attempts[rank]}")
            except BaseException as error:
                trouble.append(error)
            finally:
                (folder / "enough").touch()

        striker = threading.Thread(target=strike)
        striker.start()
        begin = time.monotonic()
        result = run(
            train,
            (name,),
            num_proc=workers,
            max_failures=_MANY,
            stream_logs=False,
            verbose=0,
            spark=spark,
        )
        striker.join()
        if trouble:
            raise trouble[0]
        return _backs(folder, struck, result.events, begin)


def _backs(
    folder: pathlib.Path,
    struck: Sequence[tuple[int, float]],
    events: Iterable[Event],
    begin: float,
) -> list[Back]:
    backs, attempts = [], dict[int, int]()
    for rank, killed in struck:
        attempts[rank] = attempts.get(rank, 0) + 1
        found = json.loads((folder / f"trains-{rank}-{attempts[rank]}").read_text())
        times = {
            kind: [begin + one.seconds for one in events if (one.kind, one.rank) == (kind, rank)]
            for kind in ("registered", "master: joined")
        }
        registered, joined = (
            next((moment for moment in moments if moment > killed), None)
            for moments in times.values()
        )
        backs.append(Back(rank, killed, found["marks"], found["processor"], registered, joined))
    return backs


def _wait_for(path: pathlib.Path) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no worker has left {path.name}")
        time.sleep(_POLL_S)


def add_executor_losses(result: report.Report, backs: Sequence[Back]) -> None:
    """A row for each executor that was killed, one for each phase, and the target."""
    for number, back in enumerate(backs, 1):
        result.row(
            f"executor {number}, of worker {back.rank}",
            group="A Spark executor is killed",
            until_task_runs_s=back.total("Spark"),
            then_until_it_trains_s=back.total("ours"),
            registered_s=None if back.registered is None else back.registered - back.marks["task"],
            joined_s=None if back.joined is None else back.joined - back.marks["task"],
        )
    for name, whose, words in PHASES:
        seconds = [back.seconds[name] for back in backs]
        processor = [back.processor[name] for back in backs if name in back.processor]
        result.row(
            f"{whose}: {words}",
            group="Where the time goes",
            median_s=statistics.median(seconds),
            least_s=min(seconds),
            most_s=max(seconds),
            processor_s=statistics.median(processor) if processor else None,
        )
    own = statistics.median(back.total("ours") for back in backs)
    result.target("rejoin_spark_own_seconds", own, goal=8.0, better="lower")
