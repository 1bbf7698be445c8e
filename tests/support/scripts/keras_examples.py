"""Runs scripts of tests/support/keras_examples, several in turn in one process.

The scripts are plain Keras and know nothing of where they run; each leaves its trained `model`, and
a `loss` that is lower the more it has learnt. In a job of several workers each script runs in the
scope of the one strategy, and everything of it with it: data, `fit`, evaluation. Outside of a job
it runs three times: as plain Keras, as plain Keras on the half of the data that worker 0 of two
would take, and in the scope of a lone worker.

keras_examples.py OUTPUT_FOLDER NAME...
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import inspect
import json
import math
import pathlib
import runpy
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[3]
FOLDER = ROOT / "tests" / "support" / "keras_examples"

# The loss under which a script has learnt; what it begins with is twice that and more.
BARS = {
    "callbacks": 0.35,
    "collaborative_filtering": 0.35,
    "denoising_autoencoder": 0.5,
    "distillation": 0.3,
    "gan": 0.2,
    "graph_node_classification": 1.1,
    "image_classification": 1.1,
    "lora": 0.4,
    "metric_learning": 0.1,
    "miniature_gpt": 0.5,
    "mixed_precision": 0.8,
    "multi_input": 0.6,
    "reinforce": 0.2,
    "sequence_to_sequence": 0.25,
    "siamese_contrastive": 0.13,
    "structured_data": 0.4,
    "text_classification": 0.5,
    "timeseries_forecasting": 0.1,
    "transfer_learning": 0.25,
    "tuner": 0.3,
    "vae": 0.3,
}

# The third that is run with every change.
FAST = (
    *("callbacks", "distillation", "lora", "metric_learning", "reinforce"),
    *("siamese_contrastive", "transfer_learning"),
)
OTHERS = tuple(name for name in BARS if name not in FAST)

# KerasTuner clears Keras's session, which would end a scope around it, and takes a strategy itself.
TAKES_A_STRATEGY = ("tuner",)


@dataclasses.dataclass(frozen=True)
class Run:
    """What a script has left.

    Attributes:
        digest: of all weights of its `model`.
        loss: its own figure of what it has learnt, lower is better.
        updates: of other workers, applied in its last `fit`; 0 where nothing is shared.
        seconds: that it took.
        failure: the traceback of what it raised; "" = it has reached its end.
    """

    digest: str = ""
    loss: float = float("nan")
    updates: int = 0
    seconds: float = 0.0
    failure: str = ""


def run_alone(names: Sequence[str], folder: str) -> dict[str, dict[str, Run]]:
    """Every script in the three ways of one process; by way and name."""
    # Plain Keras comes first, before a strategy has put anything around Keras's `fit`.
    runs = {"plain": _run_each(names, folder, None)}
    with _half_of_the_data():
        runs["half"] = _run_each(names, folder, None)
    import keras_strom

    runs["lone"] = _run_each(names, folder, keras_strom.StromStrategy())
    return runs


def run_in_job(names: Sequence[str], folder: str, **options: Any) -> dict[str, Run]:
    """Every script in the scope of this worker's strategy, by name.

    Args:
        names: of the scripts.
        folder: where they write, the same for all workers.
        options: of StromStrategy.
    """
    import keras_strom

    return _run_each(names, folder, keras_strom.StromStrategy(**options))


def _run_each(names: Sequence[str], folder: str, strategy: Any) -> dict[str, Run]:
    """Runs them in turn; a strategy of None is plain Keras."""
    with contextlib.chdir(folder), _pictures_of_this_machine():
        return {name: _run(name, strategy) for name in names}


def _run(name: str, strategy: Any) -> Run:
    import keras

    start = time.monotonic()
    in_scope = strategy is not None and name not in TAKES_A_STRATEGY
    try:
        with strategy.scope() if in_scope else contextlib.nullcontext():
            path = str(FOLDER / f"{name}.py")
            left = runpy.run_path(path, {"strategy": strategy}, "__main__")
    except Exception:
        return Run(failure=traceback.format_exc())
    finally:
        keras.config.set_dtype_policy("float32")  # A script may have set it for the process.
    report = strategy.last_report if strategy is not None else None
    return Run(
        digest=_digest(left["model"]),
        loss=float(left["loss"]),
        updates=0 if report is None else report.updates_applied,
        seconds=time.monotonic() - start,
    )


def _digest(model: Any) -> str:
    values = b"".join(value.tobytes() for value in model.get_weights())
    return hashlib.sha256(values).hexdigest()


@contextlib.contextmanager
def _pictures_of_this_machine() -> Iterator[None]:
    """Keras's Fashion-MNIST comes from the files of examples/fashion_mnist_data.py."""
    import keras

    module = keras.datasets.fashion_mnist
    original = module.load_data
    load = runpy.run_path(str(ROOT / "examples" / "fashion_mnist_data.py"))["load_fashion_mnist"]
    module.load_data = load
    try:
        yield
    finally:
        module.load_data = original


@contextlib.contextmanager
def _half_of_the_data() -> Iterator[None]:
    """Every `fit` takes what worker 0 of two would."""
    import keras

    from keras_strom.strategy.data_sharding import shard_fit_arguments

    trainer = next(kind for kind in keras.Model.__mro__ if "fit" in vars(kind))
    original = trainer.fit
    signature = inspect.signature(original)

    def fit(*arguments: Any, **named: Any) -> Any:
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        shard_fit_arguments(bound.arguments, 0, 2)
        return original(*bound.args, **bound.kwargs)

    trainer.fit = fit
    try:
        yield
    finally:
        trainer.fit = original


def check_both(workers: Sequence[dict[str, dict[str, Any]]], name: str) -> float:
    """Two workers end alike, and have learnt from each other; gives the loss of both.

    Args:
        workers: what each of them has left (`as_values`), by name.
        name: of the script.
    """
    first, second = (worker[name] for worker in workers)
    for worker in (first, second):
        assert not worker["failure"], worker["failure"]
        assert worker["updates"] > 0
    assert first["digest"] == second["digest"]
    assert math.isclose(first["loss"], second["loss"], rel_tol=1e-6, abs_tol=1e-12)
    assert first["loss"] < BARS[name], first["loss"]
    return float(first["loss"])


def main(folder: str, *names: str) -> None:
    """Writes RANK.json in a job, by name; alone.json outside of one, by way and name."""
    import keras_strom

    output = pathlib.Path(folder)
    if keras_strom.size() == 1:
        ways = run_alone(names, folder)
        text = json.dumps({way: as_values(runs) for way, runs in ways.items()})
        (output / "alone.json").write_text(text)
        return
    runs = run_in_job(names, folder)
    (output / f"{keras_strom.rank()}.json").write_text(json.dumps(as_values(runs)))


def as_values(runs: dict[str, Run]) -> dict[str, dict[str, Any]]:
    """As JSON and other processes take them."""
    return {name: dataclasses.asdict(run) for name, run in runs.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
