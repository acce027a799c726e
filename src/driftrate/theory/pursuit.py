"""Regret bounds of the recursion of `Pursuit`, coordinate by coordinate (docs/pursuit_bound.md).

A step is ĝ = g clipped at `spike` · √((1 - k) v), and where ĝ ≠ 0, v ← k v + ĝ² and the fast point
goes f ← f - δ w - ℓ ĝ/√v. The weights w = f - m, at which g is taken, lie m = b u behind it. The
weight of the step in the bounds is a = √v/ℓ. Arrays have steps last; what stands before them are
coordinates, each with a bound of its own: their sum bounds the regret.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from driftrate.errors import ConfigError
from driftrate.theory._checks import Array, array, number
from driftrate.theory.bounds import _Terms


@dataclass(frozen=True, eq=False)
class PursuitPath(_Terms):
    """The terms of the bound that follows the trajectory, each of shape (..., steps).

    Args:
        approach: a_t((f_t - u_t)² - (f_{t+1} - u_t)²)/2.
        noise: ĝ_t²/(2 a_t (1 - δ_t)).
        decay: δ_t a_t((m_t - u_t)² - (f_t - u_t)²)/2.
        clipped: (g_t - ĝ_t)(f_t - u_t).
        bet: -g_t m_t, what lying behind has cost; below 0 where it has paid.
    """

    approach: Array
    noise: Array
    decay: Array
    clipped: Array
    bet: Array


@dataclass(frozen=True, eq=False)
class PursuitBound(_Terms):
    """The terms of the bound that knows distances by their largest, each of shape (..., steps).

    Args:
        travel: D² a_1/2 in the first step, D²(a_t - a_{t-1})_+/2 after it.
        shift: D a_t |u_{t+1} - u_t|.
        noise: ĝ_t²/(2 a_t (1 - δ_t)).
        decay: δ_t a_t U²/2.
        clipped: D |g_t - ĝ_t|.
        bet: -g_t m_t.
    """

    travel: Array
    shift: Array
    noise: Array
    decay: Array
    clipped: Array
    bet: Array


def pursuit_path(
    gradients: ArrayLike,
    lengths: ArrayLike,
    *,
    weights: ArrayLike,
    comparators: ArrayLike,
    keep: float,
    spike: float,
    decays: ArrayLike = 0.0,
    behind: ArrayLike = 0.0,
) -> PursuitPath:
    r"""Return the bound on the regret of `Pursuit` that follows its weights.

    .. math:: \sum_t g_t(w_t - u_t) \le \sum_t \frac{a_t}{2}\left((f_t-u_t)^2 - (f_{t+1}-u_t)^2
        \right) + \frac{\hat g_t^2}{2a_t(1-\delta_t)} + \frac{\delta_t a_t}{2}\left((m_t-u_t)^2 -
        (f_t-u_t)^2\right) + (g_t-\hat g_t)(f_t-u_t) - g_t m_t

    for any u_t; with equality where δ_t = 0. The left side, summed over coordinates, is at least
    the regret of convex losses.

    Args:
        gradients: g_t at w_t, of shape (..., steps).
        lengths: ℓ_t = lr · first · s · c_t, broadcast against the gradients.
        weights: The fast points f_1 to f_{T+1}, of shape (..., steps + 1): the weights and
            `behind`.
        comparators: u_t, broadcast against the gradients.
        keep: k.
        spike: What a gradient may be over its usual size.
        decays: δ_t, what a weight loses of itself in a step with a gradient.
        behind: m_t = b_t u_t, how far the weights lie behind the fast point.

    Returns:
        The terms.

    Example:
        >>> bound = pursuit_path([1.0], 0.5, weights=[1.0, 0.5], comparators=0.0, keep=0.99,
        ...                      spike=30.0)
        >>> float(bound.total)
        1.0
    """
    grads, clipped, weight, noise, decay = _step(gradients, lengths, keep, spike, decays)
    path = array("weights", weights, ndim=1)
    if path.shape[-1] != grads.shape[-1] + 1:
        raise ConfigError(
            f"weights must hold one entry more than the {grads.shape[-1]} gradients: f_1 to"
            f" f_(T+1), got {path.shape[-1]}"
        )
    aims, late = array("comparators", comparators), array("behind", behind)
    before, after = path[..., :-1] - aims, path[..., 1:] - aims
    terms = (
        weight * (before**2 - after**2) / 2,
        noise,
        decay * weight * ((late - aims) ** 2 - before**2) / 2,
        (grads - clipped) * before,
        -grads * late,
    )
    return PursuitPath(*np.broadcast_arrays(*terms))


def pursuit_bound(
    gradients: ArrayLike,
    lengths: ArrayLike,
    *,
    shifts: ArrayLike,
    diameter: ArrayLike,
    keep: float,
    spike: float,
    decays: ArrayLike = 0.0,
    reach: ArrayLike = 0.0,
    behind: ArrayLike = 0.0,
) -> PursuitBound:
    r"""Return the bound on the regret of `Pursuit` against comparators that move.

    .. math:: \frac{D^2}{2}\Big(a_1 + \sum_{t\ge2}(a_t - a_{t-1})_+\Big) + \sum_t D a_t
        |u_{t+1}-u_t| + \frac{\hat g_t^2}{2a_t(1-\delta_t)} + \frac{\delta_t a_t U^2}{2}
        + D|g_t-\hat g_t| - g_t m_t

    Args:
        gradients: g_t at w_t, of shape (..., steps).
        lengths: ℓ_t = lr · first · s · c_t, broadcast against the gradients.
        shifts: |u_{t+1} - u_t|, broadcast against the gradients; 0 in the last step.
        diameter: D of each coordinate, at least |f_t - u_t| and |f_{t+1} - u_t| in every step.
        keep: k.
        spike: What a gradient may be over its usual size.
        decays: δ_t, what a weight loses of itself in a step with a gradient.
        reach: U of each coordinate, at least |u_t - m_t| in every step; without decay it does not
            matter.
        behind: m_t, as in `pursuit_path`.

    Returns:
        The terms.

    Example:
        >>> bound = pursuit_bound([1.0, -1.0], 0.5, shifts=[0.0, 0.0], diameter=1.0, keep=0.99,
        ...                       spike=30.0)
        >>> [round(float(x), 3) for x in bound.noise]
        [0.25, 0.177]
    """
    grads, clipped, weight, noise, decay = _step(gradients, lengths, keep, spike, decays)
    size, far = (
        array(name, value, low=0.0)[..., None]
        for name, value in (("diameter", diameter), ("reach", reach))
    )
    rise = np.diff(weight, axis=-1, prepend=np.zeros_like(weight[..., :1]))
    terms = (
        size**2 * np.maximum(rise, 0.0) / 2,
        size * weight * array("shifts", shifts, low=0.0),
        noise,
        decay * weight * far**2 / 2,
        size * np.abs(grads - clipped),
        -grads * array("behind", behind),
    )
    return PursuitBound(*np.broadcast_arrays(*terms))


def pursuit_ceiling(
    steps: int,
    *,
    gradient: float,
    least: float,
    length: float,
    low: float,
    high: float,
    rises: float,
    shift: float,
    diameter: float,
    keep: float,
    spike: float,
    decay: float = 0.0,
    reach: float = 0.0,
    behind: float = 0.0,
) -> float:
    r"""Return what `pursuit_bound` is at most for one coordinate, whatever the gradients are.

    .. math:: \frac{nG}{L c_-}\Big(\frac{D^2}{2}(1 + qT + R) + DP + \frac{\delta T U^2}{2}\Big)
        + \frac{L c_+ nG(1 + qT)}{1-\delta} + GmT + DG\,\frac{2\ln(nG/g) + T\ln(1/k)}
        {\ln(1 + \mathrm{spike}^2(1-k)/k)}

    with n = 1/√(1 - k) and q = 1 - √k. It grows with T for every k below 1: what forgets pays for
    it in every step.

    Args:
        steps: T.
        gradient: G, at least |g_t| in every step.
        least: g, the size of the first gradient that is not 0.
        length: L = lr · first · s.
        low: The smallest rate c.
        high: The largest rate c.
        rises: R, at least Σ_t (1 - c_t/c_{t+1})_+: how far log c rose, all in all.
        shift: P, the length of the comparators' path.
        diameter: D, as in `pursuit_bound`.
        keep: k.
        spike: What a gradient may be over its usual size.
        decay: The largest δ.
        reach: U, as in `pursuit_bound`.
        behind: m, at least |m_t| in every step.

    Returns:
        The bound.

    Example:
        >>> round(pursuit_ceiling(1000, gradient=1.0, least=1.0, length=1.0, low=1.0, high=1.0,
        ...                       rises=0.0, shift=0.0, diameter=1.0, keep=0.99, spike=30.0), 1)
        96.5
    """
    keep, spike = _constants(keep, spike)
    memory, lost = (1 - keep) ** -0.5, 1 - keep**0.5
    total = number("steps", steps, low=1.0)
    least = number("least", least, low=0.0, open_low=True)
    low = number("low", low, low=0.0, open_low=True)
    high = number("high", high, low=low)
    length = number("length", length, low=0.0, open_low=True)
    far, root = number("diameter", diameter, low=0.0), memory * number("gradient", gradient)
    decay = number("decay", decay, low=0.0)
    still = far**2 / 2 * (1 + lost * total + number("rises", rises, low=0.0))
    moving = far * number("shift", shift, low=0.0) + decay * total * reach**2 / 2
    noise = length * high * root * (1 + lost * total) / (1 - decay)
    clips = (2 * np.log(root / least) - total * np.log(keep)) / np.log(
        1 + spike**2 * (1 - keep) / keep
    )
    lag = gradient * number("behind", behind, low=0.0) * total
    return float(root / (length * low) * (still + moving) + noise + lag + far * gradient * clips)


def _constants(keep: float, spike: float) -> tuple[float, float]:
    keep, spike = number("keep", keep, low=0.0), number("spike", spike, low=0.0)
    if keep >= 1.0:
        raise ConfigError(f"keep must be below 1, got {keep}")
    return keep, spike


def _step(
    gradients: ArrayLike, lengths: ArrayLike, keep: float, spike: float, decays: ArrayLike
) -> tuple[Array, Array, Array, Array, Array]:
    """Return g, ĝ, a, the noise and δ (0 where ĝ is), all steps of the recursion from v = 0."""
    grads = array("gradients", gradients, ndim=1)
    length = array("lengths", lengths, low=0.0, open_low=True)
    decay = array("decays", decays, low=0.0)
    if (decay >= 1.0).any():
        raise ConfigError(f"decays must be below 1, got {decay.max():g}")
    keep, spike = _constants(keep, spike)
    clipped, root = np.zeros_like(grads), np.zeros_like(grads)
    square = np.zeros_like(grads[..., 0])
    for t in range(grads.shape[-1]):
        most = spike * np.sqrt((1 - keep) * square)
        now = np.where(square > 0, np.clip(grads[..., t], -most, most), grads[..., t])
        square = np.where(now == 0, square, keep * square + now * now)
        clipped[..., t], root[..., t] = now, np.sqrt(square)
    weight = root / length
    noise = clipped**2 * length / (2 * np.where(root > 0, root, 1.0) * (1 - decay))
    return grads, clipped, weight, noise, np.where(clipped == 0, 0.0, decay)
