"""`strom=`: how a StromTrainer uses Spark, the network and the training method.

The options are plain JSON values, checked when the pipeline is made, kept under one key of the
component's `custom_config`, and read again where the component runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from keras_strom import errors
from keras_strom.checks import check_seconds, whole_number
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.job.network import NetworkConfig
from keras_strom.runner.process import check_env
from keras_strom.spark.runner.resources import UseGpu, check_use_gpu
from keras_strom.spark.runner.slots import WantedSize

CONFIG_KEY = "keras_strom"

# The options of StromStrategy that `strategy` takes; `network` is an option of its own.
STRATEGY_OPTIONS = frozenset(
    (
        "method",
        "threshold",
        "residual_clipping",
        "shake_up",
        "update_scale",
        "warmup_steps",
        "momentum_masking",
        "update_clipping",
        "local_steps",
        "local_apply",
        "max_staleness",
        "always_encode",
        "jit_compile",
        "encoding_debug_mode",
        "devices",
    )
)
# Those that are values of a class, and the classes: {"type": "FixedThreshold", "threshold": 1e-3}.
TYPED_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "method": ("AllReduce", "EASGD", "MPCA", "SparkNet"),
    "threshold": ("AdaptiveThreshold", "FixedThreshold", "TargetDensityThreshold"),
    "residual_clipping": ("ResidualClipping",),
    "shake_up": ("ShakeUp",),
    "update_clipping": ("UpdateClipping",),
}
# What such a value holds that is one of a class itself: {"type": "MPCA", "start": {"cycles": 5}}.
NESTED_OPTIONS: Mapping[str, str] = {"start": "PullStart"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StromOptions:
    """The values of `strom=`, checked when they are made.

    Attributes:
        num_proc: the number of workers, one a task slot; None = all slots.
        min_proc, max_proc: instead of `num_proc`: training starts with `min_proc` workers, takes in
            others up to `max_proc` as slots become free, and goes on when some are lost.
        workers_per_node: no more than so many workers on one machine.
        master: the URL of a Spark master, such as "spark://host:7077" or "local-cluster[2,1,1024]",
            where a session is started for the component and ended after it; None = the process's
            own session, or a new one as `spark-submit` has configured it.
        spark_config: settings of a session that is started: {"spark.executor.memory": "8g"}.
        network: options of `keras_strom.NetworkConfig`.
        strategy: options of `StromStrategy`, in whose scope `run_fn` is called. Where the option is
            a class, a mapping that names it: {"threshold": {"type": "FixedThreshold", "threshold":
            1e-3}}. None: `run_fn` makes its strategy itself.
        env: variables for the workers.
        use_gpu: True = each worker sees its Spark task's GPUs; False = none; "auto" = its task's
            where Spark gives it some, else whatever the machine has.
        start_timeout: seconds until all workers (`min_proc` of them) must have started.
        max_failures: how many workers that die with their process or machine are started again.
        drain_seconds: how long a worker that is asked to leave may take to hand over.

    Raises:
        InvalidOption: a value that is not understood or no JSON.

    Example:
        >>> StromOptions.of({"num_proc": 2, "strategy": {"max_staleness": 0}}).num_proc
        2
    """

    num_proc: int | None = None
    min_proc: int | None = None
    max_proc: int | None = None
    workers_per_node: int | None = None
    master: str | None = None
    spark_config: Mapping[str, str] = dataclasses.field(default_factory=dict)
    network: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    strategy: Mapping[str, Any] | None = dataclasses.field(default_factory=dict)
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    use_gpu: UseGpu = "auto"
    start_timeout: float = ClusterEnvironment.join_timeout
    max_failures: int = 3
    drain_seconds: float = ClusterEnvironment.drain_seconds

    def __post_init__(self) -> None:
        if self.master is not None and (not isinstance(self.master, str) or not self.master):
            raise _invalid("master", self.master, "must be the URL of a Spark master")
        for name in ("spark_config", "network", "env"):
            _check_mapping(name, getattr(self, name))
        for name, value in self.spark_config.items():
            if not isinstance(value, str):
                raise _invalid(f"spark_config[{name!r}]", value, "must be a string")
        with _of_strom():
            self.wanted_size()
            self.network_config()
            check_env(self.env)
            check_use_gpu(self.use_gpu)
            check_seconds("start_timeout", self.start_timeout)
            whole_number("max_failures", self.max_failures, least=0)
            check_seconds("drain_seconds", self.drain_seconds)
        _check_strategy(self.strategy)
        to_json("strom", dataclasses.asdict(self))

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> StromOptions:
        """The options in a mapping; unknown ones are refused."""
        _check_mapping("", options or {})
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(set(options or {}) - set(known))
        if unknown:
            raise errors.InvalidOption(
                f"strom has no option {', '.join(unknown)}; there are {', '.join(known)}"
            )
        return cls(**(options or {}))

    def wanted_size(self) -> WantedSize:
        """How many workers."""
        return WantedSize(
            num_proc=self.num_proc,
            min_proc=self.min_proc,
            max_proc=self.max_proc,
            workers_per_node=self.workers_per_node,
        )

    def network_config(self) -> NetworkConfig:
        """The relay's options."""
        return NetworkConfig.from_json(to_json("network", self.network))

    def changed(self) -> dict[str, Any]:
        """The options that differ from the defaults, as `of` takes them."""
        default = StromOptions()
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if value != getattr(default, name)}


def join_config(custom_config: Mapping[str, Any] | None, options: StromOptions) -> str:
    """The component's `custom_config` with the options in it, as JSON.

    Raises:
        InvalidOption: `custom_config` is no JSON object, or uses our key.
    """
    if custom_config is not None and not isinstance(custom_config, Mapping):
        raise errors.InvalidOption(
            f"custom_config={custom_config!r} must be a mapping of JSON values"
        )
    if CONFIG_KEY in (custom_config or {}):
        raise errors.InvalidOption(
            f"custom_config[{CONFIG_KEY!r}] is where strom= is kept; give the options there"
        )
    whole = {**(custom_config or {}), CONFIG_KEY: options.changed()}
    return to_json("custom_config", whole)


def split_config(text: str | None) -> tuple[dict[str, Any] | None, StromOptions]:
    """The user's `custom_config` (None: there is none) and the options in its JSON.

    Raises:
        InvalidOption: the text is no JSON object, or holds options that are not understood.
    """
    try:
        whole = json.loads(text or "{}")
    except ValueError as error:
        raise errors.InvalidOption(f"custom_config={text!r} is no JSON: {error}") from error
    if not isinstance(whole, dict):
        raise errors.InvalidOption(f"custom_config={text!r} is no JSON object")
    options = StromOptions.of(whole.pop(CONFIG_KEY, {}))
    return whole or None, options


def read_split_args(name: str, text: str) -> tuple[list[str], int | None]:
    """The splits and the number of steps in the JSON of `train_args` or `eval_args`.

    Returns:
        The names, perhaps none, and the steps; None = not limited.

    Raises:
        InvalidOption: the text is something else; the message begins with `name`.
    """
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict) or set(values) - {"splits", "num_steps"}:
        raise errors.InvalidOption(
            f'{name}={text} must be a mapping such as {{"splits": ["train"], "num_steps": 100}}'
        )
    splits, steps = values.get("splits", []), values.get("num_steps", 0)
    if not isinstance(splits, list) or not all(isinstance(split, str) for split in splits):
        raise errors.InvalidOption(f"{name}: splits={splits!r} must be a list of names")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise errors.InvalidOption(f"{name}: num_steps={steps!r} must be 0 (no limit) or more")
    return splits, steps or None


def to_json(name: str, value: Any) -> str:
    """The JSON of plain values.

    Raises:
        InvalidOption: something in it is no JSON; the message begins with `name`.
    """
    try:
        return json.dumps(value, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise errors.InvalidOption(
            f"{name} must hold plain JSON values (numbers, strings, lists, mappings): {error}"
        ) from error


@contextlib.contextmanager
def _of_strom() -> Iterator[None]:
    """Says whose option it is that a check which others use as well has refused."""
    try:
        yield
    except errors.InvalidOption as error:
        raise errors.InvalidOption(f"strom: {error}") from None


def _check_strategy(strategy: Mapping[str, Any] | None) -> None:
    if strategy is None:
        return
    _check_mapping("strategy", strategy)
    unknown = sorted(set(strategy) - STRATEGY_OPTIONS)
    if unknown:
        raise errors.InvalidOption(
            f"strom['strategy'] has no option {', '.join(unknown)}; StromStrategy has "
            f"{', '.join(sorted(STRATEGY_OPTIONS))}"
        )
    for name, types in TYPED_OPTIONS.items():
        value = strategy.get(name)
        if value is None:
            continue
        if not isinstance(value, Mapping) or value.get("type") not in types:
            example = f'{{"type": "{types[0]}", ...}}'
            raise _invalid(
                f"strategy[{name!r}]",
                value,
                f"must be a mapping such as {example}; types are {', '.join(types)}",
            )


def _check_mapping(name: str, value: object) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _invalid(name, value, "must be a mapping with names as its keys")


def _invalid(name: str, value: object, what: str) -> errors.InvalidOption:
    place = f"strom[{name!r}]" if name.isidentifier() else f"strom: {name}" if name else "strom"
    return errors.InvalidOption(f"{place}={value!r} {what}")
