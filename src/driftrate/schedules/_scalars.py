"""The array API's function names for plain Python floats, so that a formula is written once."""

from __future__ import annotations

from math import exp, expm1, hypot, log, sin, sqrt
from typing import Any

__all__ = [
    "exp",
    "expm1",
    "hypot",
    "log",
    "logical_not",
    "maximum",
    "minimum",
    "sin",
    "sqrt",
    "where",
]


def minimum(a: float, b: float) -> float:
    """Return the smaller of two numbers."""
    return b if b < a else a


def maximum(a: float, b: float) -> float:
    """Return the larger of two numbers."""
    return b if b > a else a


def logical_not(condition: bool) -> bool:
    """Return the opposite; `~` of a Python bool is an integer."""
    return not condition


def where(condition: bool, a: Any, b: Any) -> Any:
    """Return `a` where the condition holds, else `b`; both are already computed."""
    return a if condition else b
