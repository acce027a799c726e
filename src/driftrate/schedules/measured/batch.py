"""What one batch shows, within the range of single precision."""

from __future__ import annotations

from typing import Any, NamedTuple

from driftrate.schedules import _scalars
from driftrate.schedules.base import Array, Signal, State
from driftrate.schedules.measured.tuning import LARGEST


class Batch(NamedTuple):
    """What one batch shows."""

    first: Array  # whether it is the first one
    size: Array  # B
    growth: Array  # B over that of the batch before
    square: Array  # ‖g‖²
    spread: Array  # the noise of g, where parts show it; else ‖g‖²
    cross: Array  # mean product of two parts, or None
    pairs: Array  # 2k/(k - 1) of k parts, or None: the variance of `cross` grows with it
    trail: Array  # ⟨g, h⟩, or None

    @classmethod
    def read(cls, xp: Any, mode: str, state: State, signal: Signal) -> Batch:
        """Clip a signal to the range of single precision."""
        first = state["count"] == 0
        size = LARGEST + 0.0 * state["rate"] if signal.batch_size is None else signal.batch_size
        size = at_most(xp, size, LARGEST)
        cross = pairs = None
        if mode == "sequence":
            square = clipped(xp, signal.grad_sq)
            spread = square
        else:
            cross, spread = clipped(xp, signal.cross), clipped(xp, signal.spread)
            # Of the raw ones: clipped apart, a huge negative cross and its spread would cancel.
            square = clipped(xp, signal.cross + signal.spread)
            square = xp.where(square > 0.0, square, 0.0 * spread)
            parts = 2.0 if signal.parts is None else signal.parts
            pairs = 2.0 * parts / (parts - 1.0)
        trail = None if signal.trail is None else clipped(xp, signal.trail)
        growth = size / xp.where(first, size, state["batch_size"])
        return cls(first, size, growth, square, spread, cross, pairs, trail)

    def cross_variance(self, level: Array, noise: Array) -> Array:
        """Return the variance of `cross` over N/D: 2k/(k - 1) N + 4v."""
        return self.pairs * noise + 4.0 * level


def number(xp: Any, value: Array) -> Array:
    """Return a Python float where the state is made of them: means over NumPy vectors are not."""
    return float(value) if xp is _scalars else value


def clipped(xp: Any, value: Array) -> Array:
    """Return the value within what single precision can square."""
    value = at_most(xp, value, LARGEST)
    return xp.where(value > -LARGEST, value, -LARGEST)


def at_most(xp: Any, value: Array, bound: Array) -> Array:
    """Return the smaller one; the bound where the value is NaN."""
    return xp.where(value < bound, value, bound)
