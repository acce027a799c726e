"""A schedule as Optax's own kind of schedule with a state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from driftrate.adapters._observe import check_schedule
from driftrate.adapters.optax.parts import from_parts
from driftrate.adapters.optax.rate import given, require
from driftrate.adapters.optax.state import StatefulRateState, check_state, stamped
from driftrate.schedules.base import Array, Schedule


@dataclass(frozen=True)
class StatefulRate:
    """A schedule as Optax's `StatefulSchedule`, for `optax.inject_hyperparams`.

    There the rate is a hyperparameter like any other; the signal comes as an extra argument,
    `update(grads, state, params, signal=dr.Signal(...))` or `parts=` as in `attach`. Optax shows a
    stateful schedule no gradients, so the sequence of gradients cannot be measured here.

    Args:
        schedule: Any schedule of driftrate.
        dtype: The precision of state and rate.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> import driftrate as dr
        >>> rate = StatefulRate(dr.ConvexRate(smoothness=2.0, noise_std=1.0, diameter=1.0))
        >>> optimizer = optax.inject_hyperparams(optax.adam)(learning_rate=rate)
        >>> params = jnp.ones(2)
        >>> state = optimizer.init(params)
        >>> signal = dr.Signal(batch_size=16, shift=0.1)
        >>> _, state = optimizer.update(params, state, params, signal=signal)
        >>> bool(state.hyperparams["learning_rate"] > 0)
        True
    """

    schedule: Schedule
    dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        check_schedule(self.schedule)

    def init(self) -> StatefulRateState:
        """Return the initial state."""
        like = jnp.zeros((), self.dtype)
        return StatefulRateState(stamped(self.schedule), self.schedule.init(like=like))

    def update(self, state: StatefulRateState, **extra: Any) -> StatefulRateState:
        """Return the state after a step; of the extra arguments `signal` and `parts` are read."""
        return self._step(state, extra)[1]

    def __call__(self, state: StatefulRateState, **extra: Any) -> Array:
        """Return the rate of this step; without `signal` or `parts`, as at the start, the last."""
        check_state(self.schedule, state, StatefulRateState)
        if self.schedule.signals and not extra.keys() & {"signal", "parts"}:
            return state.schedule["rate"]
        return self._step(state, extra)[0]

    def _step(self, state: Any, extra: dict[str, Any]) -> tuple[Array, StatefulRateState]:
        check_state(self.schedule, state, StatefulRateState)
        parts = extra.get("parts")
        fields = {} if parts is None else given(from_parts(parts)[1])
        mode = "given" if parts is None else "parts"
        whole = require(self.schedule, fields | given(extra.get("signal")), mode)
        rate, after = self.schedule.update(state.schedule, whole)
        return rate, StatefulRateState(state.stamp, after)
