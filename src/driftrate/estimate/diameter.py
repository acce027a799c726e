"""The size of the region that the weights live in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from driftrate.estimate._tracker import Tracker
from driftrate.schedules import _checks
from driftrate.schedules.base import Array, State


@dataclass(frozen=True)
class RunningDiameter(Tracker):
    r"""A running bound on the diameter of the region that the weights have visited.

    All weights so far lie in the ball around the first ones that reaches to the farthest,

        D̂_t = 2 max_{s <= t} ‖θ_s - θ_1‖,

    so D̂ is at least the diameter of the visited region and at most twice it. It never falls. It
    keeps one number besides θ_1. The sum of the step lengths would bound the distance as well, but
    noise alone makes that grow without bound.

    It bounds where the learner has been. The theorem's Θ must contain the minimisers θ*_t too:
    where the learner lags far behind them, take a larger `factor`.

    Reads a number, the distance ‖θ_t - θ_1‖, and not a `Signal`: D is a constant of a schedule.

    Args:
        factor: The multiple of the farthest distance; 2 makes it a bound.
        floor: The smallest bound, which holds before anything has moved.

    Example:
        >>> rule = RunningDiameter()
        >>> state = rule.init()
        >>> for distance in [0.0, 1.5, 0.5]:
        ...     diameter, state = rule.update(state, distance)
        >>> diameter
        3.0

    Reference:
        Ivgi, Hinder and Carmon (2023), "DoG is SGD's best friend", for the farthest distance as a
        stand-in for the unknown one; the diameter of Θ in Fahrbach et al. (2023), Theorem 4.2.
    """

    factor: float = 2.0
    floor: float = 0.0

    reads: ClassVar[str] = "distance"

    def __post_init__(self) -> None:
        _checks.positive(self, "factor")
        _checks.number(self, "floor", low=0.0)

    def _start(self) -> State:
        return {"estimate": self.floor}

    def _step(self, xp: Any, state: State, signal: Array) -> tuple[Array, State]:
        estimate = xp.maximum(state["estimate"], self.factor * signal)
        return estimate, {"estimate": estimate}
