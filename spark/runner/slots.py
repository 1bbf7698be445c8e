"""How many workers a job has, and how many tasks a Spark application can run at the same time."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from keras_strom import errors
from keras_strom.checks import check_least, whole_number
from keras_strom.job.environment import ClusterEnvironment

from .application import is_local, is_on
from .workers_per_host import placed

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.resource import ResourceProfile

#: How long a job's tasks may take to come, unless its caller says otherwise.
START_TIMEOUT_SECONDS = ClusterEnvironment.join_timeout
#: So many workers of a job are started again, unless its caller says otherwise.
MAX_FAILURES = 3

#: Spark's setting: executors come where tasks wait for them.
DYNAMIC_ALLOCATION = "spark.dynamicAllocation.enabled"
_MOST_EXECUTORS = "spark.dynamicAllocation.maxExecutors"
_LEAST_EXECUTORS = "spark.dynamicAllocation.minExecutors"
_POLL_SECONDS = 0.2
# Where nobody says how many executors there should be, those that come at all have come by then.
_STARTING_SECONDS = 15.0
_GROWING_SECONDS = 4.0
# By then a cluster has started another executor in the place of one that was lost, if it ever does.
_REPLACING_SECONDS = 60.0
# Waiting that takes longer is worth a line.
_SILENT_SECONDS = 5.0
# Spark's own number on YARN and Kubernetes.
_INSTANCES = 2

_logger = logging.getLogger(__name__)

Say = Callable[[str], None]


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

    def choose(self, context: SparkContext, timeout: float, say: Say = _logger.warning) -> Size:
        """Waits for slots where there are too few to begin; see `choose_workers`."""
        waiting = Waiting(timeout, say)
        if self.workers_per_node is None:
            return self._choose(context, waiting)
        if is_local(context):
            return self._on_one_machine(context, self._choose(context, waiting))
        # Waits for executors, unless they come for tasks only.
        choose_workers(context, 1 if is_on(context, DYNAMIC_ALLOCATION) else None, waiting)
        profile = placed(context, self.workers_per_node)
        return dataclasses.replace(self._choose(context, waiting, profile), profile=profile)

    def _choose(
        self, context: SparkContext, waiting: Waiting, profile: ResourceProfile | None = None
    ) -> Size:
        if not self.is_elastic:
            workers = choose_workers(context, self.num_proc, waiting, profile=profile)
            return Size(workers=workers)
        least = self.min_proc or 1
        if self.max_proc is not None:
            choose_workers(context, least, waiting, option="min_proc", profile=profile)
            return Size(workers=self.max_proc, least=least)
        if is_on(context, DYNAMIC_ALLOCATION):
            raise errors.InvalidOption(
                f"min_proc={least} needs max_proc as well: with spark.dynamicAllocation.enabled "
                "executors come for tasks that wait, and someone has to say for how many"
            )
        slots = choose_workers(context, None, waiting, profile=profile)
        if slots < least:
            choose_workers(context, least, waiting, option="min_proc", profile=profile)
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


@dataclasses.dataclass(frozen=True)
class Waiting:
    """How a caller waits for executors.

    Attributes:
        timeout: seconds at most.
        say: is told for what, where it takes long.
    """

    timeout: float
    say: Say = _logger.warning


def choose_workers(
    context: SparkContext,
    wanted: int | None,
    waiting: Waiting,
    *,
    option: str = "num_proc",
    profile: ResourceProfile | None = None,
) -> int:
    """The number of workers: `wanted`, checked, or every slot there is.

    Executors that Spark has granted may take long to start. So where the application may have as
    many slots as are wanted, it is given the whole of the time-out, counted from its own start,
    until it has them; otherwise the first seconds. Where it had as many until an executor was lost,
    it is given a minute from that moment to get another.

    Args:
        context: the application.
        wanted: None = as many as there are slots.
        waiting: for executors.
        option: what the caller has given as `wanted`.
        profile: what a worker's task asks for; None = what the application's tasks do.

    Raises:
        NotEnoughSlots: fewer slots than workers; the message names the setting to raise.
    """
    if is_on(context, DYNAMIC_ALLOCATION) and not is_local(context):
        if wanted is not None:
            return _at_most_allocated(context, wanted, option, profile)
        _refuse_to_wait_for_no_task(context, profile, waiting.timeout)
    slots, silent = count_slots(context, profile), True
    begin = time.monotonic()
    deadline = begin + waiting.timeout
    may_come = wanted is not None and _most_slots(context) >= wanted
    patience = waiting.timeout if may_come else _STARTING_SECONDS
    settled = begin + max(0.0, patience - _age_seconds(context))
    if wanted is not None:  # Spark takes a moment to note that an executor is lost.
        settled = max(settled, begin + _POLL_SECONDS)
    loss: _Loss | None = None
    while True:
        now, found = time.monotonic(), count_slots(context, profile)
        if wanted is not None and found >= wanted:
            return wanted
        if found > slots:
            slots, settled = found, max(settled, now + _GROWING_SECONDS)
        settling = now < settled or (profile is None and slots < _promised(context))
        if slots and not settling:
            last = _last_loss(context, profile)
            if last is not None and found < (wanted or last.slots) <= last.slots:
                loss = last
                settled = max(settled, now + _REPLACING_SECONDS - last.seconds_ago())
                settling = now < settled
        if is_local(context) or (slots and not settling) or now >= deadline:
            break
        if silent and now >= begin + _SILENT_SECONDS:
            silent = False
            until = deadline if not slots or _promised(context) else min(deadline, settled)
            words = _waits_for(context, option, wanted, slots, until - now)
            waiting.say(f"{words}{'' if loss is None else loss.in_words()}")
        time.sleep(_POLL_SECONDS)
    if wanted is None and slots > 0:
        return slots
    raise errors.NotEnoughSlots(
        f"{wanted or 1} workers need as many slots, and {context.master} has {slots}"
        f"{'' if loss is None else loss.in_words()}: "
        f"{_remedy(context, wanted or 1)}, or choose {option}={slots}"
        if slots
        else f"{context.master} has no executor after {waiting.timeout:g} s"
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


def _at_most_allocated(
    context: SparkContext, wanted: int, option: str, profile: ResourceProfile | None
) -> int:
    """As many workers as wanted: executors come when tasks wait; start_timeout is the limit.

    Raises:
        NotEnoughSlots: the settings do not allow so many.
    """
    conf = context.getConf()
    executors, cores = conf.get(_MOST_EXECUTORS), conf.get("spark.executor.cores")
    takes_all = str(context.master).startswith(("spark://", "local-cluster["))
    if executors is None or (cores is None and takes_all):
        return wanted  # There an executor has as many cores as its machine gives.
    most = int(executors) * (int(cores or 1) // _task_cpus(context, profile))
    if wanted <= most:
        return wanted
    raise errors.NotEnoughSlots(
        f"{wanted} workers need as many slots, and {_MOST_EXECUTORS}={executors} allows {most}: "
        f"raise it or spark.executor.cores (slots = executors x cores / spark.task.cpus), or "
        f"choose {option}={most}"
    )


def _refuse_to_wait_for_no_task(
    context: SparkContext, profile: ResourceProfile | None, timeout: float
) -> None:
    """Refuses to count the slots of an application to which no executor will come by itself.

    Raises:
        NotEnoughSlots: it has none, and none is about to start.
    """
    conf = context.getConf()
    settings = [_LEAST_EXECUTORS]
    if _age_seconds(context) < timeout:
        settings += ["spark.dynamicAllocation.initialExecutors", "spark.executor.instances"]
    coming = any(int(conf.get(name) or 0) for name in settings)
    coming = coming or bool(context.statusTracker().getActiveJobsIds())
    if not coming and not count_slots(context, profile):
        raise errors.NotEnoughSlots(
            f"{context.master} has no executor, and with {DYNAMIC_ALLOCATION} they come for tasks "
            f"that wait: give num_proc, or set {_LEAST_EXECUTORS}"
        )


@dataclasses.dataclass(frozen=True)
class _Executor:
    """One that is there or was, with the Unix time at which it came and at which it was lost."""

    slots: int
    come: float
    lost: float = math.inf


@dataclasses.dataclass(frozen=True)
class _Loss:
    """An executor was lost at this Unix time, and shortly before there were so many slots."""

    slots: int
    moment: float

    def seconds_ago(self) -> float:
        return max(0.0, time.time() - self.moment)

    def in_words(self) -> str:
        return f" (it had {self.slots}, and lost an executor {self.seconds_ago():.0f} s ago)"


def _last_loss(context: SparkContext, profile: ResourceProfile | None) -> _Loss | None:
    """That of the last executor that may be about to be replaced; None = there is none."""
    if is_local(context) or is_on(context, DYNAMIC_ALLOCATION):  # There idle ones are let go.
        return None
    executors, since = _executors(context, profile), time.time() - _REPLACING_SECONDS
    losses = [one.lost for one in executors if since < one.lost < math.inf]
    if not losses:
        return None
    slots = (sum(one.slots for one in executors if one.come < at <= one.lost) for at in losses)
    return _Loss(max(slots), max(losses))


def _executors(context: SparkContext, profile: ResourceProfile | None) -> list[_Executor]:
    """The application's, those that it has lost among them (Spark keeps the last hundred)."""
    cpus = _task_cpus(context, profile)
    found = context._jsc.sc().statusStore().executorList(False)
    summaries = [found.apply(index) for index in range(found.size())]
    return [
        _Executor(
            int(one.totalCores()) // cpus,
            one.addTime().getTime() / 1000,
            one.removeTime().get().getTime() / 1000 if one.removeTime().isDefined() else math.inf,
        )
        for one in summaries
        if one.id() != "driver"
    ]


def _age_seconds(context: SparkContext) -> float:
    return time.time() - float(context.startTime) / 1000


def _promised(context: SparkContext) -> int:
    """The slots that an embedded cluster is going to have; 0 where that is not known."""
    cluster = re.match(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)", str(context.master))
    return int(cluster[1]) * (int(cluster[2]) // _task_cpus(context)) if cluster else 0


def _task_cpus(context: SparkContext, profile: ResourceProfile | None = None) -> int:
    if profile is not None:
        return int(profile.taskResources["cpus"].amount)
    return int(context.getConf().get("spark.task.cpus") or 1)


def _most_slots(context: SparkContext) -> float:
    """The most slots that the application's settings allow; infinity = they do not say."""
    if promised := _promised(context):
        return promised
    conf = context.getConf()
    cpus = _task_cpus(context)
    if str(context.master).startswith("spark://"):
        cores = conf.get("spark.cores.max")
        return int(cores) // cpus if cores else math.inf
    instances = int(conf.get("spark.executor.instances") or _INSTANCES)
    return instances * (int(conf.get("spark.executor.cores") or 1) // cpus)


def _waits_for(
    context: SparkContext, option: str, wanted: int | None, slots: int, seconds: float
) -> str:
    if wanted is None or wanted == 1:
        return f"waiting up to {seconds:.0f} s for executors: {context.master} has {slots} slots"
    return (
        f"waiting up to {seconds:.0f} s for executors: {option}={wanted} needs {wanted} slots, and "
        f"{context.master} has {slots} so far"
    )


def _remedy(context: SparkContext, workers: int) -> str:
    cpus = _task_cpus(context)
    if is_local(context):
        return f'start Spark with master "local[{workers * cpus}]"'
    if str(context.master).startswith("local-cluster["):
        return f'start Spark with master "local-cluster[{workers},{cpus},1024]"'
    if str(context.master).startswith("spark://"):
        return "raise spark.cores.max, or add machines (slots = cores / spark.task.cpus)"
    return (
        "raise spark.executor.instances or spark.executor.cores (slots = instances x cores / "
        "spark.task.cpus)"
    )
