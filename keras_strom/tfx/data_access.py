"""`FnArgs.data_accessor` on a worker that has TFX: TFX's own, with the training data shared out.

Each worker's training dataset must be its part of one whole. Where the files divide evenly, a
worker reads its own files only. Elsewhere all read everything in the same order, and `fit` gives
each its batches. Other splits are read whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from keras_strom.tfx.examples import matching_files
from keras_strom.tfx.installation import has_tfx


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """Which part of the training files a worker reads.

    Attributes:
        files: the patterns of the training split.
        rank, size: this worker, of so many.
        seed: of the shuffling where all read everything.
    """

    files: tuple[str, ...]
    rank: int
    size: int
    seed: int

    def own_files(self, files: Sequence[str]) -> list[str] | None:
        """Every `size`th of the files; None where they do not divide evenly."""
        if len(files) % self.size:
            return None
        return list(files[self.rank :: self.size])


def accessor(examples: str, share: Share) -> Any:
    """TFX's DataAccessor for artifacts; None where TFX is not installed.

    Args:
        examples: TFX's JSON of the artifacts.
        share: this worker's part of the training split.
    """
    if not has_tfx():
        return None
    from tfx.components.trainer import fn_args_utils
    from tfx.components.util import tfxio_utils
    from tfx.utils import json_utils

    artifacts = json_utils.loads(examples)
    describe = (artifacts, ["StromTrainer"])
    return fn_args_utils.DataAccessor(
        tf_dataset_factory=shared_factory(
            tfxio_utils.get_tf_dataset_factory_from_artifact(*describe), share
        ),
        record_batch_factory=tfxio_utils.get_record_batch_factory_from_artifact(*describe),
        data_view_decode_fn=tfxio_utils.get_data_view_decode_fn_from_artifact(*describe),
    )


def shared_factory(factory: Callable[..., Any], share: Share) -> Callable[..., Any]:
    """A `tf_dataset_factory` that shares out the training files and reads others whole."""

    def make(patterns: str | Sequence[str], options: Any, schema: Any = None) -> Any:
        wanted = [patterns] if isinstance(patterns, str) else list(patterns)
        if share.size == 1 or not set(wanted) <= set(share.files):
            return factory(patterns, options, schema)
        own = share.own_files(matching_files(wanted))
        if own is not None:
            from keras_strom.strategy.data_sharding import keep_whole

            return keep_whole(factory(own, options, schema))
        if options.shuffle and options.shuffle_seed is None:
            options = options._replace(shuffle_seed=share.seed)
        return factory(patterns, options, schema)

    return make
