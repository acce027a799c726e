"""Projections Π_Θ of projected SGD, over the last axis of arrays of any library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from array_api_compat import array_namespace

from driftrate.errors import ConfigError
from driftrate.schedules.base import Array


class Projection(ABC):
    """The map to the nearest point of a convex set Θ (equation 3)."""

    @abstractmethod
    def __call__(self, weights: Array) -> Array:
        """Return the nearest points.

        Args:
            weights: An array of shape (..., dim).

        Returns:
            An array of the same shape.
        """


@dataclass(frozen=True)
class Ball(Projection):
    """The ball of all θ with ‖θ‖ <= radius.

    Args:
        radius: The radius.

    Example:
        >>> import numpy as np
        >>> Ball(1.0)(np.array([[3.0, 4.0], [0.3, 0.4]])).round(6).tolist()
        [[0.6, 0.8], [0.3, 0.4]]
    """

    radius: float

    def __post_init__(self) -> None:
        if not 0 < self.radius < float("inf"):
            raise ConfigError(f"Ball.radius must be a finite number > 0, got {self.radius!r}")

    def __call__(self, weights: Array) -> Array:
        """Return the nearest points."""
        xp = array_namespace(weights)
        norm = xp.sqrt(xp.vecdot(weights, weights))[..., None]
        return weights * xp.where(
            norm > self.radius, self.radius / xp.where(norm > 0, norm, 1), 1.0
        )


@dataclass(frozen=True)
class Box(Projection):
    """The box of all θ with low <= θ_i <= high for every i.

    Args:
        low: The lower bound of every coordinate.
        high: The upper bound of every coordinate.

    Example:
        >>> import numpy as np
        >>> Box(-1.0, 1.0)(np.array([-3.0, 0.5])).tolist()
        [-1.0, 0.5]
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ConfigError(f"Box needs low <= high, got {self.low!r} and {self.high!r}")

    def __call__(self, weights: Array) -> Array:
        """Return the nearest points."""
        return array_namespace(weights).clip(weights, self.low, self.high)
