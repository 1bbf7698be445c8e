"""`StromStrategy`, and what Keras's `fit` becomes under it."""

import sys

from keras_strom._native.built_for import look_at_tensorflow
from keras_strom._native.library import DIRECTORY

# Before any module here imports TensorFlow: two packages that are mixed up may end the process.
look_at_tensorflow(DIRECTORY / "build.json", sys.path)
