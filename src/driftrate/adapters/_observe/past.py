"""What becomes of the past when a loop says that the data have shifted."""

from __future__ import annotations

from typing import Any, Literal, get_args

from driftrate.errors import ConfigError
from driftrate.schedules.base import State, map_state

Policy = Literal["keep", "decay", "reset"]


def check_policy(decay: float, *policies: str, where: str = "notify_shift") -> None:
    """Refuse a policy for the past that there is not, or a share of it outside [0, 1]."""
    for policy in policies:
        if policy not in get_args(Policy):
            raise ConfigError(f"{where}: policy must be keep, decay or reset, got {policy!r}")
    if not 0.0 <= decay <= 1.0:
        raise ConfigError(f"{where}: decay must be in [0, 1], got {decay!r}")


def policies(policy: str, moments: str | None, decay: float) -> tuple[float, float]:
    """Return what is left of the schedule's state and of the optimizer's moments.

    Of each 1 for "keep", `decay` for "decay", 0 for "reset"; `moments` None is what `policy` says.
    """
    chosen = policy if moments is None else moments
    check_policy(decay, policy, chosen)
    share = {"keep": 1.0, "decay": decay, "reset": 0.0}
    return share[policy], share[chosen]


def blend(state: State, start: State, share: float) -> State:
    """Return share·state + (1 - share)·start, leaf by leaf; counters are rounded down."""
    return map_state(lambda now, first: mixed(now, first, share), state, start)


def mixed(now: Any, first: Any, share: float) -> Any:
    """Return share·now + (1 - share)·first, of the type of `now`."""
    if share == 1.0:
        return now
    if share == 0.0:
        return first  # not a product: NaN times 0 would stay
    value = now * share + first * (1.0 - share)
    if hasattr(now, "dtype"):
        return value.to(now.dtype) if hasattr(value, "to") else value.astype(now.dtype)
    return type(now)(value)
