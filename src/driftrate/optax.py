"""Optax: a rate that follows the shift, as a gradient transformation and as a stateful schedule.

Use: `optimizer = driftrate.optax.attach(optax.sgd(0.1), schedule)`
"""

from driftrate.errors import needs

with needs("driftrate.optax", "jax"):
    from driftrate.adapters.optax.attach import attach, scale_by_rate
    from driftrate.adapters.optax.parts import from_parts, split_value_and_grad
    from driftrate.adapters.optax.pursuit import PursuitState, pursuit
    from driftrate.adapters.optax.state import (
        RateState,
        StatefulRateState,
        load,
        notify_shift,
        record,
    )
    from driftrate.adapters.optax.stateful import StatefulRate

__all__ = [
    "PursuitState",
    "RateState",
    "StatefulRate",
    "StatefulRateState",
    "attach",
    "from_parts",
    "load",
    "notify_shift",
    "pursuit",
    "record",
    "scale_by_rate",
    "split_value_and_grad",
]
