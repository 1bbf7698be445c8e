"""Trains one Keras model on many machines: by thresholded updates, or beside a joint model.

Names are loaded when they are first used, so importing keras_strom loads neither TensorFlow nor
any native library (PEP 562).
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from keras_strom.lazy_names import lazy_names

if TYPE_CHECKING:
    from keras_strom.errors import StromError
    from keras_strom.job.drain import drain
    from keras_strom.job.environment import is_chief, local_rank, rank, size
    from keras_strom.job.network import NetworkConfig

if sys.version_info < (3, 10):  # noqa: UP036  # pip compares, an unpacked wheel does not.
    from keras_strom.errors import UnsupportedSystem

    raise UnsupportedSystem(
        f"keras-strom needs Python 3.10 or newer, and this is {sys.version.split()[0]}: make an "
        "environment with a newer one"
    )

__all__ = [
    "EASGD",
    "MPCA",
    "AdaptiveThreshold",
    "AllReduce",
    "FixedThreshold",
    "NetworkConfig",
    "PullStart",
    "ResidualClipping",
    "ShakeUp",
    "SparkNet",
    "StromError",
    "StromMonitor",
    "StromStrategy",
    "TargetDensityThreshold",
    "UpdateClipping",
    "drain",
    "is_chief",
    "local_rank",
    "on_chief",
    "rank",
    "run",
    "size",
]
__version__ = "0.1.0"

_get = lazy_names(
    __name__,
    {
        "AdaptiveThreshold": "sharing.threshold",
        "AllReduce": "method",
        "EASGD": "method",
        "FixedThreshold": "sharing.threshold",
        "MPCA": "method",
        "NetworkConfig": "job.network",
        "PullStart": "method",
        "ResidualClipping": "sharing.residual",
        "ShakeUp": "sharing.residual",
        "SparkNet": "method",
        "StromError": "errors",
        "StromMonitor": "strategy.monitor",
        "StromStrategy": "strategy.strategy",
        "TargetDensityThreshold": "sharing.threshold",
        "UpdateClipping": "sharing.update_clipping",
        "drain": "job.drain",
        "is_chief": "job.environment",
        "local_rank": "job.environment",
        "on_chief": "strategy.trackers",
        "rank": "job.environment",
        "run": "runner.functions",
        "size": "job.environment",
    },
)

# Modules that can be used as attributes without being imported by name.
_MODULES = ("codec", "errors", "ops", "relay", "spark", "tfx")


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"keras_strom.{name}")
    return _get(name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, "__version__"})
