"""Keras 3: an optimizer whose rate follows the shift, on the torch and JAX backends.

Use: `model.compile(driftrate.keras.attach(keras.optimizers.SGD(), schedule), loss="mse")`
"""

from collections.abc import Iterator
from contextlib import contextmanager

from driftrate.errors import MissingDependency, needs


@contextmanager
def _backed() -> Iterator[None]:
    """Say which backend Keras looked for in vain: its own default is one that we cannot use."""
    try:
        yield
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] == "keras":
            raise
        text = (
            f"Keras asks for the backend {error.name}, which is not installed: set"
            " KERAS_BACKEND=jax before Keras is imported (pip install 'driftrate[keras]' brings"
            " JAX), or KERAS_BACKEND=torch"
        )
        raise MissingDependency(text) from error


with needs("driftrate.keras", "keras", ", and set KERAS_BACKEND=jax"), _backed():
    from driftrate.adapters.keras.attach import attach
    from driftrate.adapters.keras.callback import RecordRate
    from driftrate.adapters.keras.optimizer import ScheduledOptimizer
    from driftrate.adapters.keras.pursuit import Pursuit

__all__ = ["Pursuit", "RecordRate", "ScheduledOptimizer", "attach"]
