"""Nature moves the target: along a fixed path, row by row, or in response to the learner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace

from driftrate.errors import ConfigError
from driftrate.schedules.base import Array


class Nature(ABC):
    """Chooses the target's position at each step; a rule without hidden state.

    A subclass sets `steps` and `dim`. If it is `adaptive` it sees the learner's weights θ_t, of
    shape (..., seeds, dim), before step t, and each seed then has a target of its own. The paper
    allows this: θ*_t may depend on all batches up to t-1 (Section 2).
    """

    adaptive: ClassVar[bool] = True
    steps: int
    dim: int

    @abstractmethod
    def position(self, step: int, previous: Array | None, weights: Array | None) -> Array:
        """Return the target's position.

        Args:
            step: The step, from 0.
            previous: The position one step before; None at step 0, or if nature is not adaptive.
            weights: The learner's weights; None if nature is not adaptive.

        Returns:
            A vector (dim,), or an array in the shape of `weights`.
        """


class FixedPath(Nature):
    """A path given as an array.

    Args:
        path: An array of shape (steps, dim), finite.

    Example:
        >>> FixedPath(np.zeros((5, 2))).steps
        5
    """

    adaptive = False

    def __init__(self, path: npt.ArrayLike) -> None:
        array = np.asarray(path)
        if array.ndim != 2 or 0 in array.shape:
            raise ConfigError(f"path must have shape (steps, dim), got {array.shape}")
        if array.dtype.kind != "f":
            array = array.astype(np.float64)
        # A row's sum is finite exactly if its entries are (short of overflow): no boolean copy.
        bad = np.flatnonzero(~np.isfinite(array.sum(axis=1, dtype=np.float64)))
        if bad.size:
            raise ConfigError(f"path must be finite, got NaN or infinity at step {bad[0]}")
        self.path = array
        self.steps, self.dim = array.shape

    def position(self, step: int, previous: Array | None, weights: Array | None) -> Array:
        return self.path[step]


class LazyPath(Nature):
    """A path made row by row, for paths too large to store.

    Args:
        row: A function of the step, from 0, that returns a vector (dim,).
        steps: The number of steps.
        dim: The dimension.

    Example:
        >>> from driftrate.streams import spiral_row
        >>> path = LazyPath(lambda t: spiral_row(4, 100, t, hold=8), steps=100, dim=4)
        >>> path.position(0, None, None).shape
        (4,)
    """

    adaptive = False

    def __init__(self, row: Callable[[int], npt.NDArray[Any]], steps: int, dim: int) -> None:
        self._row, self.steps, self.dim = row, steps, dim

    def position(self, step: int, previous: Array | None, weights: Array | None) -> Array:
        row = np.asarray(self._row(step))
        if row.shape != (self.dim,) or not np.isfinite(row).all():
            got = f"shape {row.shape}" if row.shape != (self.dim,) else "NaN or infinity"
            raise ConfigError(f"row({step}) must be a finite vector of {self.dim}, got {got}")
        return row


class _Fleeing(Nature):
    """Leaves its start straight away from the learner, along axis 0 if the learner is on it."""

    def __init__(self, start: npt.ArrayLike, steps: int) -> None:
        vector = np.asarray(start, dtype=np.float64)
        if vector.ndim != 1 or not vector.size or not np.isfinite(vector).all():
            raise ConfigError(f"start must be a finite vector, got shape {vector.shape}")
        self._start, self.steps, self.dim = vector, steps, len(vector)

    @abstractmethod
    def _distance(self, xp: Any, step: int, apart_sq: Array) -> Array:
        """Return how far to move, given the squared distance from the learner."""

    def position(self, step: int, previous: Array | None, weights: Array) -> Array:
        xp = array_namespace(weights)
        if previous is None:
            start = xp.asarray(self._start, dtype=weights.dtype, device=weights.device)
            return xp.zeros_like(weights) + start
        away = previous - weights
        apart_sq = xp.vecdot(away, away)[..., None]
        norm = xp.sqrt(apart_sq)
        axis = xp.zeros_like(away)
        axis[..., 0] = 1.0
        direction = xp.where(norm > 0, away / xp.where(norm > 0, norm, 1.0), axis)
        return previous + self._distance(xp, step, apart_sq) * direction


class Runaway(_Fleeing):
    """Runs straight away from the learner at speed γ_t.

        θ*_{t+1} = θ*_t + γ_t (θ*_t - θ_{t+1})/‖θ*_t - θ_{t+1}‖.

    The worst that nature can do to a learner it sees, at a given speed.

    Args:
        start: Its first position, a vector (dim,).
        speed: γ_t, a number or an array of steps - 1.
        steps: The number of steps.

    Example:
        >>> nature = Runaway(start=[1.0, 0.0], speed=0.5, steps=10)
        >>> nature.position(1, np.array([[1.0, 0.0]]), np.array([[0.0, 0.0]])).tolist()
        [[1.5, 0.0]]
    """

    def __init__(self, start: npt.ArrayLike, speed: npt.ArrayLike, steps: int) -> None:
        super().__init__(start, steps)
        try:
            self._speed = np.broadcast_to(np.asarray(speed, dtype=np.float64), (steps - 1,))
        except ValueError as error:
            raise ConfigError(
                f"speed must be a number or an array of {steps - 1}, got shape {np.shape(speed)}"
            ) from error
        if not np.isfinite(self._speed).all() or (self._speed < 0).any():
            raise ConfigError(f"speed must be finite and >= 0, got {self._speed.min()}")

    def _distance(self, xp: Any, step: int, apart_sq: Array) -> Array:
        return float(self._speed[step - 1])


class JumpWhenSettled(_Fleeing):
    """Rests until the learner has come within `radius`, then jumps away from it by `size`.

    Args:
        start: Its first position, a vector (dim,).
        size: The length of a jump.
        radius: How near the learner has to come.
        steps: The number of steps.

    Example:
        >>> nature = JumpWhenSettled(start=[1.0], size=2.0, radius=0.5, steps=10)
        >>> nature.position(1, np.array([[1.0], [1.0]]), np.array([[0.0], [0.9]])).tolist()
        [[1.0], [3.0]]
    """

    def __init__(self, start: npt.ArrayLike, size: float, radius: float, steps: int) -> None:
        super().__init__(start, steps)
        if not 0 <= size < np.inf or not 0 <= radius < np.inf:
            raise ConfigError(f"size and radius must be finite and >= 0, got {size!r}, {radius!r}")
        self._size, self._radius = float(size), float(radius)

    def _distance(self, xp: Any, step: int, apart_sq: Array) -> Array:
        return xp.where(apart_sq <= self._radius**2, self._size, 0.0)
