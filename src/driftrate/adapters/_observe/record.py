"""What a logger sees of a step."""

from __future__ import annotations

import math
from typing import Any

from driftrate.estimate import Estimated
from driftrate.schedules.base import Schedule, State
from driftrate.schedules.wrappers import Wrapper

KEYS = ("rate", "factor", "signal", "noise", "shift")
_FIELDS = {"signal": "cross", "noise": "spread", "shift": "shift"}


def record(
    schedule: Schedule, state: State, fields: dict[str, Any], rate: Any = None, factor: Any = None
) -> dict[str, Any]:
    """Return the last step in numbers, with the same keys in every framework.

    `rate`: the learning rate that the optimizer used, that of its first group. `factor`: that over
    the rate that the optimizer came with. `signal`: the measured squared gradient (`cross`).
    `noise`: the measured noise of the gradient (`spread`). `shift`: the shift that was told or
    estimated, however deep in wrappers. What is unknown is NaN.
    """
    found = {name: fields.get(field) for name, field in _FIELDS.items()}
    while isinstance(schedule, Wrapper):
        if isinstance(schedule, Estimated) and schedule.estimator.provides == "shift":
            found["shift"] = state["estimator"][schedule.estimator.output]
        schedule, state = schedule.schedule, state["inner"]
    whole = {"rate": rate, "factor": factor, **found}
    return {name: math.nan if whole[name] is None else whole[name] for name in KEYS}
