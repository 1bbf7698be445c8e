"""Keras training on the executors of a Spark cluster: a function on all, or a stage of Spark ML.

    import keras_strom.spark
    results = keras_strom.spark.run(train, args=(5,), num_proc=8)
    model = keras_strom.spark.StromEstimator(model=keras_model, ...).fit(df)

The source lies in `spark/` at the top of the repository and is installed as `keras_strom.spark`.
Importing it loads neither pyspark nor TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras_strom.lazy_names import lazy_names

if __name__ != "keras_strom.spark":
    raise ImportError(
        f"this package is keras_strom.spark, not {__name__}: install keras-strom "
        "(pip install -e . in its repository) and import keras_strom.spark"
    )

if TYPE_CHECKING:
    from .estimator.estimator import StromEstimator
    from .estimator.model import StromModel
    from .runner.event import Event
    from .runner.examination import doctor
    from .runner.result import RunResult
    from .runner.runner import run
    from .runner.timeline import Timeline
    from .training.averaging import ParameterAveraging
    from .training.gradient_sharing import GradientSharing
    from .training.method import TrainingMethod

__all__ = [
    "Event",
    "GradientSharing",
    "ParameterAveraging",
    "RunResult",
    "StromEstimator",
    "StromModel",
    "Timeline",
    "TrainingMethod",
    "doctor",
    "run",
]

__getattr__ = lazy_names(
    __name__,
    {
        "Event": "runner.event",
        "GradientSharing": "training.gradient_sharing",
        "ParameterAveraging": "training.averaging",
        "RunResult": "runner.result",
        "StromEstimator": "estimator.estimator",
        "StromModel": "estimator.model",
        "Timeline": "runner.timeline",
        "TrainingMethod": "training.method",
        "doctor": "runner.examination",
        "run": "runner.runner",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
