"""Refuses options of a StromStrategy that are not understood, or make no sense together."""

from __future__ import annotations

from collections.abc import Mapping

from keras_strom import errors
from keras_strom.checks import flag, whole_number
from keras_strom.job.network import NetworkConfig
from keras_strom.method import AllReduce, Method
from keras_strom.sharing.residual import ResidualClipping, ShakeUp
from keras_strom.sharing.threshold import ThresholdAlgorithm
from keras_strom.sharing.update_clipping import UpdateClipping


def check_options(
    *,
    threshold: object,
    residual_clipping: object,
    shake_up: object,
    momentum_masking: object,
    update_clipping: object,
    local_steps: object,
    local_apply: object,
    max_staleness: object,
    network: object,
    **switches: object,
) -> None:
    """Checks those options of a StromStrategy that no other class does.

    Args:
        threshold: a threshold algorithm, or None for exact mode.
        residual_clipping: a `ResidualClipping` or None.
        shake_up: a `ShakeUp` or None, on the grid of `local_steps`.
        momentum_masking: "auto", True or False.
        update_clipping: an `UpdateClipping` or None.
        local_steps: a whole number, 1 or more.
        local_apply: "full" or "encoded".
        max_staleness: None or a whole number, 0 or more.
        network: a `NetworkConfig` or None.
        **switches: those that must be True or False.

    Raises:
        InvalidOption: the message names the option and what it may be.
    """
    is_class = isinstance(threshold, type)  # It has the methods, too.
    if threshold is not None and (is_class or not isinstance(threshold, ThresholdAlgorithm)):
        raise errors.InvalidOption(
            f"threshold={threshold!r} must be a threshold algorithm, such as FixedThreshold(1e-3), "
            "or None, which withholds nothing"
        )
    if residual_clipping is not None and not isinstance(residual_clipping, ResidualClipping):
        raise errors.InvalidOption(
            f"residual_clipping={residual_clipping!r} must be a ResidualClipping or None"
        )
    if shake_up is not None and not isinstance(shake_up, ShakeUp):
        raise errors.InvalidOption(f"shake_up={shake_up!r} must be a ShakeUp or None")
    if momentum_masking != "auto" and not isinstance(momentum_masking, bool):
        raise errors.InvalidOption(
            f"momentum_masking={momentum_masking!r} must be 'auto', True or False"
        )
    if update_clipping is not None and not isinstance(update_clipping, UpdateClipping):
        raise errors.InvalidOption(
            f"update_clipping={update_clipping!r} must be an UpdateClipping or None"
        )
    _check_grid(whole_number("local_steps", local_steps, least=1), shake_up)
    if max_staleness is not None:
        whole_number("max_staleness", max_staleness, least=0)
    if local_apply not in ("encoded", "full"):
        raise errors.InvalidOption(f"local_apply={local_apply!r} must be 'encoded' or 'full'")
    if network is not None and not isinstance(network, NetworkConfig):
        raise errors.InvalidOption(f"network={network!r} must be a NetworkConfig or None")
    for name, value in switches.items():
        flag(name, value)


def method_of(method: Method | None, threshold: ThresholdAlgorithm | None) -> Method | None:
    """How workers train together: without a threshold, by `AllReduce`.

    Raises:
        InvalidOption: there is no threshold, and another method.
    """
    if threshold is not None or isinstance(method, AllReduce):
        return method
    if method is not None:
        raise errors.InvalidOption(
            f"threshold=None is exact mode, method=AllReduce(), and not method={method!r}: leave "
            "out one of the two"
        )
    return AllReduce()


def check_network_beside(method: Method, network: NetworkConfig) -> None:
    """Refuses what a method that trains beside a joint model cannot do on a network.

    Raises:
        InvalidOption: `merging="on"`; or `on_master_loss="wait"` where a step that the loss cuts
            off would part the workers. The message names both.
    """
    if method.averages_gradients and network.waits_for_master:
        raise errors.InvalidOption(
            'on_master_loss="wait" is not for the mean of gradients: of a step that the loss cuts '
            "off some workers would have the mean and others not. Leave it out, or take "
            f"method={_of_updates(method)}"
        )
    network.refuse_merging(
        f"method={method!r} makes no updates that could be merged; leave out one of the two"
    )


def refuse_beside_method(
    method: Method,
    given: Mapping[str, object],
    defaults: Mapping[str, object],
    *,
    without_threshold: bool = False,
) -> None:
    """Refuses options of update sharing where another method trains.

    Args:
        method: what has no use for them.
        given: the options of update sharing.
        defaults: what they are where nobody gives them.
        without_threshold: the method was chosen by `threshold=None`.

    Raises:
        InvalidOption: the message names the option.
    """
    chosen = "threshold=None" if without_threshold else f"method={method!r}"
    other = "give a threshold" if without_threshold else "leave out method"
    for name, value in given.items():
        if value is not defaults[name] and value != defaults[name]:
            raise errors.InvalidOption(
                f"{name}={value!r} is an option of sharing updates and has no effect with "
                f"{chosen}: leave it out, or {other}"
            )


def check_compilable(jit_compile: bool, devices: int) -> None:
    """Refuses to compile steps over several local devices.

    Raises:
        InvalidOption: with what to do.
    """
    if jit_compile and devices > 1:
        raise errors.InvalidOption(
            f"jit_compile=True: XLA cannot compile a step over {devices} devices; use one device, "
            'such as devices="/gpu:0"'
        )


def check_before_optimizer(method: Method | None, jit_compile: bool, devices: int) -> None:
    """Refuses what a method does with gradients where no op of ours can be in the optimizer's step.

    Raises:
        InvalidOption: with what to do.
    """
    if method is None or (not jit_compile and devices == 1):
        return
    where = "XLA (jit_compile=True)" if jit_compile else f"a step over {devices} devices"
    if method.averages_gradients:
        one_device = "" if devices == 1 else ', or give the worker one device (devices="/gpu:0")'
        raise errors.InvalidOption(
            f"{where} has no place for the mean of gradients between them and the optimizer; take "
            f"method={_of_updates(method)}, which averages what optimizers have made of them"
            f"{one_device}"
        )
    if not method.pulls_by_gradient:
        return
    raise errors.InvalidOption(
        f'penalty="gradient": {where} has no place for it between gradients and optimizer; leave '
        'penalty="shift"'
    )


def _of_updates(method: Method) -> str:
    """The method that averages updates instead of gradients, as a program has it."""
    assert isinstance(method, AllReduce)
    dtype = "" if method.dtype == "float32" else f", dtype={method.dtype!r}"
    return f'AllReduce(average="updates"{dtype})'


def _check_grid(local_steps: int, shake_up: ShakeUp | None) -> None:
    """Shake-ups are messages, and not all of them."""
    if shake_up is None or local_steps == 1:
        return
    if shake_up.every % local_steps != 0 or shake_up.every < 2 * local_steps:
        raise errors.InvalidOption(
            f"shake_up: every={shake_up.every} must be 2, 3, ... times local_steps={local_steps}, "
            f"as messages leave only every {local_steps} steps; for example "
            f"every={2 * local_steps}"
        )
