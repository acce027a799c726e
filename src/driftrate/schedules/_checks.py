"""Checks of the constants in a configuration."""

from __future__ import annotations

from math import inf, isfinite, nan
from numbers import Integral, Real
from typing import Any

from driftrate.errors import ConfigError


def refuse(owner: object, name: str, value: object, want: str) -> ConfigError:
    """Return the error that says what a constant must be."""
    return ConfigError(f"{type(owner).__name__}.{name} must be {want}, got {value!r}")


def number(
    owner: Any, *names: str, low: float = -inf, high: float = inf, open_low: bool = False
) -> None:
    """Check constants of a frozen dataclass and store them as Python floats."""
    for name in names:
        value = getattr(owner, name)
        real = nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
        if not isfinite(real) or real < low or real > high or (open_low and real == low):
            bound = f"{'>' if open_low else '>='} {low:g}" if low > -inf else ""
            bound += f"{' and ' if bound else ''}<= {high:g}" if high < inf else ""
            raise refuse(owner, name, value, f"a finite number {bound}".rstrip())
        object.__setattr__(owner, name, real)


def positive(owner: Any, *names: str) -> None:
    """Check constants of a frozen dataclass that must be > 0, as `number` does."""
    number(owner, *names, low=0.0, open_low=True)


def integer(owner: Any, *names: str, low: int) -> None:
    """Check integer constants of a frozen dataclass and store them as Python ints."""
    for name in names:
        value = count(f"{type(owner).__name__}.{name}", getattr(owner, name), low=low)
        object.__setattr__(owner, name, value)


def count(name: str, value: int, *, low: int = 1) -> int:
    """Return an argument of a function as a Python int, not below `low`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise ConfigError(f"{name} must be an integer >= {low}, got {value!r}")
    return int(value)


def choice(owner: Any, name: str, options: tuple[str, ...]) -> None:
    """Check that a constant is one of the names allowed."""
    value = getattr(owner, name)
    if value not in options:
        raise refuse(owner, name, value, "one of " + ", ".join(map(repr, options)))
