"""GradientSharing: workers train at the same time and share their updates over the relay."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .method import START_TIMEOUT_SECONDS, TrainingJob, TrainingMethod
from .slots import choose_workers

if TYPE_CHECKING:
    from pyspark import SparkContext

    from .training import Trained, Worked


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
        from .training import make_strategy

        if params["network"] is not None:
            params["network"].refuse_checkpoints(
                "an estimator keeps its state in its store and goes on under its run_id"
            )
        if isinstance(params["strategy"], Mapping):
            make_strategy(params["strategy"])  # Its own words for a value that makes no sense.

    def count_workers(self, context: SparkContext, wanted: int | None) -> int:
        """`wanted`, or every slot: all workers run at the same time."""
        return choose_workers(context, wanted, START_TIMEOUT_SECONDS)

    def train(self, job: TrainingJob) -> Trained:
        """Runs `training.train` on every worker of a `run`; the chief's result is everybody's."""
        from . import runner
        from .training import train

        plan = job.plan
        with job.recorder.phase("run"):
            results = runner.run(
                train,
                (plan,),
                num_proc=job.workers,
                network=job.network,
                stream_logs=plan.verbose > 0,
                verbose=min(plan.verbose, 1),
                data=job.rows,
                spark=job.spark,
            )
        worked: list[Worked] = list(results)
        for one in worked:
            job.recorder.add(one.phases)
        return next(one.trained for one in worked if one.trained is not None)
