"""StromStrategy: trains one Keras model on many machines by sharing thresholded updates.

A step is plain Keras. `run` takes note of the variables before it (their buffers, no copy) and one
native op closes it: the change goes into the residual, what has grown to the threshold leaves as a
message, and the variables get the messages received from the other workers. A worker trains on with
all of its own progress, sent or not. What all share is the common start plus the same set of
messages; that is what epochs end with, and what callbacks, files and everybody see in the end.

With another method (`keras_strom.method`) the op is another one, which `PulledStep` describes.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_strom import errors
from keras_strom._native.local_model import LocalModel
from keras_strom._native.replica import Replica
from keras_strom.job.drain import request as drain_request
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.job.network import NetworkConfig
from keras_strom.method import Method, check_cycles, check_method
from keras_strom.recovery.checkpointing import Checkpointing
from keras_strom.relay.counters import NodeCounters
from keras_strom.relay.training_relay import TrainingWorker
from keras_strom.sharing import model_checks
from keras_strom.sharing.flat_space import FlatSpace
from keras_strom.sharing.options import (
    check_before_optimizer,
    check_compilable,
    check_network_beside,
    check_options,
    method_of,
    refuse_beside_method,
)
from keras_strom.sharing.pulled_step import PulledStep, PullOptions
from keras_strom.sharing.residual import ResidualClipping, ShakeUp
from keras_strom.sharing.scale import UpdateScale, warmup_of
from keras_strom.sharing.step import SharedStep, StepOptions
from keras_strom.sharing.step_trace import MaskedMomenta, StepTrace
from keras_strom.sharing.threshold import AdaptiveThreshold, ThresholdAlgorithm
from keras_strom.sharing.training_step import TrainingStep
from keras_strom.sharing.update_clipping import UpdateClipping
from keras_strom.strategy.building import wrap_build
from keras_strom.strategy.data_sharding import keep_whole, shard_dataset, without_autotune
from keras_strom.strategy.device_parts import divided, grouped
from keras_strom.strategy.devices import local_devices, over_devices
from keras_strom.strategy.fit import wrap_fit
from keras_strom.strategy.fit_checks import refuse_within_another
from keras_strom.strategy.fit_failure import say_goodbye
from keras_strom.strategy.generation import Generation, Sharing
from keras_strom.strategy.report import TrainingReport
from keras_strom.strategy.scopes import check_open_scope, scope_of, watch_updates
from keras_strom.strategy.status_reports import doing, follow_alone, reports_of
from keras_strom.strategy.trackers import silence_autologging
from keras_strom.strategy.train_on_batch import wrap_train_on_batch
from keras_strom.strategy.user_errors import outside_of_training
from keras_strom.strategy.xla import XlaCompiler

# The strategy with which this process has joined its job; it has one place there.
_joined: weakref.ref[StromStrategy] | None = None

# The attribute of a variable that names the strategy in whose scope it was created.
_OWNER = "_keras_strom_strategy"

_THRESHOLD = AdaptiveThreshold()

# The options of sharing updates, which another method has no use for.
_OF_UPDATES = frozenset(
    (
        *("threshold", "residual_clipping", "shake_up", "update_scale", "warmup_steps"),
        *("momentum_masking", "update_clipping", "local_steps", "local_apply", "max_staleness"),
        *("always_encode", "encoding_debug_mode"),
    )
)


class StromStrategy(tf.distribute.Strategy):  # type: ignore[misc]
    """A `tf.distribute` strategy whose workers share updates, or train beside a joint model.

    Build and compile the model in its scope and call `fit`; where the process belongs to a job
    (`keras-strom run`, `keras_strom.spark.run`) the model is trained by all its workers, else by
    this one alone, as plain Keras would.

    Args:
        method: how workers train together: None = they share compressed updates, which the options
            from `threshold` to `always_encode` and `encoding_debug_mode` are for; `AllReduce()` =
            exact mode, in which every step takes the mean of all gradients; `MPCA()`, `SparkNet()`
            or `EASGD()` = each trains a model of its own, and the master makes a joint model of
            them all. Those options are refused then. A lone worker trains as plain Keras.
        threshold: `AdaptiveThreshold`, `FixedThreshold` or another `ThresholdAlgorithm`: one for
            the whole model, or with `per_variable=True` one for each variable. None = exact mode,
            `method=AllReduce()`: nothing is withheld, and every step waits for all workers.
        residual_clipping: a `ResidualClipping`, or None for none: a threshold that adapts leaves
            nothing to clip, and then what one worker learns is plain Keras's.
        shake_up: a `ShakeUp`, or None for none.
        update_scale: how K workers' updates add up: "auto" (the sum of up to 16, beyond them 16
            times the mean), "sum", "sqrt" (sum / sqrt K), "mean", or a number.
        warmup_steps: steps over which the scale grows from 1/K of it; 0 = none. None = none with
            `local_apply="full"`, which learns fastest so, and 500 with "encoded", where the sum of
            early updates can diverge.
        momentum_masking: whether the optimizer forgets the momentum of elements that were sent, so
            that old gradients do not push them once more (Deep Gradient Compression, section 3.2).
            "auto" = for SGD with momentum; True = for every optimizer, which must have momentum;
            False = never.
        update_clipping: an `UpdateClipping`, or None for none.
        local_steps: H, the optimizer's steps from one message to the next. A worker trains on by
            itself in between; the message tells what has changed since the last one, others'
            arrive with it, and every epoch ends with one. An entry of it stands for the mean of
            what is sent, not for the threshold. Saves traffic where a density of a few percent is
            wanted (transformers: 8).
        local_apply: "full" = while it trains a worker's model includes its own progress that it has
            not sent yet, so it learns from all it has done; others have none of that, and epochs
            end, validate, save and finish without it. With `max_staleness` it takes memory for one
            more copy of the trained variables. "encoded" = after each step the model has what all
            workers share, and nothing else.
        max_staleness: None = asynchronous: no worker waits for another. 0 = every step waits for
            all workers and is bitwise reproducible. k >= 1 = a worker is at most k steps ahead.
        always_encode: True shares updates (with nobody) on a lone worker too, to see the effect of
            the compression; otherwise a lone worker trains uncompressed.
        jit_compile: True compiles every step with XLA, all but the sharing of its update. Leave
            `jit_compile` of `model.compile` alone then.
        encoding_debug_mode: True logs, after each epoch, percentiles of |residual| of every
            variable on the chief (where a `StromMonitor` has a `log_dir`, to TensorBoard too).
        network: a `NetworkConfig` with what this worker has otherwise than its job; None = nothing.
        devices: where variables live and steps run: "/gpu:0", or several of one kind. None = the
            GPUs that this process sees, of which several workers of a machine take one each; the
            CPU where there are none. With several devices each step is that of a
            `tf.distribute.MirroredStrategy`, of which this strategy is one then: it divides every
            batch among them, and the worker sends one message for all.

    Raises:
        InvalidOption: an option that is not understood or out of range.
        EnvironmentInvalid: Keras computes with another library than TensorFlow.

    Example:
        >>> with StromStrategy().scope():  # doctest: +SKIP
        ...     model = keras.Sequential([keras.layers.Dense(10)])
        ...     model.compile("adam", "mse")
        >>> model.fit(x, y, epochs=5)  # doctest: +SKIP
    """

    def __new__(cls: Any, *_: Any, devices: Any = None, **__: Any) -> Any:
        """A strategy that is one of TensorFlow's for as many devices, too."""
        found = local_devices(devices, ClusterEnvironment.from_environ())
        strategy = super().__new__(over_devices(cls, len(found)))
        strategy._devices = found
        return strategy

    def __init__(
        self,
        *,
        method: Method | None = None,
        threshold: ThresholdAlgorithm | None = _THRESHOLD,
        residual_clipping: ResidualClipping | None = None,
        shake_up: ShakeUp | None = None,
        update_scale: str | float = "auto",
        warmup_steps: int | None = None,
        momentum_masking: bool | str = "auto",
        update_clipping: UpdateClipping | None = None,
        local_steps: int = 1,
        local_apply: str = "full",
        max_staleness: int | None = None,
        always_encode: bool = False,
        jit_compile: bool = False,
        encoding_debug_mode: bool = False,
        network: NetworkConfig | None = None,
        devices: str | Sequence[str] | None = None,
    ) -> None:
        of_updates = {name: value for name, value in locals().items() if name in _OF_UPDATES}
        _check_backend()
        check_method("method", method)
        check_options(
            threshold=threshold,
            residual_clipping=residual_clipping,
            shake_up=shake_up,
            momentum_masking=momentum_masking,
            update_clipping=update_clipping,
            local_steps=local_steps,
            local_apply=local_apply,
            max_staleness=max_staleness,
            network=network,
            always_encode=always_encode,
            jit_compile=jit_compile,
            encoding_debug_mode=encoding_debug_mode,
        )
        without_threshold = method is None and threshold is None
        method = method_of(method, threshold)
        if threshold is None:
            threshold = of_updates["threshold"] = _THRESHOLD
        environment = ClusterEnvironment.from_environ()
        scale = UpdateScale(
            rule=update_scale,
            workers=environment.size,
            warmup_steps=warmup_of(local_apply) if warmup_steps is None else warmup_steps,
        )
        if method is not None:
            _check_beside(method, of_updates, environment.size, without_threshold=without_threshold)
        super().__init__(self._devices)
        check_compilable(jit_compile, self.num_replicas_in_sync)
        check_before_optimizer(method, jit_compile, self.num_replicas_in_sync)
        self._environment = environment
        self._compiler = XlaCompiler() if jit_compile else None
        self._unshareable: dict[int, Any] = {}
        self._trace: StepTrace | None = None  # Of the step that runs.
        self._momenta = MaskedMomenta(momentum_masking)
        self._sharing: Sharing | None = None
        if method is not None and environment.size > 1:
            job = environment.network
            check_network_beside(method, network.of_script(job) if network else job)
            pull = PullOptions(
                method=method,
                rank=environment.rank,
                workers=environment.size,
                wait_timeout=environment.join_timeout,
                compiled=jit_compile,
            )
            self._sharing = self._connect(pull, network)
        elif always_encode or environment.size > 1:
            options = StepOptions(
                threshold=threshold,
                clipping=residual_clipping,
                shake_up=shake_up,
                scale=scale,
                update_clipping=update_clipping,
                local_steps=local_steps,
                local_apply=local_apply,
                staleness=max_staleness if environment.size > 1 else None,
                wait_timeout=environment.join_timeout,
                compiled=jit_compile,
            )
            self._sharing = self._connect(options, network)
            self._sharing.debug = encoding_debug_mode
        self._reports = reports_of(environment)
        if self._reports is not None:
            if self._sharing is None:
                follow_alone(self._reports)
            else:
                self._reports.follow(self._sharing)
        watch_updates(self.extended, self._note_update)
        wrap_fit(_sharing_of)
        wrap_train_on_batch()
        if not environment.is_chief:
            silence_autologging()
        wrap_build(StromStrategy, _trains_as_plain_keras)
        model_checks.wrap_apply(_check_apply, _exchange, _penalize)

    def _connect(
        self, options: StepOptions | PullOptions, network: NetworkConfig | None
    ) -> Sharing:
        """Joins the job, where there is one."""
        global _joined
        worker = join = None
        space = FlatSpace()
        if self._environment.size > 1:
            if _joined is not None and _joined() is not None:
                raise errors.StromError(
                    f"worker {self._environment.rank} has a StromStrategy already; make one a "
                    "process and create all models in its scope"
                )
            join = functools.partial(
                _join, weakref.ref(self), self._environment, options.staleness, network
            )
            with doing(self._environment, "joining"):
                worker = join()
            _joined = weakref.ref(self)
            space.agree()  # On nothing so far.
        plan = self._environment.checkpoints
        return Sharing(
            environment=self._environment,
            space=space,
            step=self._make_step(options, space),
            worker=worker,
            sequenced=options.staleness is not None,
            epochs_meet=options.meets,
            options_text=options.text,
            join=join,
            checkpoints=None if plan is None else Checkpointing(plan),
        )

    def _make_step(self, options: StepOptions | PullOptions, space: FlatSpace) -> TrainingStep:
        """The end of every step; what it holds of the native library is freed with the strategy."""
        if isinstance(options, PullOptions):
            local = LocalModel()
            weakref.finalize(self, local.close)
            return PulledStep(options, space, local)
        replica = Replica()
        weakref.finalize(self, replica.close)
        return SharedStep(options, replica, space)

    @property
    def num_workers(self) -> int:
        """K, the workers that train together; `num_replicas_in_sync` counts local devices."""
        return self._environment.size

    def scope(self) -> contextlib.AbstractContextManager[StromStrategy]:
        """Variables created in this context belong to the strategy; trainable ones are shared."""
        creator = tf.variable_creator_scope(self._register_created)
        return scope_of(self, super().scope(), creator)

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        options: Any = None,
    ) -> Any:
        """Runs one step and shares what it changed in the variables; returns what `fn` returns.

        Raises:
            UnsupportedModel: the model cannot be shared; the message says why and what to do.
            UnsupportedOptimizer: the same for the optimizer.
        """
        sharing = self._sharing
        if self._trace is not None:  # Within another run.
            return super().run(fn, args, kwargs, options)
        model = getattr(fn, "__self__", None)
        if self._compiler is not None:
            model_checks.check_not_eager(model)
            fn = self._compiler(fn)
        if sharing is None:
            return super().run(fn, args, kwargs, options)
        model_checks.check_compiled(model)
        # Local steps that share nothing leave to a later one what they change, rows and all.
        by_rows = sharing.step.by_rows
        trace = self._trace = StepTrace(sharing.space, self._momenta, by_rows=by_rows)
        try:
            result = super().run(fn, args, kwargs, options)
        finally:
            self._trace = None
        _check_touched(sharing, trace)
        # A function that was traced before touches nothing from Python when it is called again, so
        # the op is there as soon as some variable is sent; it does nothing where none of these has
        # changed.
        if any(map(sharing.space.is_sent, sharing.space.participants)):
            if sharing.worker is None:
                sharing.step.extend(sharing.space.size)
            sharing.step.close(trace)
        return result

    @property
    def last_report(self) -> TrainingReport | None:
        """What the latest finished training did; None before, and where nothing is shared."""
        return None if self._sharing is None else self._sharing.last_report

    @property
    def joint_cycles(self) -> int:
        """Cycles that the joint model of `method` has finished so far; 0 where there is none.

        Set on every worker before `fit`, where training goes on from a backup of the program's
        own, it has the method's schedules go on there. Checkpoints of `keras-strom run` keep it.

        Raises:
            InvalidOption: what it is set to is no whole number, or a negative one.
        """
        return 0 if self._sharing is None else self._sharing.step.cycles

    @joint_cycles.setter
    def joint_cycles(self, cycles: int) -> None:
        if self._sharing is None:
            check_cycles("joint_cycles", cycles)
        else:
            self._sharing.step.begin_after(cycles)

    def counters(self) -> NodeCounters | None:
        """What this worker's connection has counted so far, at any time; None for a lone worker."""
        worker = None if self._sharing is None else self._sharing.worker
        return None if worker is None else worker.counters()

    def begin(self, *models: Any) -> None:
        """Starts a custom training loop: every worker takes the chief's values.

        `fit` does this by itself. Build the models before; all workers must call it.

        Args:
            *models: the Keras models that the loop trains. Their non-trainable state
                (BatchNormalization) is averaged at the end, and steps may train now one, now
                another of them.
        """
        sharing = self._sharing
        if sharing is None:
            return
        refuse_within_another(sharing)
        sharing.join_again()
        for model in models:
            model_checks.adopt_optimizer(getattr(model, "optimizer", None), self)
        generation = Generation(sharing, models)
        generation.start()
        if generation.late or generation.ended:
            raise errors.UnsupportedModel(
                f"worker {sharing.environment.rank} was started again while the others are in, or "
                "past, this custom training loop, and cannot know how far; train with fit, which a "
                "new worker can join, or with max_failures=0"
            )
        sharing.step.show_own()
        sharing.generation = generation
        if self._reports is not None:
            self._reports.begin_fit(None, None)
            self._reports.enter("training")

    def synchronize(self) -> TrainingReport | None:
        """Ends a custom training loop: afterwards all workers hold the same bits.

        Waits until every worker has called it.

        Returns:
            What the training did; None where nothing is shared.
        """
        sharing = self._sharing
        if sharing is None:
            return None
        if sharing.generation is None:
            raise errors.StromError("no training to end: call strategy.begin() before the loop")
        generation = sharing.generation
        with doing(self._environment, "ending"):
            generation.finish()
            sharing.last_report = generation.report()
            generation.close()
        if self._reports is not None:
            self._reports.enter("between fits")
        sharing.generation = None
        generation.tell()
        return sharing.last_report

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """For custom loops: this worker's elements of a dataset that all workers have.

        Worker r of K takes every K-th one (usually a batch) from the r-th on, as `fit` does;
        AutoShardPolicy.OFF leaves it all. They come as a `tf.data` dataset, with
        a part for each of several devices. TensorFlow's own iterator for devices, which may call
        what was freed, is used with `options` alone.
        """
        # Keras calls this too: in fit, which has divided the data before, and for data that
        # evaluate and predict take whole.
        by_keras = sys._getframe(1).f_globals["__name__"].startswith("keras.")
        if not by_keras:
            dataset = shard_dataset(dataset, self._environment.rank, self.num_workers)
        dataset = without_autotune(dataset)
        distribute: Callable[[Any], Any]
        if options is not None:
            distribute = functools.partial(super().experimental_distribute_dataset, options=options)
        elif by_keras:
            distribute = functools.partial(divided, strategy=self)
        else:
            return keep_whole(divided(dataset, self))
        if by_keras and self._sharing is not None and self._environment.goes_on:
            data = self._sharing.resumable(dataset, distribute)
            data.read_by(sys._getframe(1).f_locals["self"])
            return data
        return distribute(dataset)

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[tf.distribute.InputContext], Any], options: Any = None
    ) -> Any:
        """Calls `dataset_fn` with this worker's place among all, so that it can take its part.

        What it gives comes as from `experimental_distribute_dataset`.
        """
        context = tf.distribute.InputContext(
            num_input_pipelines=self.num_workers,
            input_pipeline_id=self._environment.rank,
            num_replicas_in_sync=self.num_replicas_in_sync,
        )
        if options is None:
            return keep_whole(grouped(without_autotune(dataset_fn(context)), self))
        return super().distribute_datasets_from_function(
            lambda _: without_autotune(dataset_fn(context)), options
        )

    def _register_created(self, create: Callable[..., Any], **arguments: Any) -> Any:
        variable = create(**arguments)
        if self._sharing is not None and variable.trainable and variable.dtype.is_floating:
            if variable.dtype == tf.float32:
                self._sharing.space.add(variable)
            else:
                self._unshareable[id(variable)] = variable
        setattr(variable, _OWNER, weakref.ref(self))
        return variable

    def _note_update(self, variable: Any, gradient: Any) -> None:
        """An optimizer is about to change `variable`."""
        if self._trace is None:
            return
        if id(variable) in self._unshareable:
            model_checks.check_dtype(variable)
        self._trace.note_update(variable, gradient)

    def _check_optimizer_step(self, optimizer: Any) -> None:
        """An optimizer is about to change variables of this strategy."""
        model_checks.adopt_optimizer(optimizer, self)
        model_checks.check_accumulation(optimizer, self.num_replicas_in_sync)
        sharing = self._sharing
        if sharing is None and not (
            self.num_replicas_in_sync > 1 and tf.distribute.in_cross_replica_context()
        ):
            return
        # A custom loop begins with the chief's weights, but each worker's own optimizer state.
        one_state = sharing is not None and sharing.in_fit and sharing.step.has_one_state
        model_checks.check_optimizer(optimizer, has_one_state=one_state)
        if self._trace is None:
            raise errors.UnsupportedModel(
                "the optimizer was applied outside strategy.run, where its update would not be "
                "shared; call strategy.run(step, args=(batch,)) with the optimizer step inside"
            )
        self._trace.optimizers.append(optimizer)


def _join(
    strategy: weakref.ref[StromStrategy],
    environment: ClusterEnvironment,
    staleness: int | None,
    network: NetworkConfig | None,
) -> TrainingWorker:
    """A connection to the master that is closed with the strategy."""
    worker = TrainingWorker.from_environment(environment, max_staleness=staleness, network=network)
    drain_request.listen(environment)
    weakref.finalize(strategy(), say_goodbye, worker)
    return worker


def _check_backend() -> None:
    """Keras computes with TensorFlow, whose variables and steps are what is shared.

    Raises:
        EnvironmentInvalid: it computes with another library.
    """
    if (backend := keras.config.backend()) != "tensorflow":
        raise errors.EnvironmentInvalid(
            f"Keras runs on {backend}, and StromStrategy needs TensorFlow below it: set "
            "KERAS_BACKEND=tensorflow before Keras is imported, on all workers, or remove "
            '"backend" from ~/.keras/keras.json'
        )


def _check_beside(
    method: Method, of_updates: Mapping[str, object], workers: int, *, without_threshold: bool
) -> None:
    """Refuses options that a method has no use for, and a method that cannot train so many."""
    parameters = inspect.signature(StromStrategy.__init__).parameters
    defaults = {name: parameters[name].default for name in of_updates}
    refuse_beside_method(method, of_updates, defaults, without_threshold=without_threshold)
    method.numbers(workers)


def _check_apply(optimizer: Any, variables: list[Any]) -> Callable[..., Any] | None:
    """Before every step of any Keras optimizer; what is to call it, None = nothing."""
    checked: set[StromStrategy] = set()
    for variable in variables:
        owner = getattr(variable, _OWNER, None)
        strategy = None if owner is None else owner()
        if strategy is not None:
            if strategy not in checked:
                strategy._check_optimizer_step(optimizer)
                checked.add(strategy)
            continue
        current = tf.distribute.get_strategy()
        if isinstance(current, StromStrategy) and current._sharing is not None:
            raise model_checks.created_outside(variable)
    outside = tf.distribute.in_cross_replica_context() or not tf.distribute.has_strategy()
    if len(checked) != 1 or not outside:
        return None
    # A worker on its own trains as plain Keras does, but Keras's optimizers want to be in a step.
    strategy = checked.pop()
    return strategy.run if strategy._sharing is None else None


def _exchange(optimizer: Any, gradients: list[Any], variables: list[Any]) -> list[Any]:
    """What an optimizer gets within a step: see TrainingStep.exchange."""
    step = _step_at_hand()
    return gradients if step is None else step.exchange(optimizer, gradients, variables)


def _penalize(optimizer: Any, gradients: list[Any], variables: list[Any]) -> list[Any]:
    """What an optimizer gets within a step: see TrainingStep.penalize."""
    step = _step_at_hand()
    return gradients if step is None else step.penalize(optimizer, gradients, variables)


def _step_at_hand() -> TrainingStep | None:
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, StromStrategy) or strategy._sharing is None:
        return None
    return strategy._sharing.step


def _sharing_of(model: Any) -> Sharing | None:
    strategy = model.distribute_strategy
    if isinstance(strategy, StromStrategy):
        model_checks.adopt_optimizer(getattr(model, "optimizer", None), strategy)
        return strategy._sharing
    check_open_scope()
    if _joined is not None:
        model_checks.check_in_scope(model)
    return None


def _trains_as_plain_keras(model: Any) -> bool:
    """Whether a model's steps are Keras's alone, so that they may create what they change."""
    strategy = model.distribute_strategy
    if not isinstance(strategy, StromStrategy):
        return False
    compiled = strategy._compiler is not None
    return strategy._sharing is None and not compiled and strategy.num_replicas_in_sync == 1


def _check_touched(sharing: Sharing, trace: StepTrace) -> None:
    """Refuses a step whose changes could not be shared."""
    if trace.has_created:
        raise errors.UnsupportedModel(
            "the model created variables inside strategy.run; build it before the first step: call "
            "model.build(input_shape), or the model once on a batch"
        )
    touched = trace.touched
    if not touched or sharing.worker is None:
        return
    if sharing.generation is None:
        raise outside_of_training()
    for entry in sharing.space.entries:
        if id(entry.variable) in touched and not sharing.space.is_agreed(entry.variable):
            raise errors.UnsupportedModel(
                f"{entry.variable.name!r} was created after the training had begun; create all "
                "models before fit, or train the new one in a fit of its own"
            )
