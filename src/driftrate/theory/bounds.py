"""The regret bounds for convex and non-convex losses, term by term (Sections 4 and 5).

Every function takes what one or many runs recorded and returns the terms step by step, so that a
plot can show when each is paid. The theorems are about expectations: average over runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import reduce

import numpy as np
from numpy.typing import ArrayLike

from driftrate.errors import ConfigError
from driftrate.theory._checks import Array, array, number


@dataclass(frozen=True, eq=False)
class _Terms:
    """The terms of a bound, each of shape (..., steps); iterating gives them in their order."""

    def __iter__(self) -> Iterator[Array]:
        return (getattr(self, field.name) for field in fields(self))

    @property
    def per_step(self) -> Array:
        """The sum of the terms of each step, of shape (..., steps)."""
        return reduce(np.add, self)

    @property
    def total(self) -> Array:
        """The bound, of shape (...)."""
        out: Array = np.sum(self.per_step, axis=-1)
        return out


@dataclass(frozen=True, eq=False)
class PathBound(_Terms):
    """The terms of a bound that follows the trajectory, each of shape (..., steps).

    Args:
        approach: (D_t² - D_{t+1}²)/a_t, what the learner gained on the target.
        noise: σ²η_t²/(B_t a_t).
        shift: ‖θ*_t - θ*_{t+1}‖²/a_t.
        cross: 2⟨θ*_t - θ*_{t+1}, θ_{t+1} - θ*_t⟩/a_t.
    """

    approach: Array
    noise: Array
    shift: Array
    cross: Array


@dataclass(frozen=True, eq=False)
class DiameterBound(_Terms):
    """The terms of the bound that knows only the diameter, each of shape (..., steps).

    Args:
        travel: D_max²/a_1 in the first step, D_max²(1/a_t - 1/a_{t-1})_+ after it.
        noise: σ²η_t²/(B_t a_t).
        shift: (γ_t² + 2 D_max γ_t)/a_t.
    """

    travel: Array
    noise: Array
    shift: Array


@dataclass(frozen=True, eq=False)
class LossBound(_Terms):
    """The terms of the non-convex bound, each of shape (..., steps).

    Args:
        loss: 2ℓ_1/a_1 in the first step, 2ℓ_t(1/a_t - 1/a_{t-1}) after it.
        noise: Lσ²η_t²/(B_t a_t).
        shift: 2γ_t/a_t.
    """

    loss: Array
    noise: Array
    shift: Array


def upper_weight(rates: ArrayLike, smoothness: float) -> Array:
    r"""Return :math:`a_t = 2\eta_t - L\eta_t^2`, by which the upper bounds divide.

    Args:
        rates: η_t in (0, 2/L).
        smoothness: L > 0.

    Returns:
        a_t, positive.

    Example:
        >>> float(upper_weight(0.5, 1.0))
        0.75

    Reference:
        Fahrbach et al. (2023), Theorems 4.2 and 5.1.
    """
    smoothness = number("smoothness", smoothness, low=0.0, open_low=True)
    eta = array("rates", rates, low=0.0, open_low=True)
    if (eta * smoothness >= 2.0).any():
        raise ConfigError(f"rates must be below 2/L = {2 / smoothness:g}, got {eta.max():g}")
    out: Array = eta * (2.0 - smoothness * eta)
    return out


def lower_weight(rates: ArrayLike, smoothness: float, strong_convexity: float) -> Array:
    r"""Return :math:`a'_t = 2(\eta_t + \frac{L}{\mu}\eta_t - L\eta_t^2)` of the lower bound.

    Args:
        rates: η_t in (0, 1/μ].
        smoothness: L >= μ.
        strong_convexity: μ > 0.

    Returns:
        a'_t, positive. For η <= 1/L it is between 1 + L/μ and 2L/μ times `upper_weight`.

    Example:
        >>> float(lower_weight(0.5, 1.0, 1.0))
        1.5

    Reference:
        Fahrbach et al. (2023), Theorem 4.7.
    """
    mu = number("strong_convexity", strong_convexity, low=0.0, open_low=True)
    smoothness = number("smoothness", smoothness, low=mu)
    eta = array("rates", rates, low=0.0, open_low=True)
    if (eta * mu > 1.0 + 1e-12).any():
        raise ConfigError(f"rates must be at most 1/μ = {1 / mu:g}, got {eta.max():g}")
    out: Array = 2.0 * eta * (1.0 + smoothness * (1.0 / mu - eta))
    return out


def _path_bound(
    weight: Array, noise: Array, distances: ArrayLike, shifts: ArrayLike, cross: ArrayLike
) -> PathBound:
    """Return the terms from σ²η_t²/B_t and what the run recorded."""
    steps, dist = weight.shape[-1], array("distances", distances, low=0.0, ndim=1)
    if dist.shape[-1] != steps + 1:
        raise ConfigError(
            f"distances must hold one entry more than the {steps} rates: D_1 to D_(T+1),"
            f" got {dist.shape[-1]}"
        )
    gamma = array("shifts", shifts, low=0.0)
    terms = (
        (dist[..., :-1] ** 2 - dist[..., 1:] ** 2) / weight,
        noise / weight,
        gamma**2 / weight,
        2.0 * array("cross", cross) / weight,
    )
    return PathBound(*np.broadcast_arrays(*terms))


def _noise(rates: ArrayLike, batch_sizes: ArrayLike, noise_std: ArrayLike) -> Array:
    batch = array("batch_sizes", batch_sizes, low=0.0, open_low=True)
    sigma = array("noise_std", noise_std, low=0.0)
    out: Array = sigma**2 * array("rates", rates) ** 2 / batch
    return out


def convex_upper(
    rates: ArrayLike,
    *,
    batch_sizes: ArrayLike,
    distances: ArrayLike,
    shifts: ArrayLike,
    cross: ArrayLike,
    smoothness: float,
    noise_std: ArrayLike,
) -> PathBound:
    r"""Return the upper bound on the regret of projected SGD, convex losses.

    .. math:: E[\mathrm{Reg}(T)] \le \sum_t E\left[\frac{D_t^2 - D_{t+1}^2}{a_t}
        + \frac{\sigma^2\eta_t^2}{B_t a_t} + \frac{\|s_t\|^2}{a_t}
        - \frac{2}{a_t}\langle s_t, \theta_{t+1} - \theta^*_t\rangle\right]

    with :math:`s_t = \theta^*_{t+1} - \theta^*_t`. It needs θ*_t in Θ, an expected loss that is
    convex and L-smooth, and a rate and a target that depend on the past only. It holds for rates
    up to 2/L (the paper says 1/L).

    Args:
        rates: η_t, of shape (..., steps).
        batch_sizes: B_t, broadcast against the rates.
        distances: D_t = ‖θ_t - θ*_t‖, of shape (..., steps + 1).
        shifts: γ_t = ‖θ*_t - θ*_{t+1}‖, broadcast against the rates.
        cross: ⟨θ*_t - θ*_{t+1}, θ_{t+1} - θ*_t⟩, broadcast against the rates.
        smoothness: L.
        noise_std: A bound σ on the deviation of one sample's gradient, one number or step by step.

    Returns:
        The terms.

    Example:
        >>> bound = convex_upper([0.5, 0.5], batch_sizes=1, distances=[1.0, 0.5, 0.25], shifts=0.0,
        ...                      cross=0.0, smoothness=1.0, noise_std=0.0)
        >>> float(bound.total)
        1.25

    Reference:
        Fahrbach et al. (2023), Theorem 4.2.
    """
    weight = upper_weight(array("rates", rates, ndim=1), smoothness)
    return _path_bound(weight, _noise(rates, batch_sizes, noise_std), distances, shifts, cross)


def convex_lower(
    rates: ArrayLike,
    *,
    batch_sizes: ArrayLike,
    distances: ArrayLike,
    shifts: ArrayLike,
    cross: ArrayLike,
    smoothness: float,
    strong_convexity: float,
    noise_std: ArrayLike,
) -> PathBound:
    r"""Return the lower bound on the regret of SGD, strongly convex expected loss.

    The same terms as `convex_upper`, with a'_t (`lower_weight`) in place of a_t. It holds for SGD
    without projection, and with σ²/B_t the conditional variance of the gradient itself: an upper
    bound makes the noise term too large. Only the expected loss must be strongly convex.

    Args:
        rates: η_t <= 1/μ, of shape (..., steps).
        batch_sizes: B_t, broadcast against the rates.
        distances: D_t = ‖θ_t - θ*_t‖, of shape (..., steps + 1).
        shifts: γ_t = ‖θ*_t - θ*_{t+1}‖, broadcast against the rates.
        cross: ⟨θ*_t - θ*_{t+1}, θ_{t+1} - θ*_t⟩, broadcast against the rates.
        smoothness: L.
        strong_convexity: μ.
        noise_std: The deviation of one sample's gradient at θ_t, one number or step by step.

    Returns:
        The terms.

    Example:
        >>> bound = convex_lower([0.5, 0.5], batch_sizes=1, distances=[1.0, 0.5, 0.25], shifts=0.0,
        ...                      cross=0.0, smoothness=1.0, strong_convexity=1.0, noise_std=0.0)
        >>> float(bound.total)
        0.625

    Reference:
        Fahrbach et al. (2023), Theorem 4.7, corrected.
    """
    weight = lower_weight(array("rates", rates, ndim=1), smoothness, strong_convexity)
    return _path_bound(weight, _noise(rates, batch_sizes, noise_std), distances, shifts, cross)


def _telescope(weight: Array) -> Array:
    """Return 1/a_1 and then the differences 1/a_t - 1/a_{t-1}, along the last axis."""
    inverse = 1.0 / weight
    return np.diff(inverse, axis=-1, prepend=np.zeros_like(inverse[..., :1]))


def convex_upper_diameter(
    rates: ArrayLike,
    *,
    batch_sizes: ArrayLike,
    shifts: ArrayLike,
    smoothness: float,
    noise_std: ArrayLike,
    diameter: float,
) -> DiameterBound:
    r"""Return the upper bound that needs no trajectory: distances are at most D_max.

    .. math:: D_{\max}^2 E\left[\frac{1}{a_1} + \sum_{t\ge2}\left(\frac{1}{a_t} - \frac{1}{a_{t-1}}
        \right)_+\right] + \sum_t E\left[\frac{1}{a_t}\left(\frac{\sigma^2\eta_t^2}{B_t}
        + \gamma_t^2 + 2 D_{\max}\gamma_t\right)\right]

    Args:
        rates: η_t, of shape (..., steps).
        batch_sizes: B_t, broadcast against the rates.
        shifts: γ_t = ‖θ*_t - θ*_{t+1}‖, broadcast against the rates.
        smoothness: L.
        noise_std: A bound σ on the deviation of one sample's gradient.
        diameter: D_max of the set Θ, in which all θ*_t are.

    Returns:
        The terms.

    Example:
        >>> bound = convex_upper_diameter([1.0, 0.5], batch_sizes=1, shifts=0.0, smoothness=1.0,
        ...                               noise_std=0.0, diameter=3.0)
        >>> bound.travel
        array([9., 3.])

    Reference:
        Fahrbach et al. (2023), the bound with D_max after Theorem 4.2.
    """
    weight = upper_weight(array("rates", rates, ndim=1), smoothness)
    diameter = number("diameter", diameter, low=0.0)
    gamma = array("shifts", shifts, low=0.0)
    terms = (
        diameter**2 * np.maximum(_telescope(weight), 0.0),
        _noise(rates, batch_sizes, noise_std) / weight,
        (gamma**2 + 2.0 * diameter * gamma) / weight,
    )
    return DiameterBound(*np.broadcast_arrays(*terms))


def nonconvex_upper(
    rates: ArrayLike,
    *,
    batch_sizes: ArrayLike,
    losses: ArrayLike,
    loss_shifts: ArrayLike,
    smoothness: float,
    noise_std: ArrayLike,
) -> LossBound:
    r"""Return the bound on the sum of squared gradient norms, losses of any shape.

    .. math:: \sum_t E\|\nabla\bar\ell_t(\theta_t)\|^2 \le E\left[\frac{2\bar\ell_1(\theta_1)}{a_1}
        + \sum_{t\ge2} 2\bar\ell_t(\theta_t)\left(\frac{1}{a_t} - \frac{1}{a_{t-1}}\right)
        + \sum_t \frac{1}{a_t}\left(\frac{L\sigma^2\eta_t^2}{B_t} + 2\gamma_t\right)\right]

    for SGD without projection and losses that are nowhere negative. The paper's main text squares
    a_1 and a_{t-1}; its appendix has γ_t in place of 2γ_t. Both are slips.

    Args:
        rates: η_t, of shape (..., steps), chosen before the batch of step t is seen.
        batch_sizes: B_t, broadcast against the rates.
        losses: The expected loss at θ_t, of shape (..., steps).
        loss_shifts: γ_t >= |ℓ_{t+1}(θ_{t+1}) - ℓ_t(θ_{t+1})|, broadcast against the rates.
        smoothness: L.
        noise_std: A bound σ on the deviation of one sample's gradient.

    Returns:
        The terms.

    Example:
        >>> bound = nonconvex_upper([1.0, 1.0], batch_sizes=1, losses=[0.5, 0.0], loss_shifts=0.0,
        ...                         smoothness=1.0, noise_std=0.0)
        >>> float(bound.total)
        1.0

    Reference:
        Fahrbach et al. (2023), Theorem 5.1, corrected.
    """
    weight = upper_weight(array("rates", rates, ndim=1), smoothness)
    terms = (
        2.0 * array("losses", losses, low=0.0) * _telescope(weight),
        float(smoothness) * _noise(rates, batch_sizes, noise_std) / weight,
        2.0 * array("loss_shifts", loss_shifts, low=0.0) / weight,
    )
    return LossBound(*np.broadcast_arrays(*terms))
