"""`make demo`: what gradient sharing gives on real data, on Spark's embedded cluster.

Trains the CNN of `fashion_mnist.py` three times with the same number of images in total: two Spark
executors with StromStrategy, one worker alone, and two workers that never talk. Shows the test
accuracy of each after every epoch, writes build/demo.json and build/demo.png, and ends with one
sentence that says what two workers have gained.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import pathlib
import re
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import demo_picture
from embedded_spark import start_spark

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORKERS = 2
IMAGES = 60_000
# The standard error of an accuracy of 90 % on 10000 images, in points: less than this is chance.
CHANCE = 0.3


@dataclasses.dataclass(frozen=True)
class Way:
    """One of the trainings that are compared.

    Attributes:
        name: in build/demo.json.
        title: on the screen and in the picture.
        workers: how many train.
        communicate: whether they train one model, or each its own.
    """

    name: str
    title: str
    workers: int
    communicate: bool

    @property
    def models(self) -> int:
        """How many models there are after an epoch."""
        return 1 if self.communicate else self.workers


WAYS = (
    Way("sharing", "two workers that share", WORKERS, True),
    Way("single_worker", "one worker, as many images", 1, True),
    Way("no_communication", "two workers that never talk", WORKERS, False),
)


class Table:
    """Accuracies on the screen: a row for each way, which grows while it trains.

    Args:
        epochs: how many columns; beyond eight they go on below.
        stream: None = what sys.stdout is now.
    """

    _COLUMNS = 8
    _TITLE = "test accuracy, %, after epoch"

    def __init__(self, epochs: int, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._cells = 0
        self.begin(self._TITLE)
        for epoch in range(epochs):
            self.add(str(epoch + 1))
        self.end()

    def begin(self, title: str) -> None:
        """Starts a row."""
        self._cells = 0
        self._write(f"{title:{len(self._TITLE)}}")

    def add(self, cell: str) -> None:
        """Puts the next cell into the row."""
        if self._cells and self._cells % self._COLUMNS == 0:
            self._write("\n" + " " * len(self._TITLE))
        self._cells += 1
        self._write(f"{cell:>6}")

    def end(self, notes: Sequence[str] = ()) -> None:
        """Ends the row; `notes` follow it."""
        self._write("\n" + "".join(f"  {note}\n" for note in notes))

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class WorkersOutput(io.TextIOBase):
    """Stands for sys.stdout while workers train: what they tell of an epoch becomes a cell.

    Args:
        table: whose row has begun.
        models: how many tell of each epoch; a cell shows their mean.

    Attributes:
        notes: whatever else the workers print, such as warnings.
    """

    _EPOCH = re.compile(r"(?:\[\d+\] )?epoch (\d+): test accuracy ([0-9.]+)$")

    def __init__(self, table: Table, models: int) -> None:
        self.notes: list[str] = []
        self._table = table
        self._models = models
        self._told: dict[int, list[float]] = {}

    def write(self, text: str) -> int:
        """Takes whole lines, as the runner writes them."""
        for line in text.splitlines():
            told = self._EPOCH.match(line)
            if told is None:
                self.notes += [line] if line.strip() else []
                continue
            accuracies = self._told.setdefault(int(told[1]), [])
            accuracies.append(float(told[2]))
            if len(accuracies) == self._models:
                self._table.add(percent(sum(accuracies) / self._models))
        return len(text)


def percent(accuracy: float) -> str:
    """An accuracy as it is shown everywhere."""
    return f"{100 * accuracy:.1f}"


def run_task(task: Mapping[str, Any]) -> dict[str, Any]:
    """On a worker, where this script's other modules are found by then."""
    import demo_worker

    return demo_worker.train(demo_worker.Task(**task))


def add_modules(spark: Any) -> None:
    """Gives the executors this example's modules."""
    for name in ("demo_worker.py", "fashion_mnist.py", "fashion_mnist_data.py"):
        spark.sparkContext.addPyFile(str(ROOT / "examples" / name))


def train_three_ways(
    spark: Any, epochs: int, batch_size: int, images: int = IMAGES
) -> dict[str, Any]:
    """Runs the three trainings and gathers the figures of build/demo.json."""
    import keras_strom.spark

    begin = time.monotonic()
    # Both executors run here and would use shared memory; the bytes shown are those of a network.
    network = keras_strom.NetworkConfig(same_host=False)
    table = Table(epochs)

    def run(way: Way) -> Any:
        task = {"epochs": epochs, "batch_size": batch_size, "images": images}
        task["communicate"] = way.communicate
        table.begin(way.title)
        output = WorkersOutput(table, way.models)
        try:
            with contextlib.redirect_stdout(output):
                return keras_strom.spark.run(
                    run_task,
                    args=(task,),
                    num_proc=way.workers,
                    network=network,
                    verbose=0,
                    spark=spark,
                )
        finally:
            table.end(output.notes)

    results = {way.name: run(way) for way in WAYS}
    figures = {
        **_learnt(results),
        **_sent(results["sharing"]),
        "workers": WORKERS,
        "epochs": epochs,
        "batch_size": batch_size,
        "training_seconds": max(worker["seconds"] for worker in results["sharing"]),
        "seconds": time.monotonic() - begin,
    }
    return {**figures, "gain": gain(figures)}


def _learnt(results: Mapping[str, Any]) -> dict[str, Any]:
    """Accuracies by way and epoch, and how many megabytes they took."""
    accuracy = {
        way.name: _mean([worker["accuracy"] for worker in results[way.name][: way.models]])
        for way in WAYS
    }
    return {
        "accuracy": accuracy["sharing"][-1],
        "single_worker_accuracy": accuracy["single_worker"][-1],
        "no_communication_accuracy": accuracy["no_communication"][-1],
        "accuracy_by_epoch": accuracy,
        "megabytes_by_epoch": {
            # One end of every link is a worker, so this is what all processes have sent.
            way: [sum(epoch) / 1e6 for epoch in zip(*(w["wire_bytes"] for w in of), strict=True)]
            for way, of in results.items()
        },
    }


def _sent(strom: Any) -> dict[str, Any]:
    """What the workers that share have sent, beside what a dense ring all-reduce would."""
    reports = [worker["report"] for worker in strom]
    parameters = reports[0]["parameters"]
    steps = max(report["steps"] for report in reports)
    dense = WORKERS * steps * 4 * parameters * 2 * (WORKERS - 1) // WORKERS
    wire = strom.metrics["counters"]["bytes_sent"] + sum(r["bytes_sent"] for r in reports)
    return {
        "bytes_on_wire": wire,
        "dense_bytes": dense,
        "compression": dense / wire,
        "density": sum(r["density"] for r in reports) / WORKERS,
        "threshold": sum(r["threshold"] for r in reports) / WORKERS,
        "updates_applied": [r["updates_applied"] for r in reports],
        "max_replica_difference": max(r["max_replica_difference"] for r in reports),
        "parameters": parameters,
        "steps_per_worker": steps,
    }


def _mean(models: Sequence[Sequence[float]]) -> list[float]:
    """The mean of several models' accuracies, epoch by epoch."""
    return [sum(epoch) / len(epoch) for epoch in zip(*models, strict=True)]


def gain(figures: Mapping[str, Any]) -> str:
    """One sentence: what two workers gained over one, and over not talking, and what they sent."""
    goal = figures["single_worker_accuracy"]
    by_epoch = figures["accuracy_by_epoch"]["sharing"]
    epochs = f"{len(by_epoch)} epoch" + "s" * (len(by_epoch) > 1)
    reached = [epoch for epoch, accuracy in enumerate(by_epoch, 1) if accuracy >= goal]
    points = 100 * (by_epoch[-1] - goal)
    if reached and reached[0] < len(by_epoch):
        joined = "but" if points <= -CHANCE else "and"
        over_one = (
            f"Two workers reached one worker's final accuracy of {percent(goal)} % after "
            f"{reached[0]} of {epochs} {joined} ended {_compared(points, 'it')}"
        )
    else:
        worker = f"one worker's {percent(goal)} %"
        over_one = f"After {epochs} two workers ended {_compared(points, worker)}"
    over_silence = _compared(
        100 * (by_epoch[-1] - figures["no_communication_accuracy"]), "two that never talk"
    )
    return f"{over_one} and {over_silence}, sending {_times(figures['compression'])}."


def _compared(points: float, other: str) -> str:
    if abs(points) < CHANCE:
        return f"level with {other} ({round(points, 1) + 0.0:+.1f} points)"
    return f"{abs(points):.1f} points {'ahead of' if points > 0 else 'behind'} {other}"


def _times(compression: float) -> str:
    if compression < 1:
        return f"{1 / compression:.1f} times as much as all-reduce would"
    return f"{compression:,.{0 if compression >= 10 else 1}f} times less than all-reduce would"


def show(figures: Mapping[str, Any]) -> None:
    """What the two workers that share have sent, and whether all of it arrived."""
    first, second = figures["updates_applied"]
    rows = (
        ("on the wire", f"{figures['bytes_on_wire'] / 1e6:,.1f} MB"),
        ("  a dense ring all-reduce", f"{figures['dense_bytes'] / 1e6:,.1f} MB"),
        ("elements sent, of every update", f"{100 * figures['density']:.2f} %"),
        ("updates of the other applied", f"{first:,} and {second:,}"),
        ("models apart before the final copy", f"{figures['max_replica_difference']:.1e}"),
    )
    print("\nTwo workers that share:")
    for name, value in rows:
        print(f"  {name:36}{value:>22}")


def main() -> None:
    """Trains, shows the report, writes build/demo.json and draws build/demo.png."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--images", type=int, default=IMAGES, help=f"of at most {IMAGES}")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build" / "demo.json")
    arguments = parser.parse_args()
    output: pathlib.Path = arguments.output
    log, picture = output.with_suffix(".log"), output.with_suffix(".png")
    output.parent.mkdir(parents=True, exist_ok=True)
    print(
        "One CNN learns Fashion-MNIST in three ways, one after the other, from as many images.\n"
        f"On two cores that takes about four minutes; Spark has its say in {_here(log)}\n",
        flush=True,
    )
    spark = start_spark("keras-strom demo", WORKERS, log=log)
    try:
        spark.sparkContext.setLogLevel("ERROR")
        add_modules(spark)
        figures = train_three_ways(spark, arguments.epochs, arguments.batch_size, arguments.images)
    finally:
        spark.stop()
    output.write_text(json.dumps(figures, indent=2) + "\n")
    demo_picture.draw(figures, {way.name: way.title for way in WAYS}, picture)
    show(figures)
    print(f"\nAll three took {figures['seconds']:.0f} s. {_here(output)} has the figures,", end=" ")
    print(f"{_here(picture)} draws them.\n")
    print(textwrap.fill(figures["gain"], 79))


def _here(path: pathlib.Path) -> str:
    """The path as one would type it, if it is below the current folder."""
    here = pathlib.Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


if __name__ == "__main__":
    main()
