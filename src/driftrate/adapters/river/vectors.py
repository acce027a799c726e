"""Arithmetic on what River has for gradients: arrays, dictionaries of numbers or of arrays."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
from river.utils import VectorDict

from driftrate.schedules.base import TRAIL


def as_dict(vector: Any) -> dict[Hashable, Any]:
    """Return a dictionary of the coordinates by name."""
    return vector.to_dict() if isinstance(vector, VectorDict) else dict(vector)


def copied(vector: Any) -> Any:
    """Return our own copy: an array, a `VectorDict` of numbers, or a dictionary of arrays."""
    if isinstance(vector, np.ndarray):
        return vector.copy()
    named = as_dict(vector)
    # River's models have numbers for all features, or vectors for all.
    if isinstance(next(iter(named.values()), 0.0), np.ndarray):
        return {key: np.array(value) for key, value in named.items()}
    return VectorDict(dict(named))


def dot(a: Any, b: Any) -> float:
    """Return ⟨a, b⟩; a coordinate that one of them lacks is 0."""
    if isinstance(a, dict):
        return sum(float(np.vdot(one, b[key])) for key, one in a.items() if key in b)
    return float(np.vdot(a, b) if isinstance(a, np.ndarray) else a @ b)


def minus(a: Any, b: Any) -> Any:
    """Return a - b; a coordinate that one of them lacks is 0."""
    if isinstance(a, dict):
        return {key: a.get(key, 0.0) - b.get(key, 0.0) for key in a | b}
    return a - b


def lengthened(trail: Any, gradient: Any) -> Any:
    """Return 0.9 h + g; a coordinate that one of them lacks is 0."""
    if isinstance(trail, dict):
        both = trail | gradient
        return {key: TRAIL * trail.get(key, 0.0) + gradient.get(key, 0.0) for key in both}
    return TRAIL * trail + gradient


def size(vector: Any) -> int:
    """Return how many coordinates it has."""
    if isinstance(vector, np.ndarray):
        return vector.size
    return sum(int(np.size(one)) for one in as_dict(vector).values())
