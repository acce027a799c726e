"""Optax: a rate that follows the shift, as a gradient transformation and as a stateful schedule."""

from driftrate.adapters.optax.attach import attach, scale_by_rate
from driftrate.adapters.optax.parts import from_parts, split_value_and_grad
from driftrate.adapters.optax.state import RateState, StatefulRateState, load, notify_shift, record
from driftrate.adapters.optax.stateful import StatefulRate

__all__ = [
    "RateState",
    "StatefulRate",
    "StatefulRateState",
    "attach",
    "from_parts",
    "load",
    "notify_shift",
    "record",
    "scale_by_rate",
    "split_value_and_grad",
]
