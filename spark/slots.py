"""How many workers a job has, and how many tasks a Spark application can run at the same time."""

from __future__ import annotations

import dataclasses
import re
import time
from typing import TYPE_CHECKING, Any

from keras_strom import errors
from keras_strom.checks import check_least, whole_number

from .application import is_local, is_on
from .placement import placed

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.resource import ResourceProfile

_DYNAMIC = "spark.dynamicAllocation.enabled"
_POLL_SECONDS = 0.2
# Executors that an application has asked for at its start have come by then, or are coming.
_STARTING_SECONDS = 15.0
_GROWING_SECONDS = 4.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """How many workers a job has.

    Attributes:
        workers: so many at most; their ranks are 0 to `workers` - 1.
        least: so many are enough to start, and with fewer of them training waits; None = it starts
            with all and goes on with those that are left.
        profile: what each one's task asks for; None = what the application's tasks do.
    """

    workers: int
    least: int | None = None
    profile: ResourceProfile | None = None

    def for_run(self) -> dict[str, Any]:
        """The same as the options of `run`."""
        if self.least is None:
            return {"num_proc": self.workers}
        return {"min_proc": self.least, "max_proc": self.workers}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WantedSize:
    """What the caller of `run` says of it.

    Attributes:
        num_proc: exactly so many, all at the start.
        min_proc, max_proc: as few, as many as that; either makes the job elastic.
        workers_per_node: no more than so many on one machine.
    """

    num_proc: int | None = None
    min_proc: int | None = None
    max_proc: int | None = None
    workers_per_node: int | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                whole_number(field.name, value, least=1)
        if self.num_proc is not None and self.is_elastic:
            raise errors.InvalidOption(
                f"num_proc={self.num_proc} is the number at the start and later: leave it out "
                "where min_proc or max_proc is given"
            )
        if self.max_proc is not None:
            check_least("min_proc", self.min_proc, "max_proc", self.max_proc)

    @property
    def is_elastic(self) -> bool:
        """Whether workers may come and go."""
        return self.min_proc is not None or self.max_proc is not None

    def choose(self, context: SparkContext, timeout: float) -> Size:
        """Waits for slots where there are too few to begin; see `choose_workers`."""
        if self.workers_per_node is None:
            return self._choose(context, timeout)
        if is_local(context):
            return self._on_one_machine(context, self._choose(context, timeout))
        # Waits for executors, unless they come for tasks only.
        choose_workers(context, 1 if is_on(context, _DYNAMIC) else None, timeout)
        profile = placed(context, self.workers_per_node)
        return dataclasses.replace(self._choose(context, timeout, profile), profile=profile)

    def _choose(
        self, context: SparkContext, timeout: float, profile: ResourceProfile | None = None
    ) -> Size:
        if not self.is_elastic:
            workers = choose_workers(context, self.num_proc, timeout, profile=profile)
            return Size(workers=workers)
        least = self.min_proc or 1
        if self.max_proc is not None:
            choose_workers(context, least, timeout, option="min_proc", profile=profile)
            return Size(workers=self.max_proc, least=least)
        if is_on(context, _DYNAMIC):
            raise errors.InvalidOption(
                f"min_proc={least} needs max_proc as well: with spark.dynamicAllocation.enabled "
                "executors come for tasks that wait, and someone has to say for how many"
            )
        slots = choose_workers(context, None, timeout, profile=profile)
        if slots < least:
            choose_workers(context, least, timeout, option="min_proc", profile=profile)
        return Size(workers=max(slots, least), least=least)

    def _on_one_machine(self, context: SparkContext, size: Size) -> Size:
        most = self.workers_per_node
        assert most is not None
        if size.workers <= most:
            return size
        if self.num_proc is None and self.max_proc is None and most >= (size.least or 1):
            return dataclasses.replace(size, workers=most)
        raise errors.NotEnoughSlots(
            f"{context.master} is one machine: workers_per_node={most} does not permit "
            f"{self.num_proc or self.max_proc or size.least} workers"
        )


def choose_workers(
    context: SparkContext,
    wanted: int | None,
    timeout: float,
    *,
    option: str = "num_proc",
    profile: ResourceProfile | None = None,
) -> int:
    """The number of workers: `wanted`, checked, or every slot there is.

    In the first seconds of an application executors may still be coming, and are waited for.

    Args:
        context: the application.
        wanted: None = as many as there are slots.
        timeout: seconds to wait for executors at most.
        option: what the caller has given as `wanted`.
        profile: what a worker's task asks for; None = what the application's tasks do.

    Raises:
        NotEnoughSlots: fewer slots than workers; the message names the setting to raise.
    """
    if wanted is not None and is_on(context, _DYNAMIC):
        return wanted  # Executors come when tasks wait for them; start_timeout is the limit.
    slots = 0
    deadline = time.monotonic() + timeout
    settled = time.monotonic() + max(0.0, _STARTING_SECONDS - _age_seconds(context))
    while True:
        now, found = time.monotonic(), count_slots(context, profile)
        if wanted is not None and found >= wanted:
            return wanted
        if found > slots:
            slots, settled = found, max(settled, now if slots == 0 else now + _GROWING_SECONDS)
        settling = now < settled or (profile is None and slots < _promised(context))
        if is_local(context) or (slots and not settling) or now >= deadline:
            break
        time.sleep(_POLL_SECONDS)
    if wanted is None and slots > 0:
        return slots
    raise errors.NotEnoughSlots(
        f"{wanted or 1} workers need as many slots, and {context.master} has {slots}: "
        f"{_remedy(context, wanted or 1)}, or choose {option}={slots}"
        if slots
        else f"{context.master} has no executor after {timeout:g} s"
    )


def count_slots(context: SparkContext, profile: ResourceProfile | None = None) -> int:
    """Tasks that the executors registered so far can run at once.

    Args:
        context: the application.
        profile: what each task asks for; None = the application's own.
    """
    scala = context._jsc.sc()
    profiles = scala.resourceProfileManager()
    if profile is None:
        return int(scala.maxNumConcurrentTasks(profiles.defaultResourceProfile()))
    profiles.addResourceProfile(profile._java_resource_profile)
    return int(scala.maxNumConcurrentTasks(profile._java_resource_profile))


def _age_seconds(context: SparkContext) -> float:
    return time.time() - float(context.startTime) / 1000


def _promised(context: SparkContext) -> int:
    """The slots that an embedded cluster is going to have; 0 where that is not known."""
    cluster = re.match(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)", str(context.master))
    return int(cluster[1]) * int(cluster[2]) if cluster else 0


def _remedy(context: SparkContext, workers: int) -> str:
    if is_local(context):
        return f'start Spark with master "local[{workers}]"'
    if str(context.master).startswith("local-cluster["):
        return f'start Spark with master "local-cluster[{workers},1,1024]"'
    return (
        "raise spark.executor.instances or spark.executor.cores (slots = instances x cores / "
        "spark.task.cpus)"
    )
