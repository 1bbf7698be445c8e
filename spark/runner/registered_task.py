"""What the controller knows of a task that has registered, and of how one fails."""

from __future__ import annotations

import dataclasses

from keras_strom import errors
from keras_strom.runner.channel import Channel


@dataclasses.dataclass
class RegisteredTask:
    """A task that has registered.

    Attributes:
        channel: to it.
        partition, task_attempt, host: what Spark has made of it.
        executor: the id of its executor; "" = not known.
        task: Spark's id of this attempt of it.
        rank, local_rank: of its worker; -1 = none so far.
        attempt: how often a worker of this rank was started before.
        ended: whether its worker has ended for good, well or not.
        lost_at: when the task was lost, to be run anew by Spark; None = it is there.
        failure: what it was lost by.
        leaves: whether its executor is about to be taken away.
        idle_drains: how often in a row its worker has left with no step of its `fit` before.
        event: where among the job's events its registration stands.
    """

    channel: Channel
    partition: int
    task_attempt: int
    host: str
    executor: str = ""
    task: int = 0
    rank: int = -1
    local_rank: int = -1
    attempt: int = 0
    ended: bool = False
    lost_at: float | None = None
    failure: Failure | None = None
    leaves: bool = False
    idle_drains: int = 0
    event: int = -1

    def is_newer_than(self, other: RegisteredTask) -> bool:
        """Whether Spark has begun it later, be it in a new attempt of the whole stage."""
        return (self.task, self.task_attempt) > (other.task, other.task_attempt)


@dataclasses.dataclass(frozen=True)
class Failure:
    """How a worker has failed.

    Attributes:
        error: what `run` would raise.
        is_consequence: whether it failed only because the job had ended elsewhere.
        cause: a few words that follow "worker 1".
    """

    error: errors.WorkerFailed
    is_consequence: bool
    cause: str

    @classmethod
    def lost(cls, task: RegisteredTask, reason: str, streamed: bool) -> Failure:
        """The failure of a worker whose task is lost."""
        text = f"it is lost: {reason}; was its executor ended (out of memory, or preempted)?"
        error = errors.WorkerFailed(task.rank, task.host, text, (), streamed)
        return cls(error, False, f"on {task.host} is lost: {reason}")
