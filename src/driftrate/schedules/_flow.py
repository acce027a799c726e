"""One unit of time of the joint flow that Algorithm 1 discretises, accurate and free of branches.

With u = √v, A = (d + 1)/B, S = σ² d/B and r = min(v / (A v + S), cap), the flow

    v' = (A r² - 2 r) v + S r² + 2 γ √v     becomes     u' = γ - r (1 - A r / 2) u + S r² / (2 u).

Its right-hand side is smooth but for the kink v = cap S / (1 - cap A), above which the cap binds.
A scalar autonomous flow is monotone, so it crosses the kink at most once: integrate the leg before
it, find the time of the crossing from dt/du = 1/u' (Hénon's trick), then integrate the leg after
it. Each leg takes a fixed number of exponential Rosenbrock steps of order four, exact for linear
flows and stable for stiff ones (`exprb43` of Hochbruck and Ostermann, Acta Numerica 19, 2010).
"""

from __future__ import annotations

from collections.abc import Callable
from math import factorial
from typing import Any, NamedTuple

Array = Any


class Field(NamedTuple):
    """A scalar autonomous flow."""

    slope: Callable[[Array], Array]  # u -> u'
    bend: Callable[[Array], Array]  # u -> du'/du


# The steps of a leg, as shares of it: short at first, where a jump changes u fastest.
_STEPS = 8
_SHARES = tuple((2 * i + 1) / _STEPS**2 for i in range(_STEPS))
_SERIES = [1.0 / factorial(k + 4) for k in range(9)]  # φ₄ where |z| < 1/2, to 1e-12
# Gauss-Legendre on [0, 1]: the crossing lies inside one step, where 1/u' is smooth.
_NODES = (0.06943184420297371, 0.33000947820757187, 0.6699905217924281, 0.9305681557970263)
_WEIGHTS = (0.17392742256872693, 0.32607257743127307, 0.32607257743127307, 0.17392742256872693)


def flow(xp: Any, v: Array, a: Array, s: Array, cap: float | None, shift: Array) -> Array:
    """Return v after one unit of time.

    For rates up to 1 its relative error is below 1e-4 (6e-5 where a jump crosses the kink), and
    mostly that of rounding; for larger rates v stays finite and non-negative.
    """
    u = xp.sqrt(v)
    if cap is None:
        end = _leg(xp, _field(xp, a, s, shift, v < 0.0, 1.0), u, 1.0, v < 0.0)[0]
        return end * end
    room = 1.0 - cap * a
    binds = room > 0.0  # elsewhere v / (A v + S) stays below the cap by itself
    edge = xp.sqrt(cap * s / xp.where(binds, room, 1.0))
    above = u >= edge
    before = _field(xp, a, s, shift, binds & above, cap)
    end, reached, elapsed, crossed = _leg(xp, before, u, 1.0, binds, edge, above)
    # The time to the edge inside the step that crosses it, by quadrature of 1/u'.
    span = xp.where(crossed, edge, reached) - reached
    inside = 0.0 * span
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        slope = before.slope(reached + node * span)
        moving = slope * span > 0.0
        inside = inside + xp.where(moving, weight * span / xp.where(moving, slope, 1.0), 0.0 * span)
    left = 1.0 - elapsed - inside
    left = xp.where(crossed & (left > 0.0), left, 0.0 * left)
    after = _field(xp, a, s, shift, binds & xp.logical_not(above), cap)
    end = xp.where(crossed, _leg(xp, after, xp.where(crossed, edge, u), left, binds)[0], end)
    return end * end


def _field(xp: Any, a: Array, s: Array, shift: Array, capped: Array, cap: float) -> Field:
    """Return the right-hand side and its derivative, for one side of the kink."""

    def rates(u: Array) -> tuple[Array, Array]:
        square = u * u
        weight = a * square + s
        weight = xp.where(weight > 0.0, weight, a)  # u = 0 without noise: the rate is 0 there
        rate = xp.where(capped, cap, square / weight)
        return rate, xp.where(capped, cap / xp.where(u > 0.0, u, 1.0), u / weight)  # rate / u

    def slope(u: Array) -> Array:
        rate, ratio = rates(u)
        return shift - rate * ((1.0 - 0.5 * a * rate) * u - 0.5 * s * ratio)

    def bend(u: Array) -> Array:
        rate, ratio = rates(u)
        free = -0.5 * rate * (3.0 - 2.0 * a * rate)
        return xp.where(capped, rate * (0.5 * a * rate - 1.0) - 0.5 * s * ratio * ratio, free)

    return Field(slope, bend)


def _leg(
    xp: Any,
    field: Field,
    u: Array,
    span: Array,
    binds: Array,
    edge: Array = None,
    above: Array = None,
) -> tuple[Array, Array, Array, Array]:
    """Integrate; with an edge, also return the last point and time before it, and if u crossed."""
    reached, elapsed, crossed = u, 0.0 * u, u < 0.0
    for share in _SHARES:
        h = share * span
        u = _rosenbrock(xp, field, u, h)
        if edge is not None:
            crossed = binds & xp.where(above, u < edge, u >= edge)
            reached = xp.where(crossed, reached, u)
            elapsed = xp.where(crossed, elapsed, elapsed + h)
    return u, reached, elapsed, crossed


def _rosenbrock(xp: Any, field: Field, u: Array, h: Array) -> Array:
    slope, bend = field.slope(u), field.bend(u)
    z = h * bend
    phi1, phi3, phi4 = _phi(xp, z)
    middle = u + 0.5 * h * _phi1(xp, 0.5 * z) * slope
    d2 = field.slope(middle) - slope - bend * (middle - u)
    last = u + h * phi1 * (slope + d2)
    d3 = field.slope(last) - slope - bend * (last - u)
    step = phi1 * slope + (16.0 * phi3 - 48.0 * phi4) * d2 + (12.0 * phi4 - 2.0 * phi3) * d3
    u = u + h * step
    return xp.where(u > 0.0, u, 0.0 * u)


def _phi1(xp: Any, z: Array) -> Array:
    """Return (e^z - 1)/z."""
    flat = z == 0.0
    return xp.where(flat, 1.0, xp.expm1(z) / xp.where(flat, 1.0, z))


def _phi(xp: Any, z: Array) -> tuple[Array, Array, Array]:
    """Return φ₁, φ₃ and φ₄: by series where |z| < 1/2, by recursion elsewhere."""
    small = z * z < 0.25
    near = xp.where(small, z, 0.0 * z)
    series = 0.0 * near
    for coefficient in reversed(_SERIES):
        series = series * near + coefficient
    far = xp.where(small, -1.0, z)
    far3 = ((_phi1(xp, far) - 1.0) / far - 0.5) / far
    phi3 = xp.where(small, near * series + 1.0 / 6.0, far3)
    phi4 = xp.where(small, series, (far3 - 1.0 / 6.0) / far)
    return _phi1(xp, z), phi3, phi4
