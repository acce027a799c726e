"""Logistic regression on a moving target."""

from __future__ import annotations

from typing import Any, Literal

import numpy.typing as npt

from driftrate.errors import ConfigError
from driftrate.schedules.base import Array
from driftrate.streams.backend import Backend
from driftrate.streams.base import CovarianceLike, Stream
from driftrate.streams.nature import Nature
from driftrate.streams.quadrature import logistic_moments, logistic_shrinkage, plane_rule
from driftrate.streams.target import Standing


def _sigmoid(xp: Any, x: Array) -> Array:
    return 1 / (1 + xp.exp(-x))  # exp may overflow, which gives the right 0; tanh is 4 times slower


class LogisticStream(Stream):
    """Logistic regression with the loss log(1 + e^p) - y p, p = <x, θ> (Section 6.1).

    Labels are soft, y = sigmoid(<x, θ°_t> + ε), or drawn with that probability. Noise inside the
    sigmoid shrinks the minimiser of the expected loss to θ*_t = c θ°_t; regret is taken against it.

    Args:
        path: θ°_t, an array of shape (steps, dim), or a `Nature`.
        batch_size: B_t, a number or an array with one per step.
        noise_std: The deviation of ε, inside the sigmoid.
        labels: `"soft"` for the probabilities themselves, `"bernoulli"` for zeros and ones.
        covariance: Σ: None for the identity, a `Covariance`, or one per step (a list, or a
            function of the step) for covariate shift.

    Example:
        >>> import numpy as np
        >>> from driftrate.streams import LogisticStream, standstill
        >>> stream = LogisticStream(standstill(dim=2, steps=10), noise_std=1.0)
        >>> stream.standing(np.zeros(2), step=0).regret.round(4)
        np.float64(0.0707)

    Reference:
        Fahrbach, Javanmard, Mirrokni and Worah (2023), Section 6.1.
    """

    def __init__(
        self,
        path: npt.ArrayLike | Nature,
        batch_size: int | npt.ArrayLike = 256,
        noise_std: float = 0.1,
        labels: Literal["soft", "bernoulli"] = "soft",
        covariance: CovarianceLike = None,
    ) -> None:
        if labels not in ("soft", "bernoulli"):
            raise ConfigError(f"labels must be 'soft' or 'bernoulli', got {labels!r}")
        super().__init__(path, batch_size, noise_std, covariance)
        self.soft = labels == "soft"

    def labels(self, backend: Backend, predictor: Array) -> Array:
        chance = _sigmoid(backend.xp, predictor)
        if self.soft:
            return chance
        return backend.xp.astype(backend.uniform(*chance.shape) < chance, backend.dtype)

    def residual(self, xp: Any, prediction: Array, labels: Array) -> Array:
        return _sigmoid(xp, prediction) - labels

    def loss(self, xp: Any, prediction: Array, labels: Array) -> Array:
        rest = xp.log1p(xp.exp(-xp.abs(prediction)))
        return xp.clip(prediction, 0.0, None) + rest - labels * prediction

    def moments(self, xp: Any, variance: Array) -> tuple[Array, Array]:
        return logistic_moments(xp, variance)

    def scale(self, xp: Any, signal: Array, total: Array) -> Array:
        if self.noise_std == 0:
            return xp.ones_like(signal)
        return logistic_shrinkage(xp, signal, total)

    def second_moment(self, standing: Standing) -> Array:
        """Return E[r² ‖x‖²] by a rule in the plane of <x, θ> and <x, θ°> + ε.

        Both are linear in two standard normals q. E[r²ww'] is E r² I, plus E[r²(qq' - I)] on the
        span of θ and θ°. So the trace needs only E r² and E[r²(q_i q_j - δ_ij)].
        """
        xp, t = standing.backend.xp, standing.target
        q1, q2, weight = plane_rule(xp, standing.variance)
        # q1 along the labels' predictor, q2 along the rest of the learner's.
        deviation = xp.sqrt(t.total + 0 * standing.variance)
        covariance = standing.alignment + t.scale * t.signal
        first = _divide(xp, covariance, deviation)
        left = xp.sqrt(xp.clip(standing.variance - first**2, 0.0, None))
        a = _sigmoid(xp, first[..., None] * q1 + left[..., None] * q2)
        b = _sigmoid(xp, deviation[..., None] * q1)
        square = a * a - 2 * a * b + (b * b if self.soft else b)
        mean = xp.sum(weight * square, axis=-1)
        m11 = xp.sum(weight * square * (q1 * q1 - 1), axis=-1)
        m12 = xp.sum(weight * square * (q1 * q2), axis=-1)
        m22 = xp.sum(weight * square * (q2 * q2 - 1), axis=-1)
        # The span's unit vectors without the noise's coordinate, e1 = θ°/deviation and
        # e2 = (θ - first e1)/left: their coloured inner products are the moments' weights.
        dd, dp, pp = standing.coloured
        own_p = dp + t.scale * pp
        own = dd + 2 * t.scale * dp + t.scale**2 * pp
        e11 = _divide(xp, pp, deviation**2)
        cross = _divide(xp, own_p, deviation)
        e12 = _divide(xp, cross - first * e11, left)
        e22 = _divide(xp, own - 2 * first * cross + first**2 * e11, left**2)
        return mean * t.covariance.trace() + m11 * e11 + 2 * m12 * e12 + m22 * e22


def _divide(xp: Any, a: Array, b: Array) -> Array:
    """Return a/b, and 0 where b is 0."""
    return xp.where(b > 0, a / xp.where(b > 0, b, 1.0), 0.0)
