"""What a way of training is: how the workers of an estimator become one model.

`StromEstimator(training=...)` takes a `TrainingMethod` or a method of `keras_strom.method`. Those
over the relay are in `gradient_sharing`: `GradientSharing`, the default, and `BesideJointModel`,
which stands for a method; in `averaging` is `ParameterAveraging`.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from keras_strom.job.network import NetworkConfig

    from ..data.direct import Direct
    from ..runner.resources import UseGpu
    from ..runner.slots import Size, WantedSize
    from ..runner.timeline import Recorder
    from .worker_training import Trained, TrainingPlan


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """One training, as the estimator hands it to a method: all that was given has been checked.

    Attributes:
        plan: what is trained, on what, and how long.
        size: how many workers train.
        spark: the session.
        network, max_failures, drain_seconds, start_timeout: as given to the estimator.
        rows: rows that go straight to the workers; None = `plan.data` lies in files.
        dashboard, use_gpu: as given to the estimator.
        recorder: notes when the driver did what.
    """

    plan: TrainingPlan
    size: Size
    spark: SparkSession
    network: NetworkConfig | None
    max_failures: int | None
    start_timeout: float
    rows: Direct | None
    recorder: Recorder
    dashboard: bool | int | str = False
    use_gpu: UseGpu = "auto"
    drain_seconds: float | None = None


class TrainingMethod(abc.ABC):
    """How the workers of a `StromEstimator` train one model together.

    A method is a frozen value of checked options. The estimator checks model, columns and executors
    and puts the data where workers reach it; then `train` has the word, in the driver. What runs on
    executors, and what they tell each other, is the method's own business.

    Attributes:
        needs_files: whether workers train only on files: those of a store, or `fit_on_parquet`'s.
    """

    needs_files: ClassVar[bool] = False

    @abc.abstractmethod
    def check(self, params: Mapping[str, Any]) -> None:
        """Refuses Params of the estimator that have no effect with this method.

        Raises:
            InvalidOption: the message names the Param.
        """

    def strategy(self, given: Any) -> Any:
        """What makes each worker's strategy, of the estimator's `strategy`."""
        return given

    @abc.abstractmethod
    def choose_size(self, context: SparkContext, wanted: WantedSize, timeout: float) -> Size:
        """How many workers train.

        Args:
            context: the application.
            wanted: the estimator's `num_proc`, `min_proc` and `max_proc`.
            timeout: seconds that executors may take to come.

        Raises:
            NotEnoughSlots: the application cannot run them.
        """

    @abc.abstractmethod
    def train(self, job: TrainingJob) -> Trained:
        """Trains, and leaves the model where `Trained` says."""
