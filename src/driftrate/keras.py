"""Keras 3: an optimizer whose rate follows the shift, on the torch and JAX backends.

Example:
    >>> import keras
    >>> import driftrate as dr
    >>> import driftrate.keras
    >>> optimizer = driftrate.keras.attach(keras.optimizers.SGD(), dr.InverseTimeRate(0.5))
    >>> weight = keras.Variable([2.0, 4.0])
    >>> optimizer.apply([keras.ops.convert_to_tensor([2.0, 4.0])], [weight])
    >>> weight.value.tolist()
    [1.0, 2.0]
"""

from driftrate.errors import needs

with needs("driftrate.keras", "keras", ", and set KERAS_BACKEND to torch or jax"):
    from driftrate.adapters.keras.attach import attach
    from driftrate.adapters.keras.callback import RecordRate
    from driftrate.adapters.keras.optimizer import ScheduledOptimizer

__all__ = ["RecordRate", "ScheduledOptimizer", "attach"]
