"""Linear regression on a moving target."""

from __future__ import annotations

from typing import Any

from driftrate.schedules.base import Array
from driftrate.streams.backend import Backend
from driftrate.streams.base import Stream
from driftrate.streams.target import Standing, Target


class LinearStream(Stream):
    """Linear regression: y = <x, θ*_t> + ε, loss (y - <x, θ>)²/2 (Section 3).

    The regret of a step is δᵀΣδ/2 with δ = θ_t - θ*_t, and the batch gradient's second moment is

        E‖g‖² = ‖Σδ‖² + ((δᵀΣδ + σ²) tr Σ + ‖Σδ‖²)/B.

    Args:
        path: θ*_t, an array of shape (steps, dim), or a `Nature`.
        batch_size: B_t, a number or an array with one per step.
        noise_std: The deviation σ of ε.
        covariance: Σ: None for the identity, a `Covariance`, or one per step (a list, or a
            function of the step) for covariate shift.

    Example:
        >>> from driftrate.streams import LinearStream, spiral
        >>> stream = LinearStream(spiral(dim=8, steps=100), batch_size=16, noise_std=0.1)
        >>> stream.steps, stream.dim
        (100, 8)

    Reference:
        Fahrbach, Javanmard, Mirrokni and Worah (2023), Section 3.
    """

    def labels(self, backend: Backend, predictor: Array) -> Array:
        return predictor

    def residual(self, xp: Any, prediction: Array, labels: Array) -> Array:
        return prediction - labels

    def loss(self, xp: Any, prediction: Array, labels: Array) -> Array:
        return 0.5 * (prediction - labels) ** 2

    def moments(self, xp: Any, variance: Array) -> tuple[Array, Array]:
        return 0.5 * variance, xp.ones_like(variance)

    def offset(self, target: Target) -> Array:
        return 0.5 * target.total

    def excess(self, standing: Standing) -> Array:
        return 0.5 * standing.excess_sq

    def gradient_sq(self, standing: Standing) -> Array:
        return standing.coloured_sq

    def second_moment(self, standing: Standing) -> Array:
        residual_sq = standing.excess_sq + self.noise_std**2
        return residual_sq * standing.target.covariance.trace() + 2 * standing.coloured_sq
