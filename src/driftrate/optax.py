"""Optax: a rate that follows the shift, as a gradient transformation and as a stateful schedule.

Example:
    >>> import jax.numpy as jnp, optax
    >>> import driftrate as dr
    >>> import driftrate.optax
    >>> rate = dr.InverseTimeRate(0.5)
    >>> optimizer = driftrate.optax.attach(optax.sgd(0.1), rate)
    >>> params = jnp.array([2.0, 4.0])
    >>> state = optimizer.init(params)
    >>> updates, state = optimizer.update(params, state, params)  # the gradient of |params|²/2
    >>> print(optax.apply_updates(params, updates))
    [1. 2.]
"""

from driftrate.errors import needs

with needs("driftrate.optax", "jax"):
    from driftrate.adapters.optax.attach import attach, scale_by_rate
    from driftrate.adapters.optax.parts import from_parts, split_value_and_grad
    from driftrate.adapters.optax.state import (
        RateState,
        StatefulRateState,
        load,
        notify_shift,
        record,
    )
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
