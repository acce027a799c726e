"""The control problem behind Algorithm 1: its solution, and dynamic programming to check it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from driftrate.errors import ConfigError
from driftrate.schedules._checks import count
from driftrate.theory._checks import Array, OfTime, array, number, of_time


def optimal_policy(
    second: ArrayLike, *, dim: int, noise_std: float, batch_density: ArrayLike
) -> Array:
    r"""Return the rate that minimises the cost of the upper process (Theorem 3.3).

    .. math:: \zeta^* = \min\left\{1, \frac{\nu \tilde v}{(d+1)\tilde v + \sigma^2 d}\right\}

    It depends neither on the shift nor on the time left: the slope of ṽ is a parabola in ζ, and a
    lower ṽ now stays lower. Without noise it is min(1, ν/(d+1)), at ṽ = 0 too.

    Args:
        second: ṽ >= 0.
        dim: The dimension d.
        noise_std: The deviation σ of the label noise.
        batch_density: ν > 0.

    Returns:
        ζ*, of the shape of `second` and `batch_density` broadcast.

    Example:
        >>> optimal_policy([0.0, 1.0, 100.0], dim=1, noise_std=1.0, batch_density=1.5)
        array([0. , 0.5 , 0.74626866])

    Reference:
        Fahrbach et al. (2023), Theorem 3.3.
    """
    v = array("second", second, low=0.0)
    nu = array("batch_density", batch_density, low=0.0, open_low=True)
    dim = count("dim", dim)
    noise = number("noise_std", noise_std, low=0.0) ** 2 * dim
    if noise == 0.0:
        # The limit; the fraction itself is 0/0 at ṽ = 0.
        return np.minimum(1.0, nu / (dim + 1) + np.zeros_like(v))
    out: Array = np.minimum(1.0, nu * v / ((dim + 1) * v + noise))
    return out


class Value(NamedTuple):
    """The value function of the control problem, on a grid.

    Args:
        times: The times, of shape (steps + 1,).
        grid: The values of ṽ, of shape (n,).
        cost: The least cost from each time and value to the horizon, of shape (steps + 1, n).
        policy: The rate that attains it, of shape (steps, n).
    """

    times: Array
    grid: Array
    cost: Array
    policy: Array


def value_function(
    grid: ArrayLike,
    *,
    dim: int,
    noise_std: float,
    horizon: float,
    steps: int,
    batch_density: OfTime,
    speed: OfTime,
    rates: ArrayLike,
) -> Value:
    r"""Solve the control problem by backward dynamic programming, without using its solution.

    .. math:: V(v, \tau) = \min_{\zeta \in [0,1]} \frac{h}{2}(v + v_+) + V(v_+, \tau + h), \qquad
        v_+ = v + h\,\Phi_\tau(v, \zeta), \quad V(\cdot, T) = 0

    Φ is the slope of the upper process (`moments.upper_process`). V is interpolated linearly
    between grid values and extrapolated linearly above them. The policy is accurate to the spacing
    of `rates`; the cost has an error of first order in h and second in the grid's spacing.

    Args:
        grid: Values of ṽ, increasing, the first >= 0.
        dim: The dimension d.
        noise_std: The deviation σ of the label noise.
        horizon: The length of time T; a step h = T / steps must be below 1/2.
        steps: How many steps to take.
        batch_density: ν(τ) > 0, a number or a function of time.
        speed: ‖Y'(τ)‖ >= 0, a number or a function of time.
        rates: The values of ζ to choose from.

    Returns:
        The value function and the greedy policy.

    Example:
        >>> rates = np.linspace(0, 1, 101)
        >>> out = value_function(np.linspace(0.1, 4, 40), dim=2, noise_std=1.0, horizon=1.0,
        ...                      steps=20, batch_density=3.0, speed=0.2, rates=rates)
        >>> exact = optimal_policy(out.grid, dim=2, noise_std=1.0, batch_density=3.0)
        >>> bool(abs(out.policy - exact).max() < 0.01)
        True

    Reference:
        Fahrbach et al. (2023), the value function in the proof of Theorem 3.3; Bellman (1956).
    """
    v = array("grid", grid, low=0.0, ndim=1)
    if v.size < 2 or (np.diff(v) <= 0).any():
        raise ConfigError(f"grid must increase and hold two values or more, got {v}")
    zeta = array("rates", rates, low=0.0, ndim=1)[:, np.newaxis]
    dim = count("dim", dim)
    noise = number("noise_std", noise_std, low=0.0) ** 2 * dim
    horizon = number("horizon", horizon, low=0.0, open_low=True)
    steps = count("steps", steps)
    h = horizon / steps
    if h >= 0.5:
        raise ConfigError(
            f"steps must exceed {2 * horizon:g}, or a step makes ṽ negative: got {steps}"
        )
    nu, fast = of_time(batch_density), of_time(speed)
    cost = np.zeros((steps + 1, v.size))
    policy = np.empty((steps, v.size))
    for k in reversed(range(steps)):
        tau = k * h
        n = zeta**2 / number("batch_density", nu(tau), low=0.0, open_low=True)
        gamma = number("speed", fast(tau), low=0.0)
        slope = ((dim + 1) * n - 2 * zeta) * v + n * noise + 2 * gamma * np.sqrt(v)
        after = v + h * slope
        total = h / 2 * (v + after) + _straight(after, v, cost[k + 1])
        best = np.argmin(total, axis=0)
        cost[k] = total[best, np.arange(v.size)]
        policy[k] = zeta[best, 0]
    return Value(np.linspace(0.0, horizon, steps + 1), v, cost, policy)


def _straight(x: Array, grid: Array, values: Array) -> Array:
    """Interpolate linearly, and extrapolate along the first and last segments."""
    i = np.clip(np.searchsorted(grid, x) - 1, 0, grid.size - 2)
    tilt = np.diff(values) / np.diff(grid)
    out: Array = values[i] + tilt[i] * (x - grid[i])
    return out
