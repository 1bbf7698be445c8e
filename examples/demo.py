"""`make demo`: what gradient sharing gives on real data, on Spark's embedded cluster.

Trains the CNN of `fashion_mnist.py` three times with the same number of images in total:
two Spark executors with StromStrategy, one worker alone, and two workers that never talk. Ends with
a report on the screen and in build/demo.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import time
from typing import Any

from embedded_spark import start_spark

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORKERS = 2


@dataclasses.dataclass(frozen=True)
class Task:
    """What every worker of one training runs."""

    epochs: int
    batch_size: int
    communicate: bool


def run_task(task: Task) -> dict[str, Any]:
    """On a worker: trains as `task` says; returns plain values only."""
    import fashion_mnist

    if not task.communicate:
        return {"accuracy": _train_alone_on_a_share(task)}
    outcome = fashion_mnist.train(task.epochs, task.batch_size)
    report = outcome["report"]
    return {
        "accuracy": outcome["accuracy"],
        "report": None if report is None else dataclasses.asdict(report),
    }


def _train_alone_on_a_share(task: Task) -> float:
    """This rank's every WORKERS-th image, plain Keras, no communication at all."""
    import fashion_mnist
    import keras

    import keras_strom

    keras.utils.set_random_seed(1)
    rank, size = keras_strom.rank(), keras_strom.size()
    (x_train, y_train), (x_test, y_test) = fashion_mnist.load()
    model = fashion_mnist.build_model()
    fashion_mnist.compile_model(model)
    model.fit(
        x_train[rank::size],
        y_train[rank::size],
        batch_size=task.batch_size,
        epochs=task.epochs,
        verbose=2 if rank == 0 else 0,
    )
    return float(model.evaluate(x_test, y_test, batch_size=1000, verbose=0)[1])


def prepare_spark() -> Any:
    """A session whose executors have this example's modules too."""
    session = start_spark("keras-strom demo", WORKERS)
    session.sparkContext.setLogLevel("ERROR")
    for name in ("fashion_mnist.py", "fashion_mnist_data.py"):
        session.sparkContext.addPyFile(str(ROOT / "examples" / name))
    return session


def train_three_ways(spark: Any, epochs: int, batch_size: int) -> dict[str, Any]:
    """Runs the three trainings and gathers the figures of build/demo.json."""
    import keras_strom.spark

    begin = time.monotonic()
    # Both executors run here and would use shared memory; the bytes shown are those of a network.
    network = keras_strom.NetworkConfig(same_host=False)

    def run(title: str, workers: int, communicate: bool) -> Any:
        print(f"\n=== {title}", flush=True)
        task = Task(epochs, batch_size, communicate)
        return keras_strom.spark.run(
            run_task, args=(task,), num_proc=workers, network=network, spark=spark
        )

    strom = run("two workers, StromStrategy", WORKERS, communicate=True)
    together = time.monotonic() - begin
    single = run("one worker, as many images", 1, communicate=True)
    silent = run("two workers that never talk", WORKERS, communicate=False)

    reports = [worker["report"] for worker in strom]
    parameters = reports[0]["parameters"]
    steps = max(report["steps"] for report in reports)
    dense = WORKERS * steps * 4 * parameters * 2 * (WORKERS - 1) // WORKERS
    wire = strom.metrics["counters"]["bytes_sent"] + sum(r["bytes_sent"] for r in reports)
    return {
        "accuracy": strom[0]["accuracy"],
        "single_worker_accuracy": single[0]["accuracy"],
        "no_communication_accuracy": sum(w["accuracy"] for w in silent) / WORKERS,
        "bytes_on_wire": wire,
        "dense_bytes": dense,
        "compression": dense / wire,
        "density": sum(r["density"] for r in reports) / WORKERS,
        "threshold": sum(r["threshold"] for r in reports) / WORKERS,
        "updates_applied": [r["updates_applied"] for r in reports],
        "max_replica_difference": max(r["max_replica_difference"] for r in reports),
        "workers": WORKERS,
        "epochs": epochs,
        "batch_size": batch_size,
        "parameters": parameters,
        "steps_per_worker": steps,
        "training_seconds": together,
        "seconds": time.monotonic() - begin,
    }


def show(figures: dict[str, Any]) -> None:
    """The report on the screen."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Fashion-MNIST, two Spark executors", show_header=False, min_width=72)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("test accuracy, two workers", f"{figures['accuracy']:.4f}")
    table.add_row("  one worker after as many images", f"{figures['single_worker_accuracy']:.4f}")
    table.add_row("  two workers that never talk", f"{figures['no_communication_accuracy']:.4f}")
    table.add_row("bytes on the wire", f"{figures['bytes_on_wire'] / 1e6:,.2f} MB")
    table.add_row("  a dense ring all-reduce", f"{figures['dense_bytes'] / 1e6:,.2f} MB")
    table.add_row("  ratio", f"{figures['compression']:.0f} x")
    table.add_row("mean density of an update", f"{figures['density']:.5f}")
    table.add_row("threshold at the end", f"{figures['threshold']:.5f}")
    table.add_row(
        "updates applied by each worker", ", ".join(f"{n:,}" for n in figures["updates_applied"])
    )
    table.add_row(
        "replicas apart before the final copy", f"{figures['max_replica_difference']:.1e}"
    )
    table.add_row("seconds", f"{figures['seconds']:.0f}")
    Console().print(table)


def main() -> None:
    """Trains, shows the report and writes it to build/demo.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build" / "demo.json")
    arguments = parser.parse_args()
    spark = prepare_spark()
    try:
        figures = train_three_ways(spark, arguments.epochs, arguments.batch_size)
    finally:
        spark.stop()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(figures, indent=2) + "\n")
    show(figures)
    print(f"written to {arguments.output}")


if __name__ == "__main__":
    main()
