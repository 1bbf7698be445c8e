"""Eight workers in virtual time, one class a method: real steps and rules, made-up seconds.

A machine knows when a worker's step would end and when a line would be free, and does the
arithmetic of the steps in whatever order is quickest: what happens between two exchanges concerns
nobody else. Seconds are those of a `Setting`. What MPCA SGD, SparkNet and EASGD do with models is
done by the native rules of `keras_strom._native.joint_model`.
"""

from __future__ import annotations

import abc
import dataclasses
import heapq
import math
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.mpca_paper import Setting
from benchmarks.mpca_tasks import Adam, Crew, Floats, Task
from keras_strom._native import joint_model
from keras_strom._native.joint_model import JointModel
from keras_strom.method import MPCA, MethodKind, MethodNumbers

#: Ticks begin this part of a step after its start, so that none falls on a step.
_TICK_OFFSET = 0.381966
#: EASGD's alpha is this over the workers.
_EASGD_BETA = 0.9


@dataclasses.dataclass(frozen=True)
class Trial:
    """What a machine is built from.

    Attributes:
        task: what is learned.
        setting: whose seconds and sizes.
        seed: of the initial values and the batches, equal for all methods.
        workers: K.
        slow: workers at half speed, the last ones.
    """

    task: Task
    setting: Setting
    seed: int
    workers: int
    slow: int = 0

    @property
    def step_seconds(self) -> list[float]:
        """Of each worker."""
        own = self.setting.step_seconds
        return [own] * (self.workers - self.slow) + [2 * own] * self.slow


@dataclasses.dataclass(frozen=True)
class Pulls:
    """MPCA's options that the benchmark varies; the others are the product's defaults.

    Attributes:
        alpha: the pull of every step, in the end.
        gamma: cycles by which the target lies ahead.
        weighted: whether a snapshot counts by the steps behind it.
    """

    alpha: float
    gamma: float = 0.7
    weighted: bool = True

    def method(self, phases: int) -> MethodNumbers:
        """As the native rules take it."""
        method = MPCA(phases=phases, alpha=self.alpha, gamma=self.gamma, weighted=self.weighted)
        return method.numbers(workers=1)


class Machine(abc.ABC):
    """Workers that train by one method.

    Attributes:
        crew: the workers' models.
    """

    def __init__(self, trial: Trial, workers: int | None = None) -> None:
        self.trial = trial
        self.crew = Crew(trial.task, trial.workers if workers is None else workers, trial.seed)

    @abc.abstractmethod
    def advance(self, seconds: float) -> None:
        """Goes on until `seconds` after the start; never back."""

    @property
    @abc.abstractmethod
    def joint(self) -> Floats:
        """The model that is judged, as it is then."""

    @abc.abstractmethod
    def utilisation(self, seconds: float) -> float:
        """Which part of `seconds` from the start on the workers compute, at the method's pace."""

    def close(self) -> None:  # noqa: B027
        """Frees what is native, where there is something."""


class Single(Machine):
    """One worker with all of the data."""

    def __init__(self, trial: Trial) -> None:
        super().__init__(trial, workers=1)
        self._done = 0

    def advance(self, seconds: float) -> None:
        """Steps that have ended by then."""
        ended = math.floor(seconds / self.trial.setting.step_seconds)
        for _ in range(ended - self._done):
            self.crew.step(range(1))
        self._done = ended

    @property
    def joint(self) -> Floats:
        """Its model."""
        own: Floats = self.crew.values[0]
        return own

    def utilisation(self, seconds: float) -> float:
        """Always 1."""
        return self._done * self.trial.setting.step_seconds / seconds


class DenseSynchronous(Machine):
    """Every step all workers wait for the mean of their gradients.

    A ring brings it while the gradients are computed, so the slower of both counts.
    """

    def __init__(self, trial: Trial) -> None:
        super().__init__(trial)
        self._adam = Adam(1, self.crew.size, trial.task.learning_rate)
        self._joint = self.crew.values[:1].copy()
        self._period = max(*trial.step_seconds, trial.setting.ring_seconds)
        self._done = 0

    def advance(self, seconds: float) -> None:
        """Steps that have ended by then."""
        ended = math.floor(seconds / self._period)
        for _ in range(ended - self._done):
            self.crew.values[:] = self._joint
            gradient = self.crew.gradients(range(self.trial.workers)).mean(axis=0, keepdims=True)
            self._adam.step(range(1), self._joint, gradient)
        self._done = ended

    @property
    def joint(self) -> Floats:
        """The model of all."""
        own: Floats = self._joint[0]
        return own

    def utilisation(self, seconds: float) -> float:
        """A step's seconds over those between two steps."""
        return self._done * self.trial.setting.step_seconds / seconds


class ParameterServer(Machine):
    """The server's own Adam steps whenever a worker pushes a gradient; nobody waits for anybody."""

    def __init__(self, trial: Trial) -> None:
        super().__init__(trial)
        self._adam = Adam(1, self.crew.size, trial.task.learning_rate)
        self._joint = self.crew.values[:1].copy()
        self._periods = [max(own, trial.setting.ring_seconds) for own in trial.step_seconds]
        self._pushes = [
            (own * (1 + rank / trial.workers), rank) for rank, own in enumerate(self._periods)
        ]
        heapq.heapify(self._pushes)
        self._gradients: dict[int, Floats] = {}
        self._pushed = 0

    def advance(self, seconds: float) -> None:
        """Pushes until then; a worker pulls what there is after its own."""
        while self._pushes[0][0] <= seconds:
            now, rank = heapq.heappop(self._pushes)
            if rank not in self._gradients:  # All others' values are final too until they push.
                self._compute()
            self._adam.step(range(1), self._joint, self._gradients.pop(rank)[None])
            self.crew.values[rank] = self._joint[0]
            heapq.heappush(self._pushes, (now + self._periods[rank], rank))
            self._pushed += 1

    def _compute(self) -> None:
        """The gradients of all workers that have none."""
        missing = [rank not in self._gradients for rank in range(self.trial.workers)]
        for rows in runs(missing):
            gradients = self.crew.gradients(rows)
            for rank, gradient in zip(rows, gradients, strict=True):
                self._gradients[rank] = gradient.copy()

    @property
    def joint(self) -> Floats:
        """The server's model."""
        own: Floats = self._joint[0]
        return own

    def utilisation(self, seconds: float) -> float:
        """Seconds of gradients that were pushed."""
        own = self.trial.setting.step_seconds
        return self._pushed * own / (seconds * self.trial.workers)


class SparkNet(Machine):
    """All stop after so many steps, and go on from the mean of their models."""

    def __init__(self, trial: Trial) -> None:
        super().__init__(trial)
        method = MethodNumbers(
            kind=MethodKind.SPARKNET, phases=1, steps=trial.setting.sparknet_steps
        )
        self._model = JointModel(method, self.crew.values[0])
        self._rounds = 0

    @property
    def _round_seconds(self) -> float:
        setting = self.trial.setting
        slowest = max(self.trial.step_seconds)
        return setting.sparknet_steps * slowest + setting.exchange_seconds

    def advance(self, seconds: float) -> None:
        """Rounds that have ended by then."""
        everybody = range(self.trial.workers)
        ended = math.floor(seconds / self._round_seconds)
        for _ in range(ended - self._rounds):
            for _ in range(self.trial.setting.sparknet_steps):
                self.crew.step(everybody)
            for values in self.crew.values:
                self._model.add(0, values, self.trial.setting.sparknet_steps)
            self._model.update(0)
            self.crew.values[:] = self._model.read().joint
        self._rounds = ended

    @property
    def joint(self) -> Floats:
        """The mean after the last exchange."""
        return self._model.read().joint

    def utilisation(self, seconds: float) -> float:
        """Of whole rounds, whatever `seconds` cuts off: the setting alone says it."""
        setting = self.trial.setting
        ended = max(self._rounds, 1) * self._round_seconds
        return max(self._rounds, 1) * setting.sparknet_steps * setting.step_seconds / ended

    def close(self) -> None:
        """Frees what is native."""
        self._model.close()


class Easgd(Machine):
    """Each worker stops after so many own steps until it has x~, and moves towards it.

    It may have to wait for the line; its difference goes back while it trains.
    """

    def __init__(self, trial: Trial) -> None:
        super().__init__(trial)
        steps = trial.setting.easgd_steps
        self._alpha = np.float32(_EASGD_BETA / trial.workers)
        method = MethodNumbers(
            kind=MethodKind.EASGD, phases=1, alpha=float(self._alpha), steps=steps
        )
        self._model = JointModel(method, self.crew.values[0])
        self._left = [0] * trial.workers  # steps of an interval, still to be computed
        self._down_free = self._up_free = 0.0
        self._computed = self._stood = 0.0
        self._fetched: dict[int, Floats] = {}
        self._sent: dict[int, Floats] = {}
        # (when, what, of whom); the first intervals are shorter, staggered by rank.
        self._events: list[tuple[float, str, int]] = []
        for rank in range(trial.workers):
            self._train(0.0, rank, max(1, steps * (rank + 1) // trial.workers))

    def _train(self, now: float, rank: int, steps: int) -> None:
        seconds = steps * self.trial.step_seconds[rank]
        self._left[rank] = steps
        self._computed += seconds
        heapq.heappush(self._events, (now + seconds, "ask", rank))

    def advance(self, seconds: float) -> None:
        """Exchanges until then."""
        while self._events[0][0] <= seconds:
            now, event, rank = heapq.heappop(self._events)
            getattr(self, f"_{event}")(now, rank)

    def _ask(self, now: float, rank: int) -> None:
        """The worker stops; the line may be busy with others."""
        begin = max(now, self._down_free)
        self._down_free = begin + self.trial.setting.transfer_seconds
        self._stood += self._down_free - now
        heapq.heappush(self._events, (begin, "fetch", rank))
        heapq.heappush(self._events, (self._down_free, "exchange", rank))

    def _fetch(self, now: float, rank: int) -> None:
        """x~ as it is when it begins to travel."""
        self._fetched[rank] = self._model.read().joint

    def _exchange(self, now: float, rank: int) -> None:
        """The elastic exchange: d = alpha (x_i - x~), x_i -= d, and d goes back.

        It has the other direction of the line, one after the other.
        """
        while self._left[rank]:
            for rows in runs([left > 0 for left in self._left]):
                self.crew.step(rows)
            self._left = [max(0, left - 1) for left in self._left]
        values, fetched = self.crew.values[rank], self._fetched.pop(rank)
        self._sent[rank] = self._alpha * (values - fetched)
        joint_model.pull(values, fetched, float(self._alpha))
        self._up_free = max(now, self._up_free) + self.trial.setting.transfer_seconds
        heapq.heappush(self._events, (self._up_free, "arrive", rank))
        self._train(now, rank, self.trial.setting.easgd_steps)

    def _arrive(self, now: float, rank: int) -> None:
        self._model.move(0, self._sent.pop(rank))

    @property
    def joint(self) -> Floats:
        """The master's model."""
        return self._model.read().joint

    def utilisation(self, seconds: float) -> float:
        """Seconds of steps over those of steps, of waiting for the line, and of fetching."""
        return self._computed / (self._computed + self._stood)

    def close(self) -> None:
        """Frees what is native."""
        self._model.close()


class Mpca(Machine):
    """Nobody stops: shards travel beside the training, and every step is pulled a little.

    Tick n, as the product has it: what the tick before collected is taken into x~ when that tick
    has ended; the workers copy shard n mod P for the master at the start of their next steps, and
    from those steps on have the target of the same shard, which tick n-1 has brought.
    """

    def __init__(self, trial: Trial, pulls: Pulls) -> None:
        super().__init__(trial)
        phases = trial.setting.phases
        if phases not in (2, 3):
            raise ValueError(f"the benchmark's MPCA has 2 or 3 phases, not {phases}")
        self._phases = phases
        self._model = JointModel(pulls.method(phases), self.crew.values[0])
        self._shards = [self._model.shard(shard) for shard in range(phases)]
        self._targets: Floats = self.crew.values.copy()
        self._tick = 0
        self._done = [0] * trial.workers
        self._taus = np.zeros((phases, trial.workers), np.int64)
        self._alpha = 0.0

    def advance(self, seconds: float) -> None:
        """Ticks until then; steps as far as the last tick needs them."""
        setting = self.trial.setting
        while True:
            now = self._tick * setting.cycle_seconds / self._phases
            now += _TICK_OFFSET * setting.step_seconds
            if now > seconds:
                return
            self._step_until(now)
            self._exchange()
            self._tick += 1

    def _step_until(self, now: float) -> None:
        """Every worker's steps that have begun by then."""
        own = self.trial.step_seconds
        left = [math.ceil(now / own[i]) - done for i, done in enumerate(self._done)]
        while any(left):
            for rows in runs([steps > 0 for steps in left]):
                where = slice(rows.start, rows.stop)
                if self._alpha > 0:
                    joint_model.pull(self.crew.values[where], self._targets[where], self._alpha)
                self.crew.step(rows)
                self._taus[:, where] += 1
                for rank in rows:
                    left[rank] -= 1
                    self._done[rank] += 1

    def _exchange(self) -> None:
        """One tick, of workers that stand between two steps."""
        # Of P = 3 the tick before last has collected what the last one has prepared.
        prepared = self._tick - (2 if self._phases == 3 else 1)
        if prepared >= 0:
            self._model.update(prepared % self._phases)
        shard = self._tick % self._phases
        offset, size = self._shards[shard]
        where = slice(offset, offset + size)
        for rank, steps in enumerate(self._taus[shard]):
            if steps:
                self._model.add(offset, self.crew.values[rank, where], int(steps))
        self._taus[shard] = 0
        if self._tick >= self._phases:
            self._targets[:, where] = self._model.read().target[where]
        self._alpha, _ = self._model.alpha()

    @property
    def joint(self) -> Floats:
        """x~, extrapolated by nothing."""
        return self._model.read().joint

    def utilisation(self, seconds: float) -> float:
        """All of it, for nobody stops; but the last steps end at different times."""
        pace = zip(self._done, self.trial.step_seconds, strict=True)
        computed = [done * own for done, own in pace]
        return float(np.mean(computed)) / max(computed)

    def close(self) -> None:
        """Frees what is native."""
        self._model.close()


def runs(chosen: Sequence[bool]) -> Iterator[range]:
    """The ranges of neighbours that are chosen: rows of a matrix that can be worked on as one."""
    begin = None
    for place, own in enumerate([*chosen, False]):
        if own and begin is None:
            begin = place
        elif not own and begin is not None:
            yield range(begin, place)
            begin = None
