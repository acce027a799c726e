"""Poisson regression on a moving target."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
from array_api_compat import array_namespace

from driftrate.errors import ConfigError
from driftrate.schedules.base import Array
from driftrate.streams.backend import Backend
from driftrate.streams.base import CovarianceLike, Stream
from driftrate.streams.nature import Nature
from driftrate.streams.quadrature import poisson_entropy
from driftrate.streams.target import Standing, Target

_LARGEST_SIGNAL = 16.0


class PoissonStream(Stream):
    """Poisson regression: y ~ Poisson(exp<x, θ*_t>), loss e^p - y p + y log y - y with p = <x, θ>.

    The loss is half the deviance: the negative log likelihood less its least value, so never below
    0. With s² = θᵀΣθ the mean E e^p = e^{s²/2} is in closed form. It explodes with s²: a path with
    θ*ᵀΣθ* over 16 (a mean of 2981) is refused; scale it down.

    Args:
        path: θ*_t, an array of shape (steps, dim), or a `Nature`.
        batch_size: B_t, a number or an array with one per step.
        covariance: Σ: None for the identity, a `Covariance`, or one per step (a list, or a
            function of the step) for covariate shift.

    Example:
        >>> import numpy as np
        >>> from driftrate.streams import PoissonStream, standstill
        >>> stream = PoissonStream(standstill(dim=2, steps=10, start=0.5))
        >>> stream.standing(np.zeros(2), step=0).regret.round(4)
        np.float64(0.1501)
    """

    def __init__(
        self,
        path: npt.ArrayLike | Nature,
        batch_size: int | npt.ArrayLike = 256,
        covariance: CovarianceLike = None,
    ) -> None:
        super().__init__(path, batch_size, 0.0, covariance)
        worst = max(row[0] for row in self.table) if self.table is not None else 0.0
        if worst > _LARGEST_SIGNAL:
            raise ConfigError(
                f"path must keep Var <x, θ*> <= {_LARGEST_SIGNAL:g} for means to stay sane, "
                f"got {worst:g}: scale the path by {(_LARGEST_SIGNAL / worst) ** 0.5:.3g} or less"
            )

    def labels(self, backend: Backend, predictor: Array) -> Array:
        return backend.poisson(backend.xp.exp(predictor))

    def residual(self, xp: Any, prediction: Array, labels: Array) -> Array:
        return xp.exp(prediction) - labels

    def loss(self, xp: Any, prediction: Array, labels: Array) -> Array:
        entropy = labels * xp.log(xp.where(labels > 0, labels, 1.0)) - labels
        return xp.exp(prediction) - labels * prediction + entropy

    def moments(self, xp: Any, variance: Array) -> tuple[Array, Array]:
        mean = xp.exp(0.5 * variance)
        return mean, mean

    def offset(self, target: Target) -> Array:
        xp = array_namespace(target.parameter)
        signal = xp.asarray(target.signal, dtype=xp.float64, device=target.parameter.device)
        return poisson_entropy(xp, signal)

    def excess(self, standing: Standing) -> Array:
        # e^{s²/2} - e^{s*²/2}(1 + a), without cancellation near the optimum.
        grown = 0.5 * standing.excess_sq + standing.alignment
        return standing.target.slope * (standing.backend.xp.expm1(grown) - standing.alignment)

    def second_moment(self, standing: Standing) -> Array:
        """Return E[r² ‖x‖²] of one sample.

        Given p and u = <x, θ*>, the mean of r² is e^{2p} - 2e^{p+u} + e^{2u} + e^u, and
        E[e^{<x,b>} xx'] = e^{bᵀΣb/2} (Σ + Σbb'Σ).
        """
        xp, t = standing.backend.xp, standing.target
        trace = t.covariance.trace()
        excess_sq, alignment = standing.excess_sq, standing.alignment
        dd, dp, pp = standing.coloured

        def term(own: float, truth: float) -> Array:
            # b = own * θ + truth * θ*, with θ = δ + θ*.
            a, c = own, own + truth
            exponent = a * a * excess_sq + 2 * a * c * alignment + c * c * t.signal
            return xp.exp(0.5 * exponent) * (trace + a * a * dd + 2 * a * c * dp + c * c * pp)

        return term(2.0, 0.0) - 2 * term(1.0, 1.0) + term(0.0, 2.0) + term(0.0, 1.0)
