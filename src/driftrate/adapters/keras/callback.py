"""A callback that keeps what the optimizer records."""

from __future__ import annotations

import keras

from driftrate.adapters.keras.optimizer import ScheduledOptimizer
from driftrate.errors import ConfigError


class RecordRate(keras.callbacks.Callback):  # type: ignore[misc]
    """Keep the rate and the signal of every batch that `fit` trains on.

    Reads a few numbers from the device each batch; on JAX that also brings the model's variables
    up to date each time.

    Example:
        >>> import keras, numpy as np
        >>> import driftrate as dr
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        >>> from driftrate.keras import attach
        >>> model.compile(attach(keras.optimizers.SGD(), dr.InverseTimeRate(0.5)), loss="mse")
        >>> rates = RecordRate()
        >>> x = np.ones((8, 1), "float32")
        >>> _ = model.fit(x, x, batch_size=4, verbose=0, callbacks=[rates])
        >>> rates.history["rate"]
        [0.5, 0.25]
    """

    def __init__(self) -> None:
        super().__init__()
        self.history: dict[str, list[float]] = {}

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Append what `ScheduledOptimizer.record` says."""
        optimizer = self.model.optimizer
        while not isinstance(optimizer, ScheduledOptimizer):
            if not hasattr(optimizer, "inner_optimizer"):
                raise ConfigError(f"RecordRate: {optimizer!r} is not attached to a schedule")
            optimizer = optimizer.inner_optimizer
        for name, value in optimizer.record.items():
            self.history.setdefault(name, []).append(value)
