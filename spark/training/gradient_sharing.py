"""GradientSharing: workers train at the same time and share their updates over the relay."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keras_strom import errors

from ..runner import runner
from ..runner.slots import MAX_FAILURES, START_TIMEOUT_SECONDS, Size, WantedSize
from .method import TrainingJob, TrainingMethod

if TYPE_CHECKING:
    from pyspark import SparkContext

    from .worker_training import Trained, TrainingPlan, WorkerResult


@dataclasses.dataclass(frozen=True)
class GradientSharing(TrainingMethod):
    """Every worker trains by itself and sends the others what its optimizer changes (the default).

    Only changes beyond a threshold travel, encoded, and the rest waits in a residual. Its options
    are the estimator's `strategy={...}`, those of `StromStrategy`, and `network=`.

    Example:
        >>> estimator = StromEstimator(  # doctest: +SKIP
        ...     ..., training=GradientSharing(), strategy={"max_staleness": 4})
    """

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
        if isinstance(params["strategy"], Mapping):
            make_strategy(params["strategy"])  # Its own words for a value that makes no sense.

    def choose_size(self, context: SparkContext, wanted: WantedSize) -> Size:
        """As `run` does: all workers that there are train at the same time."""
        return wanted.choose(context, START_TIMEOUT_SECONDS)

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
                use_gpu=False,
                network=job.network,
                stream_logs=plan.verbose > 0,
                verbose=min(plan.verbose, 1),
                data=job.rows,
                spark=job.spark,
            )
        worked: list[WorkerResult] = list(results)
        for one in worked:
            job.recorder.add(one.phases)
        return _chiefs(worked, plan)


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
