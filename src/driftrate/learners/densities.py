r"""What a mixture of forecasts says of a number: Student's t, its tails, and how sure it was.

Every member forecasts a number as m + √s t, t of Student's law with 5 degrees of freedom and
variance 5/3: heavy tails, and a distribution function without special functions. With
φ = atan(z/√5),

    log f(z) = log(8/(3π√5)) - 3 log(1 + z²/5),
    F(z) = 1/2 + (φ + sin φ cos φ (1 + ⅔ cos² φ))/π.
"""

from __future__ import annotations

from math import log, pi, sqrt

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DEGREES = 5.0
_ROOT = sqrt(DEGREES)
_PEAK = log(8.0 / (3.0 * pi * _ROOT))
# Sureness is counted in halvings of what is left outside the interval: 2⁻¹⁶ is the last bin.
_HALVINGS, BINS = 16.0, 160


def log_density(away: Floats, scale: Floats) -> Floats:
    """Return the logarithm of the density at a distance from the centre.

    Args:
        away: The distance, any shape.
        scale: √s, the same shape or one that fits.

    Example:
        >>> round(float(log_density(np.array(0.0), np.array(1.0))), 4)
        -0.9686
    """
    z = away / scale
    density: Floats = _PEAK - np.log(scale) - 3.0 * np.log1p(z * z / DEGREES)
    return density


def surprise(square: Floats) -> Floats:
    """Return 6u/(5 + u) of u = z²: its mean is 1 at the scale of the highest likelihood.

    Example:
        >>> surprise(np.array([0.0, 1.0, 1e9])).round(3).tolist()
        [0.0, 1.0, 6.0]
    """
    return (DEGREES + 1.0) * square / (DEGREES + square)


def below(away: Floats, scale: Floats) -> Floats:
    """Return F, the chance of a number below that distance.

    Example:
        >>> below(np.array([0.0, 2.015, -4.032]), np.array(1.0)).round(4).tolist()
        [0.5, 0.95, 0.005]
    """
    z = away / (scale * _ROOT)
    cosine = 1.0 / (1.0 + z * z)  # its square
    angle = np.arctan(z) + z * cosine * (1.0 + 2.0 / 3.0 * cosine)
    chance: Floats = 0.5 + angle / pi
    return chance


def halvings(centre: Floats, scale: Floats, shares: Floats, y: Floats) -> Floats:
    """Return how often the chance of a number further out had to be halved, in [0, 16].

    With u the mixture's distribution function at y, that is -log₂(1 - |2u - 1|): uniform u make it
    exponential.

    Args:
        centre: m, (members, rows).
        scale: √s, (members, rows).
        shares: Of the members, (members,); they sum to 1.
        y: The numbers, (rows,).
    """
    u = shares @ below(y - centre, scale)
    outside = 2.0 * np.minimum(u, 1.0 - u)
    found: Floats = np.minimum(-np.log2(np.maximum(outside, 2.0**-_HALVINGS)), _HALVINGS)
    return found


def tally(found: Floats, weight: Floats) -> Floats:
    """Return the weights of rows in bins of halvings, (BINS,)."""
    places = np.minimum((found * (BINS / _HALVINGS)).astype(np.int64), BINS - 1)
    counts: Floats = np.bincount(places, weights=weight, minlength=BINS).astype(np.float64)
    return counts


def start(rows: float) -> Floats:
    """Return the tally that so many rows leave whose numbers came as the mixture said."""
    edges = 2.0 ** -np.linspace(0.0, _HALVINGS, BINS + 1)
    edges[-1] = 0.0
    return rows * (edges[:-1] - edges[1:])


def outside(counts: Floats, coverage: float) -> float:
    """Return the chance to leave outside, by the mixture, so that the coverage comes true.

    Args:
        counts: A tally of what was found, (BINS,).
        coverage: The part of the numbers that shall lie inside, in (0, 1).

    Example:
        >>> round(outside(start(1.0), 0.9), 3)
        0.1
    """
    total = np.concatenate([[0.0], np.cumsum(counts)])
    place = np.interp(coverage * total[-1], total, np.linspace(0.0, _HALVINGS, BINS + 1))
    return float(2.0**-place)


def quantiles(centre: Floats, scale: Floats, shares: Floats, chances: Floats) -> Floats:
    """Return the quantiles of the mixture, (len(chances), rows), by bisection.

    Args:
        centre: m, (members, rows).
        scale: √s, (members, rows).
        shares: Of the members, (members,).
        chances: The chances below, (count,), in (0, 1).

    Example:
        >>> one = np.ones((1, 1))
        >>> quantiles(0.0 * one, one, np.ones(1), np.array([0.05, 0.95])).round(3).tolist()
        [[-2.015], [2.015]]
    """
    # Student's own quantiles at the most extreme chance: the mixture's lie between the members'.
    least = min(float(chances.min()), 1.0 - float(chances.max()))
    reach = scale * 4.0 * max(least, 1e-12) ** (-1.0 / DEGREES)
    low = np.broadcast_to((centre - reach).min(axis=0), (len(chances), centre.shape[1])).copy()
    high = np.broadcast_to((centre + reach).max(axis=0), low.shape).copy()
    for _ in range(60):
        middle = 0.5 * (low + high)
        chance = np.tensordot(shares, below(middle - centre[:, None], scale[:, None]), 1)
        under = chance < chances[:, None]
        low, high = np.where(under, middle, low), np.where(under, high, middle)
    found: Floats = 0.5 * (low + high)
    return found
