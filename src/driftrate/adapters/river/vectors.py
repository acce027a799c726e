"""Arithmetic on what River has for gradients: arrays, dictionaries of numbers or of arrays."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from river.utils import VectorDict

from driftrate.schedules.base import TRAIL

Numbers = NDArray[np.float64]


class Row:
    """Named numbers in one array: rows of a stream mostly have the same names in the same order.

    Args:
        names: The coordinates' names.
        values: Their numbers, in that order.
    """

    __slots__ = ("_places", "names", "values")

    def __init__(self, names: list[Hashable], values: Numbers) -> None:
        self.names = names
        self.values = values
        self._places: dict[Hashable, int] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Row, (self.names, self.values)

    @property
    def places(self) -> dict[Hashable, int]:
        """Where each name stands."""
        if self._places is None:
            self._places = {name: place for place, name in enumerate(self.names)}
        return self._places

    def is_named_as(self, other: Row) -> bool:
        """Whether two rows have the same names in the same order."""
        return self.names is other.names or self.names == other.names

    def longer(self, names: list[Hashable]) -> Row:
        """Return the row with these names too, behind its own, their numbers 0."""
        places, new = self.places, [name for name in names if name not in self.places]
        if not new:
            return self
        row = Row(self.names + new, np.concatenate([self.values, np.zeros(len(new))]))
        row._places = places | {name: len(places) + place for place, name in enumerate(new)}
        return row

    def like(self, values: Numbers) -> Row:
        """Return other numbers of the same names."""
        row = Row(self.names, values)
        row._places = self._places
        return row


def as_dict(vector: Any) -> dict[Hashable, Any]:
    """Return a dictionary of the coordinates by name."""
    return vector.to_dict() if isinstance(vector, VectorDict) else dict(vector)


def copied(vector: Any) -> Any:
    """Return our own copy: an array, a `Row` of numbers, or a dictionary of arrays."""
    if isinstance(vector, np.ndarray):
        return vector.copy()
    named = as_dict(vector)
    # River's models have numbers for all features, or vectors for all.
    if isinstance(next(iter(named.values()), 0.0), np.ndarray):
        return {key: np.array(value) for key, value in named.items()}
    return Row([*named], np.fromiter(named.values(), float, len(named)))


def dot(a: Any, b: Any) -> float:
    """Return ⟨a, b⟩; a coordinate that one of them lacks is 0."""
    if isinstance(a, dict):
        return sum(float(np.vdot(one, b[key])) for key, one in a.items() if key in b)
    if isinstance(a, Row):
        if a.is_named_as(b):
            return float(a.values @ b.values)
        both = [(place, b.places[name]) for place, name in enumerate(a.names) if name in b.places]
        ours, theirs = [one for one, _ in both], [other for _, other in both]
        return float(a.values[ours] @ b.values[theirs])
    return float(np.vdot(a, b))


def minus(a: Any, b: Any) -> Any:
    """Return a - b; a coordinate that one of them lacks is 0."""
    if isinstance(a, dict):
        return {key: a.get(key, 0.0) - b.get(key, 0.0) for key in a | b}
    if isinstance(a, Row):
        return _sum(b.like(-b.values), a)
    return a - b


def lengthened(trail: Any, gradient: Any) -> Any:
    """Return 0.9 h + g; a coordinate that one of them lacks is 0."""
    if isinstance(trail, dict):
        both = trail | gradient
        return {key: TRAIL * trail.get(key, 0.0) + gradient.get(key, 0.0) for key in both}
    if isinstance(trail, Row):
        return _sum(trail.like(TRAIL * trail.values), gradient)
    return TRAIL * trail + gradient


def size(vector: Any) -> int:
    """Return how many coordinates it has."""
    if isinstance(vector, np.ndarray):
        return vector.size
    if isinstance(vector, Row):
        return len(vector.names)
    return sum(int(np.size(one)) for one in vector.values())


def _sum(a: Row, b: Row) -> Row:
    """Return a + b; the names of a come first, so that a sum of many rows keeps their order."""
    if a.is_named_as(b):
        return a.like(a.values + b.values)
    whole = a.longer(b.names)
    places = [whole.places[name] for name in b.names]
    values = whole.values.copy()
    values[places] += b.values
    return whole.like(values)
