"""How workers train one model together, where it is not by sharing thresholded updates.

A method is a frozen value, `StromStrategy(method=MPCA())`. Every worker trains a model of its own
(the local model) with its own optimizer; the master holds the joint model, which is made of all
local ones. No thresholded update travels, but parameters, at intervals. `AllReduce` is apart: in
every step all workers take the mean of their gradients, and have one model.

x_i are the parameters of worker i, x~ those of the joint model, x* the target that workers are
pulled to, v~ the trajectory of x~, K the number of workers.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
from typing import ClassVar

from keras_strom import errors
from keras_strom.checks import check_number, flag, whole_number

# Of asynchronous EASGD, as its authors have it: K alpha.
_EASGD_PULL = 0.9


class MethodKind(enum.IntEnum):
    """The methods by number, as custom_ops/core/joint/joint_values.h has them."""

    UPDATE_SHARING = 0
    MPCA = 1
    SPARKNET = 2
    EASGD = 3
    EASGD_SYNCHRONOUS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class MethodNumbers:
    """A method as the native library takes it (`strom_method`); 0 = of no use to it.

    Attributes:
        kind: which method.
        phases, weighted, alpha, beta, gamma, delta, ramp_cycles, min_steps: as `MPCA` has them;
            alpha and beta also of `EASGD`.
        start_alpha, free_cycles, start_cycles: `PullStart`'s alpha, free_cycles and cycles.
        steps: from one exchange to the next; 0 = as is measured.
        bfloat16: whether models travel as bfloat16 changes, and gradients as bfloat16.
        gradients: whether gradients travel, before each step of the optimizer.
    """

    kind: MethodKind
    phases: int = 1
    weighted: bool = False
    alpha: float = 0.0
    beta: float = 0.0
    gamma: float = 0.0
    delta: float = 0.0
    start_alpha: float = 0.0
    free_cycles: int = 0
    start_cycles: int = 0
    ramp_cycles: int = 0
    min_steps: int = 0
    steps: int = 0
    bfloat16: bool = False
    gradients: bool = False

    @property
    def has_rounds(self) -> bool:
        """Whether all workers exchange at the same steps, and wait for each other there."""
        return self.kind in (MethodKind.SPARKNET, MethodKind.EASGD_SYNCHRONOUS)


class Method(abc.ABC):
    """How workers train one model where it is not by sharing updates: `AllReduce`, `MPCA`, ...

    Attributes:
        pulls_each_step: whether a worker is pulled in every step, not in exchanges alone.
    """

    pulls_each_step: ClassVar[bool] = False

    @property
    def pulls_by_gradient(self) -> bool:
        """Whether the pull is a part of the gradients that the optimizer gets."""
        return False

    @property
    def averages_gradients(self) -> bool:
        """Whether all optimizers get the mean of all gradients, so that they stay equal."""
        return False

    @abc.abstractmethod
    def numbers(self, workers: int) -> MethodNumbers:
        """What the native library computes with.

        Args:
            workers: K.

        Raises:
            InvalidOption: the method makes no sense with so many.
        """

    @property
    def text(self) -> str:
        """Names the method and all of its numbers; equal on all workers of a job."""
        return repr(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PullStart:
    """How the pull of `MPCA` begins: none at first, then a high one that falls.

    After `free_cycles` cycles the pull is `alpha`, and within `cycles` more it falls to that of
    `MPCA`, by the same factor in each. So workers that are far apart at first come together.

    Attributes:
        free_cycles: cycles without any pull; 0 or more.
        alpha: the first pull after them, in [0, 1].
        cycles: in which it falls; 0 = at once.

    Raises:
        InvalidOption: a value that makes no sense.

    Example:
        >>> PullStart(free_cycles=5).alpha
        0.5
    """

    free_cycles: int = 2
    alpha: float = 0.5
    cycles: int = 20

    def __post_init__(self) -> None:
        whole_number("free_cycles", self.free_cycles, least=0)
        _keep_number(self, "alpha", "[0, 1]", 0 <= _number(self, "alpha") <= 1)
        whole_number("cycles", self.cycles, least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MPCA(Method):
    """MPCA SGD (Langer, Hall, He, Rahayu): workers never wait, and are pulled in every step.

    While workers train, the master collects their parameters shard by shard, averages and
    extrapolates them, and hands out targets. The interval between two exchanges of a shard (a
    cycle) is what the network allows. Equations of the paper, for one shard:

    * (9) R = sum tau_i x_i / sum tau_i over the workers' snapshots
    * (8) x~ becomes (1 - beta) x~ + beta R
    * (4) v~ = delta v~ + (1 - delta) (new x~ - old x~)
    * (5) x* = x~ + gamma v~
    * (7) in every step of worker i: x_i += alpha (x* - x_i)
    * (6) or, with `penalty="gradient"`: the gradient g_i += alpha (x_i - x*)

    Args:
        phases: in how many shards the joint model travels, 1 to 3. With 3 one is collected, one
            averaged and one handed out at any time.
        alpha: the pull of a step (7), in [0, 1]; 0 = no worker is ever pulled. With n_c steps a
            cycle, alpha n_c should stay below 2: above that the pull is a brake.
        penalty: "shift" = the pull moves the parameters between two steps (7). "gradient" = it is
            the gradient of alpha / 2 |x - x*|^2, which the optimizer gets with that of the loss
            (6): before any clipping, and times the learning rate. Its effect goes by the optimizer:
            Adam divides it away, and with plain SGD alpha has to be divided by the learning rate.
        beta: the weight of a cycle's mean (8), in (0, 1]. It starts at 1.
        gamma: by how many cycles the target lies ahead of the joint model (5), in [0, 2]. It starts
            at 0.
        delta: what the trajectory keeps of itself in a cycle (4), in [0, 1).
        weighted: whether a snapshot counts as often as steps lie behind it (9); False = once.
        start: how the pull begins.
        ramp_cycles: cycles in which beta falls from 1, and gamma grows from 0; 0 = at once.
        min_steps: steps of the workers' mean that lie between two snapshots of a shard at least; 1
            or more.

    Raises:
        InvalidOption: a value that makes no sense.

    Example:
        >>> MPCA(alpha=0.02).numbers(workers=8).alpha
        0.02
    """

    phases: int = 3
    alpha: float = 0.05
    beta: float = 0.9
    gamma: float = 0.7
    delta: float = 0.8
    penalty: str = "shift"
    weighted: bool = True
    start: PullStart = dataclasses.field(default_factory=PullStart)
    ramp_cycles: int = 20
    min_steps: int = 5

    pulls_each_step: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.phases, bool) or self.phases not in (1, 2, 3):
            raise errors.InvalidOption(f"phases={self.phases!r} must be 1, 2 or 3")
        _keep_number(self, "alpha", "[0, 1]", 0 <= _number(self, "alpha") <= 1)
        _keep_number(self, "beta", "(0, 1]", 0 < _number(self, "beta") <= 1)
        _keep_number(self, "gamma", "[0, 2]", 0 <= _number(self, "gamma") <= 2)
        _keep_number(self, "delta", "[0, 1)", 0 <= _number(self, "delta") < 1)
        if self.penalty not in ("shift", "gradient"):
            raise errors.InvalidOption(f'penalty={self.penalty!r} must be "shift" or "gradient"')
        flag("weighted", self.weighted)
        if not isinstance(self.start, PullStart):
            raise errors.InvalidOption(f"start={self.start!r} must be a PullStart")
        whole_number("ramp_cycles", self.ramp_cycles, least=0)
        whole_number("min_steps", self.min_steps, least=1)

    @property
    def pulls_by_gradient(self) -> bool:
        """Whether the pull is a part of the gradients that the optimizer gets."""
        return self.penalty == "gradient"

    def numbers(self, workers: int) -> MethodNumbers:
        """What the native library computes with; the same for any number of workers."""
        return MethodNumbers(
            kind=MethodKind.MPCA,
            phases=self.phases,
            weighted=self.weighted,
            alpha=self.alpha,
            beta=self.beta,
            gamma=self.gamma,
            delta=self.delta,
            start_alpha=self.start.alpha,
            free_cycles=self.start.free_cycles,
            start_cycles=self.start.cycles,
            ramp_cycles=self.ramp_cycles,
            min_steps=self.min_steps,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparkNet(Method):
    """SparkNet (Moritz et al.): every so many steps the mean of all models takes their place.

    A barrier: all workers make `steps` steps, wait for each other, and go on from
    x~ = (1/K) sum x_i. Optimizers keep their state, and the mean is not weighted. (Spark's
    `ParameterAveraging` is another method, which needs no relay.)

    Args:
        steps: of each worker, from one mean to the next; 1 or more. None = five times as many as
            fit into the time of an exchange, which is measured: 83 % of the time is training then.

    Raises:
        InvalidOption: a value that makes no sense.

    Example:
        >>> SparkNet(steps=50).steps
        50
    """

    steps: int | None = None

    def __post_init__(self) -> None:
        _check_steps(self.steps)

    def numbers(self, workers: int) -> MethodNumbers:
        """What the native library computes with; the same for any number of workers."""
        return MethodNumbers(kind=MethodKind.SPARKNET, steps=self.steps or 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllReduce(Method):
    """Exact mode: in every step all workers take the mean of all; nothing is withheld.

    `StromStrategy(threshold=None)` is `StromStrategy(method=AllReduce())`. In every step all wait
    for each other. Sums are float64, in the order of ranks, so another run's parameters have the
    same bits, as far as the workers' own steps do.

    With `average="gradients"` every optimizer gets (1/K) sum g_i, where g_i is the gradient of
    worker i on its batch, before any clipping, weight decay or scaling of the loss is undone. So
    with any optimizer this is one worker with the K batches joined, but for rounding (and where
    Keras squares parts of an embedding's gradient before it adds them up). All have one model and
    one optimizer's state, and the learning rate of the lowest rank.

    With `average="updates"` every worker steps by itself from the same parameters x, and all go on
    from x + (1/K) sum u_i, where u_i is what its optimizer has made of its batch. With SGD,
    momentum and Nesterov too, that is the same but for rounding. Optimizers that divide by what
    they remember of gradients (Adam, RMSprop) do so at each worker by its own, and clip each its
    own. It works where gradients cannot be exchanged: with `jit_compile=True`, with several devices
    a worker, and with `on_master_loss="wait"`.

    Args:
        average: what is averaged: "gradients" or "updates".
        dtype: what travels. "float32": nothing is rounded but the mean, once. "bfloat16": half the
            bytes. Parameters stay float32; a gradient or an update is rounded to 8 significant bits
            on its way to where it is added up, and their mean on its way back.

    Raises:
        InvalidOption: a value that makes no sense.

    Example:
        >>> AllReduce(dtype="bfloat16").numbers(workers=4).bfloat16
        True
    """

    average: str = "gradients"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.average not in ("gradients", "updates"):
            raise errors.InvalidOption(f'average={self.average!r} must be "gradients" or "updates"')
        if self.dtype not in ("float32", "bfloat16"):
            raise errors.InvalidOption(f'dtype={self.dtype!r} must be "float32" or "bfloat16"')

    @property
    def averages_gradients(self) -> bool:
        """Whether all optimizers get the mean of all gradients, so that they stay equal."""
        return self.average == "gradients"

    def numbers(self, workers: int) -> MethodNumbers:
        """What the native library computes with: a mean in every step."""
        return MethodNumbers(
            kind=MethodKind.SPARKNET,
            steps=1,
            bfloat16=self.dtype == "bfloat16",
            gradients=self.averages_gradients,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EASGD(Method):
    """Elastic averaging SGD (Zhang, Choromanska, LeCun): exchanges draw models together.

    Asynchronous: every `steps` own steps a worker fetches x~ and computes d = alpha (x_i - x~),
    which leaves its own model and is added to the joint one. Training stands still for the fetch.

    Synchronous: all workers at once, x_i -= alpha (x_i - x~) and
    x~ becomes (1 - beta) x~ + beta (mean of x_i) with beta = K alpha, both from the old values.

    Args:
        steps: of a worker, from one exchange to the next; 1 or more. None = 1.3 K times as many as
            fit into the time of a fetch, which is measured.
        alpha: the pull of an exchange, in [0, 1]; None = 0.9 / K. Synchronous: at most 1 / K.
        synchronous: whether all workers exchange at once, and wait for each other.

    Raises:
        InvalidOption: a value that makes no sense.

    Example:
        >>> EASGD(steps=10).numbers(workers=9).alpha
        0.1
    """

    steps: int | None = None
    alpha: float | None = None
    synchronous: bool = False

    def __post_init__(self) -> None:
        _check_steps(self.steps)
        if self.alpha is not None:
            within = 0 <= _number(self, "alpha") <= 1
            _keep_number(self, "alpha", "[0, 1], or be None for 0.9 / K", within)
        flag("synchronous", self.synchronous)

    def numbers(self, workers: int) -> MethodNumbers:
        """What the native library computes with: alpha, and beta = K alpha where all wait.

        Raises:
            InvalidOption: synchronous, and beta would be more than 1.
        """
        alpha = _EASGD_PULL / workers if self.alpha is None else self.alpha
        if not self.synchronous:
            return MethodNumbers(kind=MethodKind.EASGD, alpha=alpha, steps=self.steps or 0)
        beta = _EASGD_PULL if self.alpha is None else workers * alpha
        if beta > 1:
            raise errors.InvalidOption(
                f"alpha={self.alpha!r} of {workers} workers that exchange at once makes beta = K "
                f"alpha = {beta:g}, which must be at most 1: alpha may be {1 / workers:g} here"
            )
        return MethodNumbers(
            kind=MethodKind.EASGD_SYNCHRONOUS, alpha=alpha, beta=beta, steps=self.steps or 0
        )


def check_method(name: str, value: object) -> None:
    """Refuses what is no method; None, which is update sharing, passes.

    Raises:
        InvalidOption: the message begins with `name`.
    """
    if value is not None and not isinstance(value, Method):
        raise errors.InvalidOption(
            f"{name}={value!r} must be a method, such as AllReduce() or MPCA(), or None, "
            "which shares updates"
        )


def check_cycles(name: str, value: object) -> None:
    """Refuses what is no number of cycles that a joint model may have finished.

    Raises:
        InvalidOption: the message begins with `name`.
    """
    whole_number(name, value, least=0)


def _check_steps(steps: object) -> None:
    if steps is not None:
        whole_number("steps", steps, least=1)


def _number(value: object, name: str) -> float:
    given = getattr(value, name)
    check_number(name, given)
    return float(given)


def _keep_number(value: object, name: str, interval: str, within: bool) -> None:
    """Keeps a number that lies in its interval as a float, so that 1 and 1.0 are one method."""
    if not within:
        raise errors.InvalidOption(f"{name}={getattr(value, name)!r} must lie in {interval}")
    object.__setattr__(value, name, float(getattr(value, name)))
