"""What one training step reports about its update: counts, thresholds, residuals.

The ops return a float64 vector (custom_ops/tf/variables.cc, OutputStatistics); this module gives
its elements their names, for threshold algorithms inside the graph and for reports outside it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from keras_strom.sharing.rate_history import RateChange


class StepStatistics(NamedTuple):
    """One step's figures, scalars of TensorFlow or NumPy alike; all 0 before the first step.

    Attributes:
        stepped: 1 where the optimizer has changed some shared variable, else 0.
        count: entries of the message.
        elements: elements of the variables that took part.
        message_bytes: the encoded message, without packet framing.
        received: updates of others applied in this step.
        max_residual: the largest |r| that stayed behind.
        threshold: the tau that was used; of several, the least.
        sum_residual: the sum of |r| that stayed behind.
        clipped_mass: the sum of |r| that clipping removed.
        clipped_count: elements clipped.
        assigned_outside: variables that were assigned outside `strategy.run` before this step.
        staleness: the sum over `received` of how many steps this worker was ahead of the sender's
            step; 0 where it was behind.
        update_norm: the Euclidean norm of what the optimizer changed, before any limit on it; 0
            where it was not measured.
        limited_mass: what that limit took off the sum of |update|, scaled.
        shared: 1 where a message was made; 0 in a local step, whose change a later one shares.
        value: what an entry of the message stands for: the threshold, or where a message is of
            several steps the mean of what is sent; where entries differ, their mean.
        rate: where the learning rate of the step about to be shared stands; for threshold
            algorithms alone.
    """

    stepped: Any
    count: Any
    elements: Any
    message_bytes: Any
    received: Any
    max_residual: Any
    threshold: Any
    sum_residual: Any
    clipped_mass: Any
    clipped_count: Any
    assigned_outside: Any
    staleness: Any
    update_norm: Any
    limited_mass: Any
    shared: Any
    value: Any
    rate: RateChange = RateChange()


#: What a step tells of each variable where each has a threshold of its own: the columns of the op's
#: second output (custom_ops/tf/variable_thresholds.cc), named as those of all.
BY_VARIABLE = ("count", "elements", "max_residual", "threshold", "sum_residual", "value")

#: What the ops tell, in the vector's order.
TOLD = StepStatistics._fields[: StepStatistics._fields.index("rate")]

#: Length of the vector.
LENGTH = len(TOLD)
