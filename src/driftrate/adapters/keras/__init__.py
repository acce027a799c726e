"""Keras 3: an optimizer whose rate follows the shift, on the torch and JAX backends."""

from driftrate.errors import MissingDependency

try:
    import keras  # noqa: F401
except ImportError as error:
    hint = "pip install 'driftrate[keras]', with KERAS_BACKEND=torch or KERAS_BACKEND=jax set"
    raise MissingDependency(f"driftrate.keras needs {error.name}: {hint}") from error

from driftrate.adapters.keras.attach import attach
from driftrate.adapters.keras.callback import RecordRate
from driftrate.adapters.keras.optimizer import ScheduledOptimizer

__all__ = ["RecordRate", "ScheduledOptimizer", "attach"]
