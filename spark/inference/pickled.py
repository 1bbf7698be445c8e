"""Pickled parts of saved stages, by which version of the package they may have been written."""

from __future__ import annotations

import io
import pickle
from typing import Any

from keras_strom import errors

#: Where the classes of a module are now, by where they were when a stage was saved.
_MOVED = {
    "keras_strom.network": "keras_strom.job.network",
    "keras_strom.residual": "keras_strom.sharing.residual",
    "keras_strom.threshold": "keras_strom.sharing.threshold",
    "keras_strom.update_clipping": "keras_strom.sharing.update_clipping",
    "keras_strom.spark.averaging": "keras_strom.spark.training.averaging",
    "keras_strom.spark.columns": "keras_strom.spark.data.columns",
    "keras_strom.spark.method": "keras_strom.spark.training.method",
    "keras_strom.spark.outputs": "keras_strom.spark.inference.outputs",
    "keras_strom.spark.serialization": "keras_strom.spark.inference.serialization",
    "keras_strom.spark.sharing": "keras_strom.spark.training.gradient_sharing",
    "keras_strom.spark.store": "keras_strom.spark.data.store",
    "keras_strom.spark.tensors": "keras_strom.spark.data.tensors",
}


def loads(pickled: bytes) -> Any:
    """What was pickled, by this version or an earlier one.

    Raises:
        UnsupportedModel: it names a class of keras-strom that this version does not have.
    """
    return _Unpickler(io.BytesIO(pickled)).load()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return super().find_class(_MOVED.get(module, module), name)
        except (ImportError, AttributeError) as error:
            if module.partition(".")[0] != "keras_strom":
                raise
            from keras_strom import __version__

            raise errors.UnsupportedModel(
                f"it was saved by another version of keras-strom, which had {module}.{name}; this "
                f"is {__version__}, which has not: load it with the version that has saved it, "
                "and save its Keras model"
            ) from error
