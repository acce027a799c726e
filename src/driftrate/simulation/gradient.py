"""A step's batch gradient: as vectors, or as coefficients of vectors that exist already."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from driftrate.schedules.base import Array
from driftrate.simulation.parts import cross_and_spread
from driftrate.streams.backend import Backend
from driftrate.streams.base import Stream
from driftrate.streams.target import Standing


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


class Sampler(ABC):
    """Draws the step's batch: all lanes share it, every seed has its own.

    Args:
        stream: The stream.
        backend: Where arrays live and randomness comes from.
        needs: Which of loss, grad_sq, cross and spread to measure.
        parts: Into how many parts of equal size batches are cut.
    """

    def __init__(self, stream: Stream, backend: Backend, needs: frozenset[str], parts: int) -> None:
        self._stream, self._backend, self._parts = stream, backend, parts
        self._loss = "loss" in needs
        self._grad_sq = "grad_sq" in needs or parts > 1

    @abstractmethod
    def draw(self, standing: Standing) -> Sample:
        """Return the batch gradient of every lane and seed."""

    def _explicit(self, vectors: Array, loss: Array | None, parts_sq: Array) -> Sample:
        """Measure gradients that are vectors; `parts_sq` is Σ ‖g_j‖² over their parts."""
        gradient = Explicit(self._backend, vectors)
        grad_sq = gradient.norm_sq() if self._grad_sq else None
        return self._measured(gradient, loss, grad_sq, parts_sq)

    def _measured(
        self, gradient: Explicit | Combination, loss: Array | None, grad_sq: Array, parts_sq: Array
    ) -> Sample:
        if self._parts == 1:
            return Sample(gradient, loss, grad_sq)
        cross, spread = cross_and_spread(self._backend.xp, grad_sq, parts_sq, self._parts)
        return Sample(gradient, loss, grad_sq, cross, spread)
