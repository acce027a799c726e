"""Checks of the arguments of this package's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from driftrate.errors import ConfigError

Array = NDArray[np.float64]
# A function of time, or a constant.
OfTime = Callable[[float], Any] | ArrayLike


def array(
    name: str, value: ArrayLike, *, low: float = -np.inf, open_low: bool = False, ndim: int = 0
) -> Array:
    """Return the value as an array of finite floats, none below `low`, of at least `ndim` axes."""
    try:
        out = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} must be numbers, got {value!r}") from None
    bad = ~np.isfinite(out) | (out < low) | ((out == low) & open_low)
    if bad.any():
        bound = f" {'>' if open_low else '>='} {low:g}" if low > -np.inf else ""
        raise ConfigError(f"{name} must be finite numbers{bound}, got {out[bad].flat[0]}")
    if out.ndim < ndim:
        raise ConfigError(f"{name} must have at least {ndim} axes, got shape {out.shape}")
    return out


def number(name: str, value: float, *, low: float = -np.inf, open_low: bool = False) -> float:
    """Return the value as one finite Python float, not below `low`."""
    out = array(name, value, low=low, open_low=open_low)
    if out.ndim:
        raise ConfigError(f"{name} must be one number, got shape {out.shape}")
    return float(out)


def of_time(value: OfTime) -> Callable[[float], Any]:
    """Return a function of time; a value becomes a constant function."""
    return value if callable(value) else lambda _: value
