"""Keras 3: an optimizer whose rate follows the shift, on the torch and JAX backends.

Use: `model.compile(driftrate.keras.attach(keras.optimizers.SGD(), schedule), loss="mse")`
"""

from driftrate.errors import needs

with needs("driftrate.keras", "keras", ", and set KERAS_BACKEND to torch or jax"):
    from driftrate.adapters.keras.attach import attach
    from driftrate.adapters.keras.callback import RecordRate
    from driftrate.adapters.keras.optimizer import ScheduledOptimizer
    from driftrate.adapters.keras.pursuit import Pursuit

__all__ = ["Pursuit", "RecordRate", "ScheduledOptimizer", "attach"]
