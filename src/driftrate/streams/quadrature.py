"""Means of the logistic potential under a normal, accurate for every variance."""

from __future__ import annotations

from functools import lru_cache
from math import log, pi, sqrt
from typing import Any

import numpy as np
from array_api_compat import device as device_of

from driftrate.schedules.base import Array

NODES = 36  # the error falls like 1.47^(-2 * NODES): 1e-12
_TAIL_NORMAL = 8.6  # beyond this the normal density is below 1e-16
_TAIL_LOGISTIC = 40.0  # beyond this log(1 + exp(-y)) is below 1e-17
_NEWTON_STEPS = 12
_RADII, _ANGLES = 40, 96


@lru_cache
def _unit_rule(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the Gauss-Legendre rule on [0, 1]."""
    x, w = np.polynomial.legendre.leggauss(count)
    return (x + 1) / 2, w / 2


def _placed(xp: Any, rule: tuple[np.ndarray, ...], like: Array) -> list[Array]:
    """Return a rule's arrays with the dtype and on the device of `like`."""
    return [xp.asarray(values, dtype=like.dtype, device=device_of(like)) for values in rule]


@lru_cache
def _half_rule(xp: Any, dtype: Any, device: Any) -> tuple[Array, Array]:
    """Return the rule for the half line on a device, copied there only once."""
    x, w = _unit_rule(NODES)
    x, w = (xp.asarray(a, dtype=dtype, device=device) for a in (x, w * 2 / sqrt(2 * pi)))
    return x, w


def _half_line(xp: Any, variance: Array) -> tuple[Array, Array]:
    """Return y = s z at the nodes of 2 ∫_0^∞ φ(z) f(s z) dz and the weights, last axis the nodes.

    The range ends where either the density or the logistic tail is negligible. The nearest
    singularity in y, iπ, is at least π/40 of the range away, so one rule serves every s.
    """
    x, w = _half_rule(xp, variance.dtype, device_of(variance))
    s = xp.sqrt(variance)[..., None]
    width = _TAIL_LOGISTIC / xp.clip(s, _TAIL_LOGISTIC / _TAIL_NORMAL, None)
    z = width * x
    return s * z, width * w * xp.exp(-0.5 * z * z)


def logistic_moments(xp: Any, variance: Array) -> tuple[Array, Array]:
    """Return E log(1 + exp(p)) and E sigmoid'(p) for p ~ N(0, variance).

    log(1 + e^p) = p/2 + |p|/2 + log(1 + e^{-|p|}): the kink has the mean s/sqrt(2π) in closed form,
    and the rest is smooth on the half line. The second mean is twice the first's derivative.

    Example:
        >>> import array_api_compat.numpy as np
        >>> [round(float(mean), 12) for mean in logistic_moments(np, np.asarray(0.0))]
        [0.69314718056, 0.25]
    """
    y, w = _half_line(xp, variance)
    e = xp.exp(-y)
    rest = xp.sum(w * xp.log1p(e), axis=-1)
    return xp.sqrt(variance / (2 * pi)) + rest, xp.sum(w * e / ((1 + e) * (1 + e)), axis=-1)


def logistic_shrinkage(xp: Any, signal: Array, total: Array) -> Array:
    """Return the factor c by which noise inside the sigmoid shrinks the minimiser.

    Labels with the mean sigmoid(u + ε), u = <x, θ> ~ N(0, signal), have their best logistic model
    at cθ with c κ(c² signal) = κ(total), where total = signal + Var ε and κ is the second of
    `logistic_moments`: by Stein's identity both sides are slopes along θ. It is solved by Newton's
    method in ln(1/c²), in which it is close to linear; κ' = (κ - 6 E sigmoid'²)/2 comes from the
    same nodes.

    Example:
        >>> import array_api_compat.numpy as np
        >>> round(float(logistic_shrinkage(np, np.asarray(1.0), np.asarray(2.0))), 6)
        0.837919
    """
    goal = xp.log(logistic_moments(xp, total)[1])
    # Exact for a large signal, and not far off for a small one.
    x = xp.log(1 + 3 / pi**2 * (total - signal))
    for _ in range(_NEWTON_STEPS):
        v = signal * xp.exp(-x)
        y, w = _half_line(xp, v)
        e = xp.exp(-y)
        bell = e / ((1 + e) * (1 + e))  # sigmoid', without overflow
        mean = xp.sum(w * bell, axis=-1)
        drop = 0.5 * (mean - 6 * xp.sum(w * bell * bell, axis=-1))
        value = xp.log(mean) - 0.5 * x - goal
        slope = -v * drop / mean - 0.5
        x = xp.clip(x - value / slope, 0.0, 2 * log(4.0) + 2 * xp.log1p(total))
    return xp.exp(-0.5 * x)


@lru_cache
def _poisson_rule() -> tuple[np.ndarray, ...]:
    """Return the Gauss-Hermite rule for a standard normal; k, k log k and log k! up to k = 220."""
    x, w = np.polynomial.hermite_e.hermegauss(64)
    k = np.arange(1.0, 221.0)
    return x, w / w.sum(), k, k * np.log(k), np.cumsum(np.log(k))


def poisson_entropy(xp: Any, variance: Array) -> Array:
    """Return E[y log y - y] for y ~ Poisson(e^u), u ~ N(0, variance), for variances up to 16.

    Given the mean m it is a sum over the counts; for m of 100 or more, the series
    m log m - m + 1/2 + 1/(12 m) + 1/(12 m²) + 19/(120 m³).

    Example:
        >>> import array_api_compat.numpy as np
        >>> round(float(poisson_entropy(np, np.asarray(0.0))), 6)
        -0.426597
    """
    nodes, weights, k, weighed, factorial = _placed(xp, _poisson_rule(), variance)
    u = xp.sqrt(variance)[..., None] * nodes
    m = xp.exp(u)
    low = xp.clip(u, None, log(100.0))[..., None]
    summed = xp.sum(weighed * xp.exp(k * low - xp.exp(low) - factorial), axis=-1)
    high = xp.clip(m, 100.0, None)
    series = high * xp.log(high) + 0.5 + (1 + 1 / high) / (12 * high) + 19 / (120 * high**3)
    return xp.sum(weights * (xp.where(m < 100.0, summed, series) - m), axis=-1)


@lru_cache
def _polar_rule() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return nodes (q1, q2) and weights for means of even functions of a normal in the plane."""
    x, w = _unit_rule(_RADII)
    radius = x * _TAIL_NORMAL
    weight = w * _TAIL_NORMAL * radius * np.exp(-0.5 * radius**2)
    angle = np.pi * (np.arange(_ANGLES) + 0.5) / _ANGLES
    q1 = np.outer(radius, np.cos(angle)).ravel()
    q2 = np.outer(radius, np.sin(angle)).ravel()
    return q1, q2, np.repeat(weight / _ANGLES, _ANGLES)


def plane_rule(xp: Any, like: Array) -> tuple[Array, Array, Array]:
    """Return nodes q1, q2 and weights for E f(q1, q2), q ~ N(0, I_2), f even: f(q) = f(-q).

    Example:
        >>> import array_api_compat.numpy as np
        >>> q1, q2, w = plane_rule(np, np.asarray(0.0))
        >>> round(float(np.sum(w * q1**2 * q2**2)), 12)
        1.0
    """
    q1, q2, w = _placed(xp, _polar_rule(), like)
    return q1, q2, w
