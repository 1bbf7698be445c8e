"""Two devices for every test of the process: importing this splits the CPU in two.

TensorFlow fixes the number at its first operation, so test modules import it at their top. With
nothing else said everything still runs on the first one.
"""

import tensorflow as tf

TWO_DEVICES = ["/cpu:0", "/cpu:1"]

_cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(
    _cpu, [tf.config.LogicalDeviceConfiguration() for _ in TWO_DEVICES]
)
