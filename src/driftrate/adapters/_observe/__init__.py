"""What every loop must see of a gradient and say of a rate: once, for all frameworks.

An adapter brings its framework's arrays and hooks. What the fields of a `Signal` are made of, who
may tell them, what becomes of the optimizer's own rate, what is recorded, forgotten and stamped
is decided here.
"""

from driftrate.adapters._observe.choice import (
    Base,
    Loop,
    Mode,
    capped,
    check_batch_size,
    check_schedule,
    is_factor,
    is_network,
    settle,
)
from driftrate.adapters._observe.fields import Fields, Space, measure, of_pair, of_parts, reach
from driftrate.adapters._observe.past import Policy, blend, check_policy, mixed, policies
from driftrate.adapters._observe.record import KEYS, record
from driftrate.adapters._observe.stamp import STATE_VERSION, check_stamp, check_version, stamp
from driftrate.adapters._observe.told import TOLD, Told

__all__ = [
    "KEYS",
    "STATE_VERSION",
    "TOLD",
    "Base",
    "Fields",
    "Loop",
    "Mode",
    "Policy",
    "Space",
    "Told",
    "blend",
    "capped",
    "check_batch_size",
    "check_policy",
    "check_schedule",
    "check_stamp",
    "check_version",
    "is_factor",
    "is_network",
    "measure",
    "mixed",
    "of_pair",
    "of_parts",
    "policies",
    "reach",
    "record",
    "settle",
    "stamp",
]
