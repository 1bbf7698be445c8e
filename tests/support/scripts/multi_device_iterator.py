"""Shows that TensorFlow 2.21's MultiDeviceIterator calls what was freed; nothing of keras-strom.

    python tests/support/scripts/multi_device_iterator.py [STRATEGY]

Short fits under TensorFlow's own OneDeviceStrategy (or MirroredStrategy) drop iterators in the
middle of an epoch. Most times the process dies of SIGSEGV within some minutes, in
`MultiDeviceBuffer::BackgroundThread`; where it does not, that says nothing. keras-strom goes around
that iterator.
"""

import sys

import keras
import numpy as np
import tensorflow as tf


def main(name: str = "OneDeviceStrategy") -> None:
    """Fits until the process dies or 3000 fits are over."""
    if name == "OneDeviceStrategy":
        strategy: tf.distribute.Strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    else:
        cpu = tf.config.list_physical_devices("CPU")[0]
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
        strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x, y = np.zeros((4096, 8), np.float32), np.zeros((4096, 1), np.float32)
    for fits in range(1, 3001):
        model.fit(x, y, batch_size=16, steps_per_epoch=3, verbose=0)
        if fits % 100 == 0:
            sys.stdout.write(f"{fits} fits\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
