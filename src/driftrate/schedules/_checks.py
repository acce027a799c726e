"""Checks of the constants in a configuration."""

from __future__ import annotations

from math import inf, isfinite
from numbers import Integral, Real
from typing import Any

from driftrate.errors import ConfigError


def _refuse(owner: object, name: str, value: object, want: str) -> ConfigError:
    return ConfigError(f"{type(owner).__name__}.{name} must be {want}, got {value!r}")


def number(
    owner: Any, name: str, *, low: float = -inf, high: float = inf, open_low: bool = False
) -> None:
    """Check a constant of a frozen dataclass and store it as a Python float."""
    value = getattr(owner, name)
    bound = f"{'>' if open_low else '>='} {low:g}" if low > -inf else ""
    bound += f"{' and ' if bound else ''}<= {high:g}" if high < inf else ""
    want = f"a finite number {bound}".rstrip()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _refuse(owner, name, value, want)
    real = float(value)
    if not isfinite(real) or real < low or real > high or (open_low and real == low):
        raise _refuse(owner, name, value, want)
    object.__setattr__(owner, name, real)


def integer(owner: Any, name: str, *, low: int) -> None:
    """Check an integer constant of a frozen dataclass and store it as a Python int."""
    value = getattr(owner, name)
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise _refuse(owner, name, value, f"an integer >= {low}")
    object.__setattr__(owner, name, int(value))


def choice(owner: Any, name: str, options: tuple[str, ...]) -> None:
    """Check that a constant is one of the names allowed."""
    value = getattr(owner, name)
    if value not in options:
        raise _refuse(owner, name, value, "one of " + ", ".join(map(repr, options)))
