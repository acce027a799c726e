"""The stochastic differential equation that SGD on linear regression follows (Section 3)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from driftrate.errors import ConfigError
from driftrate.schedules._checks import count
from driftrate.theory._checks import Array, OfTime, array, number, of_time


def apply_root(x: ArrayLike, scale: ArrayLike, z: ArrayLike) -> Array:
    r"""Apply the root of the matrix :math:`sI + xx^T` to a vector, in O(d).

    .. math:: (sI + xx^T)^{1/2} z
        = \sqrt{s}\, z + \frac{\langle x, z\rangle}{\sqrt{s + \|x\|^2} + \sqrt{s}}\, x

    The matrix has the eigenvalue :math:`s + \|x\|^2` along x and s across it. With the sum of the
    two roots in the denominator nothing cancels, and x = 0 is no special case.

    Args:
        x: Vectors on the last axis.
        scale: The multiple s >= 0 of the identity, one number per vector.
        z: Vectors on the last axis, of the shape of `x`.

    Returns:
        The products, of the shape of `x` and `z` broadcast.

    Example:
        >>> apply_root([3.0, 0.0], 16.0, [1.0, 1.0])
        array([5., 4.])

    Reference:
        Fahrbach et al. (2023), the diffusion term of the SDE of Section 3.
    """
    x, z = array("x", x, ndim=1), array("z", z, ndim=1)
    scale = array("scale", scale, low=0.0)[..., np.newaxis]
    across = np.sqrt(scale)
    below = np.sqrt(scale + np.sum(x * x, axis=-1, keepdims=True)) + across
    # Both roots vanish only when x does, and then the numerator is 0 too.
    below = np.where(below > 0.0, below, 1.0)
    along: Array = np.sum(x * z, axis=-1, keepdims=True) / below
    out: Array = across * z + along * x
    return out


def brownian(
    rng: np.random.Generator, *, horizon: float, steps: int, shape: tuple[int, ...]
) -> Array:
    """Draw the increments of independent standard Brownian motions.

    Over a step of length h = horizon/steps each increment is normal with variance h.

    Args:
        rng: The source of randomness.
        horizon: The length of time T.
        steps: How many steps T is cut into.
        shape: The axes of one increment, for example (paths, dim).

    Returns:
        Increments, of shape (steps, *shape).

    Example:
        >>> brownian(np.random.default_rng(0), horizon=1.0, steps=8, shape=(3, 2)).shape
        (8, 3, 2)

    Reference:
        Fahrbach et al. (2023), W of the SDE of Section 3.
    """
    horizon = number("horizon", horizon, low=0.0, open_low=True)
    steps = count("steps", steps)
    out: Array = rng.standard_normal((steps, *shape)) * np.sqrt(horizon / steps)
    return out


def coarsen(increments: ArrayLike, factor: int) -> Array:
    """Add up neighbouring increments: the same Brownian path on a coarser grid.

    Args:
        increments: Increments with time on the first axis.
        factor: How many neighbours are added into one; it must divide their number.

    Returns:
        Increments, with `factor` times fewer of them.

    Example:
        >>> coarsen([1.0, 2.0, 3.0, 4.0], 2)
        array([3., 7.])

    Reference:
        Fahrbach et al. (2023), the shared path in the proof of Proposition 3.1.
    """
    fine = array("increments", increments, ndim=1)
    factor = count("factor", factor)
    if fine.shape[0] % factor:
        raise ConfigError(f"factor must divide the {fine.shape[0]} increments, got {factor}")
    out: Array = fine.reshape(-1, factor, *fine.shape[1:]).sum(axis=1)
    return out


def sde_paths(
    initial: ArrayLike,
    increments: ArrayLike,
    *,
    horizon: float,
    rate: OfTime,
    batch_density: OfTime,
    target: OfTime,
    noise_std: float,
) -> Array:
    r"""Integrate the SDE of the error X = θ - θ* by Euler-Maruyama.

    .. math:: dX = -(\zeta X + Y')\,d\tau + \frac{\zeta}{\sqrt\nu}
        \left((\|X\|^2 + \sigma^2) I + XX^T\right)^{1/2} dW

    The target enters through its own increments Y(τ + h) - Y(τ), as in the SDE's integral form,
    so that it may jump. With h = ε one step is exactly one step of SGD whose noise is normal, with
    η = εζ and B = εν: g = ΔW/√ε turns (η/√B) g into (ζ/√ν) ΔW. Strong order 1/2.

    Args:
        initial: The error at time 0, of shape (..., dim); it is broadcast against the paths.
        increments: Brownian increments, of shape (steps, ..., dim); see `brownian`. Passing them
            lets two runs share a path.
        horizon: The length of time T; one step is T / steps.
        rate: ζ(τ), a number or a function of time, in [0, 1].
        batch_density: ν(τ) > 0, a number or a function of time.
        target: Y(τ), a vector or a function of time that returns one.
        noise_std: The deviation σ of the label noise.

    Returns:
        The errors, of shape (steps + 1, ..., dim), the initial one first.

    Example:
        >>> dw = brownian(np.random.default_rng(0), horizon=1.0, steps=100, shape=(5, 2))
        >>> x = sde_paths([1.0, 0.0], dw, horizon=1.0, rate=1.0, batch_density=1e9, target=0.0,
        ...               noise_std=0.0)
        >>> x.shape, bool(abs(x[-1, 0, 0] - 0.99**100) < 1e-3)
        ((101, 5, 2), True)

    Reference:
        Fahrbach et al. (2023), the SDE of Section 3; Proposition 3.1.
    """
    dw = array("increments", increments, ndim=2)
    horizon = number("horizon", horizon, low=0.0, open_low=True)
    noise_std = number("noise_std", noise_std, low=0.0)
    zeta, nu, y = of_time(rate), of_time(batch_density), of_time(target)
    steps = dw.shape[0]
    h = horizon / steps
    out = np.empty((steps + 1, *dw.shape[1:]))
    out[0] = array("initial", initial, ndim=1)
    place = array("target", y(0.0))
    for k in range(steps):
        x, tau = out[k], k * h
        z = number("rate", zeta(tau), low=0.0)
        spread = z / np.sqrt(number("batch_density", nu(tau), low=0.0, open_low=True))
        there = array("target", y(tau + h))
        scale = np.sum(x * x, axis=-1) + noise_std**2
        out[k + 1] = (1.0 - h * z) * x - (there - place) + spread * apply_root(x, scale, dw[k])
        place = there
    return out
