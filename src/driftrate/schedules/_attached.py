"""What every adapter asks of the schedule that it attaches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, get_args

from driftrate.errors import ConfigError
from driftrate.schedules.base import Schedule, State
from driftrate.schedules.wrappers import Wrapper

Policy = Literal["keep", "decay", "reset"]


def check_policy(decay: float, *policies: str, where: str = "notify_shift") -> None:
    """Refuse a policy for the past that there is not, or a share of it outside [0, 1]."""
    for policy in policies:
        if policy not in get_args(Policy):
            raise ConfigError(f"{where}: keep, decay or reset, got {policy!r}")
    if not 0.0 <= decay <= 1.0:
        raise ConfigError(f"{where}: decay must be in [0, 1], got {decay!r}")


def is_factor(schedule: Schedule, plain: bool) -> bool:
    """Return whether a schedule's rate is a factor on the optimizer's own, where nobody says.

    It is under any optimizer but plain SGD, unless the schedule has a largest rate of its own.
    """
    while isinstance(schedule, Wrapper):
        schedule = schedule.schedule
    if getattr(schedule, "relative", False):
        return True
    return not plain and getattr(schedule, "max_rate", None) is None


def capped(schedule: Schedule) -> Schedule:
    """Give the innermost schedule the largest factor 1, where it has no largest rate.

    `MeasuredRate` measures how much of it can be used: the optimizer's own rate may be too high.
    """
    record: Any = schedule
    if isinstance(schedule, Wrapper):
        record = replace(record, schedule=capped(schedule.schedule))
    elif getattr(record, "max_rate", 0.0) is None:
        known = {"relative": True} if hasattr(record, "relative") else {"max_rate": 1.0}
        record = replace(record, **known)
    found: Schedule = record
    return found


def between(start: State, now: State, share: float) -> State:
    """Leave the share of every number of a state, and let the rest be where it started."""
    state: State = {}
    for key, first in start.items():
        if isinstance(first, dict):
            state[key] = between(first, now[key], share)
        else:
            value = share * now[key] + (1.0 - share) * first
            state[key] = int(value) if isinstance(first, int) else value
    return state
