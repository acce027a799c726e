"""Keras 3: an optimizer whose rate follows the shift, on the torch and JAX backends."""

from driftrate.adapters.keras.attach import attach
from driftrate.adapters.keras.callback import RecordRate
from driftrate.adapters.keras.optimizer import ScheduledOptimizer

__all__ = ["RecordRate", "ScheduledOptimizer", "attach"]
