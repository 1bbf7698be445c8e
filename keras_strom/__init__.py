"""Trains one Keras model on many machines by sharing thresholded optimizer updates.

Names are loaded when they are first used, so importing keras_strom loads neither TensorFlow nor
any native library (PEP 562).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_strom.errors import StromError
    from keras_strom.job.environment import is_chief, local_rank, rank, size
    from keras_strom.job.network import NetworkConfig

__all__ = [
    "AdaptiveThreshold",
    "FixedThreshold",
    "NetworkConfig",
    "ResidualClipping",
    "ShakeUp",
    "StromError",
    "StromMonitor",
    "StromStrategy",
    "TargetDensityThreshold",
    "UpdateClipping",
    "is_chief",
    "local_rank",
    "rank",
    "size",
]
__version__ = "0.1.0.dev0"

# Public name -> the module it is defined in.
_EXPORTS = {
    "AdaptiveThreshold": "keras_strom.sharing.threshold",
    "FixedThreshold": "keras_strom.sharing.threshold",
    "NetworkConfig": "keras_strom.job.network",
    "ResidualClipping": "keras_strom.sharing.residual",
    "ShakeUp": "keras_strom.sharing.residual",
    "StromError": "keras_strom.errors",
    "StromMonitor": "keras_strom.strategy.monitor",
    "StromStrategy": "keras_strom.strategy.strategy",
    "TargetDensityThreshold": "keras_strom.sharing.threshold",
    "UpdateClipping": "keras_strom.sharing.update_clipping",
    "is_chief": "keras_strom.job.environment",
    "local_rank": "keras_strom.job.environment",
    "rank": "keras_strom.job.environment",
    "size": "keras_strom.job.environment",
}

# Modules that can be used as attributes without being imported by name.
_MODULES = ("codec", "errors", "ops", "relay", "spark", "tfx")


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"keras_strom.{name}")
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, "__version__"})
