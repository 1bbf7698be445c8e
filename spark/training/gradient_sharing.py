"""Training over the relay: workers share their updates, or train beside a joint model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keras_strom import errors
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.method import Method

from ..runner import runner
from ..runner.slots import MAX_FAILURES, Size, WantedSize
from .method import TrainingJob, TrainingMethod

if TYPE_CHECKING:
    from pyspark import SparkContext

    from .worker_training import Trained, TrainingPlan, WorkerResult


class OverTheRelay(TrainingMethod):
    """Every worker trains at the same time, in the scope of a `StromStrategy`."""

    def check(self, params: Mapping[str, Any]) -> None:
        """Refuses options of `StromStrategy` and of the network that make no sense."""
        from .worker_training import make_strategy

        if params["network"] is not None:
            params["network"].refuse_checkpoints(
                "an estimator keeps its state in its store and goes on under its run_id"
            )
            params["network"].refuse_waiting(
                "the master is in Spark's driver, whose loss ends the application; an estimator "
                "that is run again under its run_id goes on"
            )
        strategy = self.strategy(params["strategy"])
        if isinstance(strategy, Mapping):
            make_strategy(strategy)  # Its own words for a value that makes no sense.

    def choose_size(self, context: SparkContext, wanted: WantedSize, timeout: float) -> Size:
        """As `run` does: all workers that there are train at the same time."""
        return wanted.choose(context, timeout)

    def train(self, job: TrainingJob) -> Trained:
        """Runs `worker_training.train` on every worker of a `run`; the chief's result is all's."""
        from .worker_training import train

        plan = job.plan
        with job.recorder.phase("run"):
            results = runner.run(
                train,
                (plan,),
                **job.size.for_run(),
                max_failures=MAX_FAILURES if job.max_failures is None else job.max_failures,
                drain_seconds=job.drain_seconds or ClusterEnvironment.drain_seconds,
                start_timeout=job.start_timeout,
                use_gpu=job.use_gpu,
                network=job.network,
                stream_logs=plan.verbose > 0,
                verbose=min(plan.verbose, 1),
                data=job.rows,
                dashboard=job.dashboard,
                spark=job.spark,
            )
        worked: list[WorkerResult] = list(results)
        for one in worked:
            job.recorder.add(one.phases)
        return _chiefs(worked, plan)


@dataclasses.dataclass(frozen=True)
class GradientSharing(OverTheRelay):
    """Every worker trains by itself and sends the others what its optimizer changes (the default).

    Only changes beyond a threshold travel, encoded, and the rest waits in a residual. Its options
    are the estimator's `strategy={...}`, those of `StromStrategy`, and `network=`.

    Example:
        >>> estimator = StromEstimator(  # doctest: +SKIP
        ...     ..., training=GradientSharing(), strategy={"max_staleness": 4})
    """

    def check(self, params: Mapping[str, Any]) -> None:
        """Refuses another method beside this one, and what any such training refuses."""
        given = params["strategy"]
        if params["training"] is not None and isinstance(given, Mapping) and given.get("method"):
            raise errors.InvalidOption(
                f"strategy={{'method': {given['method']!r}}} is another way to train than "
                f"training={self!r}: leave one of them out"
            )
        super().check(params)


@dataclasses.dataclass(frozen=True)
class BesideJointModel(OverTheRelay):
    """Every worker trains a model of its own beside a joint one: what `training=MPCA()` stands for.

    Attributes:
        method: what the estimator was given, and each worker's `StromStrategy` is.
    """

    method: Method

    def strategy(self, given: Any) -> Any:
        """The options of `StromStrategy` with the method among them.

        Raises:
            InvalidOption: they have one already, or a function makes the strategy.
        """
        if callable(given):
            raise errors.InvalidOption(
                f"strategy={given!r} makes a strategy, which training={self.method!r} cannot "
                "change: give StromStrategy method= there and leave training out, or give strategy "
                "as a dict"
            )
        if given and "method" in given:
            raise errors.InvalidOption(
                f"strategy={{'method': {given['method']!r}}} beside training={self.method!r}: "
                "leave one of them out"
            )
        return {**(given or {}), "method": self.method}


def _chiefs(worked: list[WorkerResult], plan: TrainingPlan) -> Trained:
    """What the chief has left, which an elastic training may have lost at its very end."""
    for one in worked:
        if one.trained is not None:
            return one.trained
    remedy = (
        "give store=, and such a training can go on after its last whole epoch"
        if plan.run is None
        else f"run_id={plan.run.run_id!r} goes on after its last whole epoch"
    )
    raise errors.WorkerFailed(
        0, "its executor", f"it was lost and did not come back before the others' end: {remedy}"
    )
