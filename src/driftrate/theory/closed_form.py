"""The optimal rate when nothing shifts, in closed form (Lemma 3.6, corrected)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from driftrate.theory._checks import Array, array, number


class NoShift(NamedTuple):
    """The solution without shift.

    Args:
        second: ṽ(τ).
        rate: ζ(τ).
    """

    second: Array
    rate: Array


def _problem(initial: float, a: float, b: float) -> tuple[float, float, float]:
    return (
        number("initial", initial, low=0.0, open_low=True),
        number("a", a, low=0.0, open_low=True),
        number("b", b, low=0.0),
    )


def switch_time(initial: float, a: float, b: float) -> float:
    r"""Return the time τ_* until which the rate stays at its cap.

    .. math:: \tau_* = \frac{1}{2 - a} \log\left((1 - a)\left(\tilde v_0 \frac{2 - a}{b} - 1\right)
        \right) \quad\text{if } a < 1 \text{ and } \tilde v_0 > \frac{b}{1 - a}, \text{ else } 0

    The paper prints the formula with a positive part for all a and ṽ_0, although its logarithm may
    be of a negative number. For a >= 1 the rate ṽ/(aṽ + b) is below 1/a <= 1 and never reaches the
    cap. For b = 0 and a < 1 it never leaves the cap, and the time is infinite.

    Args:
        initial: ṽ_0 > 0.
        a: ε(d + 1)/B > 0.
        b: εσ²d/B >= 0.

    Returns:
        τ_*, possibly infinite.

    Example:
        >>> round(switch_time(1.0, 0.1, 0.3), 4)
        0.8256
        >>> switch_time(0.1, 0.1, 0.3), switch_time(5.0, 1.5, 0.3)
        (0.0, 0.0)

    Reference:
        Fahrbach et al. (2023), Lemma 3.6.
    """
    initial, a, b = _problem(initial, a, b)
    if a >= 1.0 or initial * (1.0 - a) <= b:
        return 0.0
    if b == 0.0:
        return float("inf")
    # Three logarithms, not one: the quotient ṽ_0/b may overflow.
    ratio = np.log(1.0 - a) + np.log(initial * (2.0 - a) - b) - np.log(b)
    return float(ratio / (2.0 - a))


def tail_constant(initial: float, a: float, b: float) -> float:
    r"""Return the constant C of the implicit solution after τ_*.

    .. math:: a \ln\frac{1}{\tilde v_\tau} + \frac{b}{\tilde v_\tau} = \tau + C, \qquad
        C = a \ln\frac{1}{v} + \frac{b}{v} - \tau_*, \quad
        v = \min\left(\tilde v_0, \frac{b}{1-a}\right)

    The paper takes v = b/(1 - a) in all cases, which is right only when ṽ_0 is above that; for
    a >= 1 there is no such value and v = ṽ_0.

    Args:
        initial: ṽ_0 > 0.
        a: ε(d + 1)/B > 0.
        b: εσ²d/B >= 0; for b = 0 and a < 1 there is no second regime and C is NaN.

    Returns:
        C.

    Example:
        >>> round(tail_constant(1.0, 0.1, 0.3), 4)
        0.1843

    Reference:
        Fahrbach et al. (2023), Lemma 3.6, second regime.
    """
    initial, a, b = _problem(initial, a, b)
    start = switch_time(initial, a, b)
    if np.isinf(start):
        return float("nan")
    v = b / (1.0 - a) if start > 0.0 else initial
    return float(-a * np.log(v) + b / v - start)


def no_shift(times: ArrayLike, initial: float, a: float, b: float) -> NoShift:
    r"""Return the optimal rate and the second moment when nothing shifts.

    .. math:: \tilde v_\tau = \left(\tilde v_0 - \tfrac{b}{2-a}\right) e^{-(2-a)\tau}
        + \tfrac{b}{2-a}, \quad \zeta = 1 \qquad (\tau \le \tau_*)

    and after τ_* the root of the equation of `tail_constant` with ζ = ṽ/(aṽ + b). The root is found
    by Newton's method in w = ln(v/ṽ), where v is the value at τ_*: there the equation is increasing
    and convex, so that the iteration descends to the root from above.

    Args:
        times: τ >= 0, of any shape.
        initial: ṽ_0 > 0.
        a: ε(d + 1)/B > 0.
        b: εσ²d/B >= 0.

    Returns:
        ṽ(τ) and ζ(τ), of the shape of `times`.

    Example:
        >>> out = no_shift([0.0, 0.5, 10.0], 1.0, 0.1, 0.3)
        >>> out.second.round(4), out.rate.round(4)
        (array([1.    , 0.4836, 0.0305]), array([1.    , 1.    , 0.1007]))

    Reference:
        Fahrbach et al. (2023), Lemma 3.6, corrected.
    """
    tau = array("times", times, low=0.0)
    initial, a, b = _problem(initial, a, b)
    start = switch_time(initial, a, b)
    capped = tau <= start if start > 0.0 else np.zeros(tau.shape, dtype=bool)
    second = np.empty_like(tau)
    if capped.any():
        floor = b / (2.0 - a)
        second[capped] = floor + (initial - floor) * np.exp(-(2.0 - a) * tau[capped])
    if not capped.all():
        v = b / (1.0 - a) if start > 0.0 else initial
        second[~capped] = _free(tau[~capped] - start, v, a, b)
    # Without noise ṽ may underflow, and the fraction with it, whose value is 1/a throughout.
    free = second / (a * second + b) if b > 0.0 else np.full_like(second, 1.0 / a)
    return NoShift(second, np.where(capped, 1.0, free))


def _free(elapsed: Array, v: float, a: float, b: float) -> Array:
    """Solve v' = -v²/(av + b) from v."""
    if b == 0.0:
        decayed: Array = v * np.exp(-elapsed / a)
        return decayed
    # In w = ln(v/ṽ) the equation is a w + q (e^w - 1) = elapsed, without cancellation.
    q = float(np.exp(np.clip(np.log(b) - np.log(v), -640.0, 640.0)))
    # Both of these bound the root from above: the second keeps e^w from overflowing.
    w = np.minimum(elapsed / (a + q), np.log1p(elapsed / q))
    for _ in range(100):
        step = (a * w + q * np.expm1(w) - elapsed) / (a + q * np.exp(w))
        w = w - step
        if (np.abs(step) <= 4e-16 * np.abs(w)).all():
            break
    out: Array = v * np.exp(-w)
    return out


def tail(times: ArrayLike, initial: float, a: float, b: float) -> NoShift:
    r"""Return the 1/τ tail of the second moment and of the rate.

    .. math:: \tilde v_\tau \sim \frac{b}{\tau + C}, \qquad \zeta(\tau) \sim \frac{1}{a + C + \tau}

    The ratio of the exact solution to it tends to 1, but slowly: it is exactly
    :math:`1 + a \frac{\tilde v}{b} \ln\frac{1}{\tilde v}`, i.e. off by about a ln(τ)/τ.

    Args:
        times: τ, where τ + C > 0.
        initial: ṽ_0 > 0.
        a: ε(d + 1)/B > 0.
        b: εσ²d/B > 0; without noise the error falls exponentially and there is no such tail.

    Returns:
        The two approximations, of the shape of `times`.

    Example:
        >>> ratio = no_shift(1e6, 1.0, 0.1, 0.3).second / tail(1e6, 1.0, 0.1, 0.3).second
        >>> round(float(ratio), 9)
        1.000001502

    Reference:
        Fahrbach et al. (2023), Lemma 3.6.
    """
    tau = array("times", times, low=0.0)
    initial, a, b = _problem(initial, a, number("b", b, low=0.0, open_low=True))
    c = tail_constant(initial, a, b)
    return NoShift(b / (tau + c), 1.0 / (a + c + tau))
