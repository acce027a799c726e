"""A step's batch gradient: as vectors, or as coefficients of vectors that exist already."""

from __future__ import annotations

from dataclasses import dataclass

from driftrate.schedules.base import Array
from driftrate.streams.backend import Backend


@dataclass(frozen=True)
class Explicit:
    """Gradients as an array of shape (lanes, seeds, dim)."""

    backend: Backend
    vectors: Array

    def norm_sq(self) -> Array:
        """Return ‖g‖² of every lane and seed."""
        xp = self.backend.xp
        return xp.astype(xp.vecdot(self.vectors, self.vectors), self.backend.real)

    def descend(self, error: Array, rate: Array) -> None:
        """Subtract rate * g in place."""
        error -= self.backend.small(rate) * self.vectors


@dataclass(frozen=True)
class Combination:
    """Gradients error * δ + truth * θ° + noise * z: three numbers per seed, z shared by lanes."""

    backend: Backend
    error: Array
    truth: Array | None
    parameter: Array
    noise: Array
    normals: Array

    def vectors(self, error: Array) -> Array:
        """Return the gradients as an array of shape (lanes, seeds, dim)."""
        small = self.backend.small
        out = small(self.error) * error + small(self.noise) * self.normals
        return out if self.truth is None else out + small(self.truth) * self.parameter

    def descend(self, error: Array, rate: Array) -> None:
        """Subtract rate * g from δ in place; the normals may be overwritten."""
        small = self.backend.small
        error *= small(1 - rate * self.error)
        self.backend.add_scaled(error, small(-rate * self.noise), self.normals)
        if self.truth is not None:
            error -= small(rate * self.truth) * self.parameter


@dataclass(frozen=True)
class Sample:
    """A batch's gradient, and the measurements asked for, of shape (lanes, seeds)."""

    gradient: Explicit | Combination
    loss: Array | None = None
    grad_sq: Array | None = None
    cross: Array | None = None
    spread: Array | None = None
