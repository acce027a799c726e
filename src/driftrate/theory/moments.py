"""The first two moments of the error: the paper's ODEs, and the exact recursion of real SGD."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from driftrate.errors import ConfigError
from driftrate.schedules._checks import count
from driftrate.theory._checks import Array, OfTime, array, number, of_time

# A rate that may depend on the state: (time, second moment) -> rate.
Policy = Callable[[float, float], float]


class Moments(NamedTuple):
    """The moments along time.

    Args:
        times: The times, of shape (steps + 1,).
        mean: E[θ - θ*], of shape (steps + 1, dim).
        second: E‖θ - θ*‖², of shape (steps + 1,).
    """

    times: Array
    mean: Array
    second: Array


def _rk4(
    slope: Callable[[float, Array], Array], start: Array, horizon: float, steps: int
) -> tuple[Array, Array]:
    """Return times and values by the classical Runge-Kutta method, no stage after its step.

    The last stage is one rounding before the end, so that a rate or a shift that switches on the
    grid has the value of this step there and the order stays 4.
    """
    horizon, steps = number("horizon", horizon, low=0.0, open_low=True), count("steps", steps)
    h = horizon / steps
    out = np.empty((steps + 1, *start.shape))
    out[0] = start
    for k in range(steps):
        y, tau = out[k], k * h
        end = np.nextafter(tau + h, tau)
        k1 = slope(tau, y)
        k2 = slope(tau + h / 2, y + h / 2 * k1)
        k3 = slope(tau + h / 2, y + h / 2 * k2)
        k4 = slope(end, y + h * k3)
        out[k + 1] = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return np.linspace(0.0, horizon, steps + 1), out


def moment_ode(
    initial_mean: ArrayLike,
    initial_second: float,
    *,
    horizon: float,
    steps: int,
    rate: OfTime,
    batch_density: OfTime,
    velocity: OfTime,
    noise_std: float,
) -> Moments:
    r"""Integrate the moments of the SDE (Theorem 3.2).

    .. math:: m' = -\zeta m - Y', \qquad
        v' = \left((d+1)\frac{\zeta^2}{\nu} - 2\zeta\right) v + \frac{\zeta^2}{\nu}\sigma^2 d
        - 2 m^T Y'

    Classical Runge-Kutta: the error falls as steps^-4 while ζ, ν and Y' are smooth between the grid
    times.

    Args:
        initial_mean: m at time 0, a vector.
        initial_second: v at time 0, at least ‖m‖².
        horizon: The length of time T.
        steps: How many steps to take.
        rate: ζ(τ), a number or a function of time.
        batch_density: ν(τ) > 0, a number or a function of time.
        velocity: Y'(τ), a vector or a function of time that returns one.
        noise_std: The deviation σ of the label noise.

    Returns:
        The moments at steps + 1 equally spaced times.

    Example:
        >>> out = moment_ode([1.0, 0.0], 1.0, horizon=1.0, steps=100, rate=1.0, batch_density=1e12,
        ...                  velocity=0.0, noise_std=1.0)
        >>> bool(abs(out.second[-1] - np.exp(-2.0)) < 1e-9)
        True

    Reference:
        Fahrbach et al. (2023), Theorem 3.2.
    """
    mean = array("initial_mean", initial_mean, ndim=1)
    second = number("initial_second", initial_second, low=0.0)
    if second < mean @ mean * (1 - 1e-12):
        raise ConfigError(f"initial_second must be at least ‖initial_mean‖² = {mean @ mean}")
    noise_std = number("noise_std", noise_std, low=0.0)
    zeta, nu, drift = of_time(rate), of_time(batch_density), of_time(velocity)
    dim = mean.size

    def slope(tau: float, state: Array) -> Array:
        m, v = state[:-1], state[-1]
        z = number("rate", zeta(tau), low=0.0)
        n = z * z / number("batch_density", nu(tau), low=0.0, open_low=True)
        y = np.broadcast_to(array("velocity", drift(tau)), (dim,))
        dv = ((dim + 1) * n - 2 * z) * v + n * noise_std**2 * dim - 2 * (m @ y)
        return np.append(-z * m - y, dv)

    times, path = _rk4(slope, np.append(mean, second), horizon, steps)
    return Moments(times, path[:, :-1], path[:, -1])


def upper_process(
    initial_second: float,
    policy: Policy,
    *,
    dim: int,
    noise_std: float,
    horizon: float,
    steps: int,
    batch_density: OfTime,
    speed: OfTime,
) -> tuple[Array, Array]:
    r"""Integrate the upper process of the second moment.

    .. math:: \tilde v' = \left((d+1)\frac{\zeta^2}{\nu} - 2\zeta\right)\tilde v
        + \frac{\zeta^2}{\nu}\sigma^2 d + 2\|Y'\|\sqrt{\tilde v}

    For the same ζ it is above v whatever the direction of the shift. Classical Runge-Kutta: order
    4 where the slope is smooth, order 2 over a step in which the policy reaches its cap.

    From 0 the equation has more than one solution (with ζ = 0: 0 and ‖Y'‖²τ²), and only the largest
    is a bound; so the start must be positive.

    Args:
        initial_second: The start, > 0.
        policy: ζ as a function of time and of the current value.
        dim: The dimension d.
        noise_std: The deviation σ of the label noise.
        horizon: The length of time T.
        steps: How many steps to take.
        batch_density: ν(τ) > 0, a number or a function of time.
        speed: ‖Y'(τ)‖ >= 0, a number or a function of time.

    Returns:
        The times and the values, each of shape (steps + 1,).

    Example:
        >>> times, v = upper_process(1.0, lambda tau, v: 0.0, dim=2, noise_std=1.0, horizon=2.0,
        ...                          steps=50, batch_density=1.0, speed=0.5)
        >>> bool(abs(v[-1] - (1.0 + 0.5 * 2.0) ** 2) < 1e-6)
        True

    Reference:
        Fahrbach et al. (2023), the upper process after Theorem 3.2.
    """
    start = number("initial_second", initial_second, low=0.0, open_low=True)
    dim = count("dim", dim)
    noise_std = number("noise_std", noise_std, low=0.0)
    nu, fast = of_time(batch_density), of_time(speed)

    def slope(tau: float, state: Array) -> Array:
        v = max(float(state[0]), 0.0)
        z = number("policy", policy(tau, v), low=0.0)
        n = z * z / number("batch_density", nu(tau), low=0.0, open_low=True)
        pull = ((dim + 1) * n - 2 * z) * v + n * noise_std**2 * dim
        return np.array([pull + 2 * number("speed", fast(tau), low=0.0) * np.sqrt(v)])

    times, path = _rk4(slope, np.array([start]), horizon, steps)
    return times, path[:, 0]


def gradient_second_moment(
    second: ArrayLike, *, dim: int, noise_std: float, batch_size: ArrayLike
) -> Array:
    r"""Return the exact mean squared length of a mini-batch gradient in linear regression.

    .. math:: E\|g\|^2 = v + \frac{(d+1) v + \sigma^2 d}{B}, \qquad x \sim N(0, I)

    The second term is the trace of the noise's covariance, by Lemma D.1. The first is what the
    SDE drops: its effect on one step is of order η² and vanishes with ε.

    Args:
        second: v = E‖θ - θ*‖².
        dim: The dimension d.
        noise_std: The deviation σ of the label noise.
        batch_size: B > 0.

    Returns:
        E‖g‖², of the shape of `second` and `batch_size` broadcast.

    Example:
        >>> float(gradient_second_moment(2.0, dim=3, noise_std=1.0, batch_size=1))
        13.0

    Reference:
        Fahrbach et al. (2023), Lemma D.1.
    """
    v = array("second", second, low=0.0)
    batch = array("batch_size", batch_size, low=0.0, open_low=True)
    dim = count("dim", dim)
    noise_std = number("noise_std", noise_std, low=0.0)
    out: Array = v + ((dim + 1) * v + noise_std**2 * dim) / batch
    return out


def discrete_moments(
    initial_mean: ArrayLike,
    initial_second: float,
    *,
    rates: ArrayLike,
    batch_sizes: ArrayLike,
    moves: ArrayLike,
    noise_std: float,
) -> Moments:
    r"""Return the exact moments of SGD on linear regression, step by step.

    .. math:: v_{t+1} = (1 - 2\eta_t) v_t + \eta_t^2 E\|g_t\|^2
        + \|s_t\|^2 - 2 (1 - \eta_t)\langle s_t, m_t\rangle, \qquad
        m_{t+1} = (1 - \eta_t) m_t - s_t

    with :math:`s_t = \theta^*_{t+1} - \theta^*_t`. No approximation: x ~ N(0, I), any B, no SDE.
    The rates and the path of the target must not depend on the draws.

    Args:
        initial_mean: E[θ_1 - θ*_1], a vector.
        initial_second: E‖θ_1 - θ*_1‖².
        rates: η_t, of shape (steps,).
        batch_sizes: B_t, a number or of shape (steps,).
        moves: s_t, of shape (steps, dim), or 0.
        noise_std: The deviation σ of the label noise.

    Returns:
        The moments at steps 1, ..., steps + 1; `times` counts them.

    Example:
        >>> out = discrete_moments([1.0], 1.0, rates=[0.5], batch_sizes=1, moves=0.0, noise_std=0.0)
        >>> out.second.tolist()
        [1.0, 0.75]

    Reference:
        Fahrbach et al. (2023), the update in the proof of Proposition 3.1, without
        the normal approximation.
    """
    mean = array("initial_mean", initial_mean, ndim=1)
    eta = array("rates", rates, low=0.0, ndim=1)
    steps, dim = eta.size, mean.size
    batch = np.broadcast_to(array("batch_sizes", batch_sizes, low=0.0, open_low=True), (steps,))
    s = np.broadcast_to(array("moves", moves), (steps, dim))
    m = np.empty((steps + 1, dim))
    v = np.empty(steps + 1)
    m[0], v[0] = mean, number("initial_second", initial_second, low=0.0)
    for t in range(steps):
        grad = gradient_second_moment(v[t], dim=dim, noise_std=noise_std, batch_size=batch[t])
        stay = (1 - eta[t]) * m[t]
        m[t + 1] = stay - s[t]
        v[t + 1] = (1 - 2 * eta[t]) * v[t] + eta[t] ** 2 * grad + s[t] @ s[t] - 2 * (s[t] @ stay)
    return Moments(np.arange(1.0, steps + 2), m, v)
