"""The rate that minimises the convex regret bound step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from driftrate.schedules import _checks
from driftrate.schedules.base import Array, Schedule, Signal, State, register


@register
@dataclass(frozen=True)
class ConvexRate(Schedule):
    r"""Two thresholds that rise with the shift, and a dead zone between them.

    The sequential minimiser of the regret bound for L-smooth convex losses is

        η_t = min(max(η_{t-1}, τ₁), τ₂),   τ(b) = 2 √b / (L √b + √(L² b + 4 σ²/B_t)),
        b₁ = γ² + 2 D γ,   b₂ = (γ + D)²,

    which is the paper's formula without its cancellation. The first rate is τ₂, the minimiser of
    the bound's first term. Reads `Signal(batch_size=, shift=)`; the paper prints γ_t, the shift
    that is still to come: here it is γ_{t-1}, the newest one revealed.

    Args:
        smoothness: L, a bound on the curvature of the expected loss (with covariance Σ: ‖Σ‖ for
            linear, ‖Σ‖/4 for logistic regression). Every rate is at most 1/L.
        noise_std: The deviation σ of one sample's gradient, √E‖∇ℓ - E∇ℓ‖² (not of the labels).
        diameter: D, a bound on the distance between weights and oracle. A larger one means
            larger rates and a wider dead zone.

    Example:
        >>> import driftrate as dr
        >>> rate = dr.ConvexRate(smoothness=0.25, noise_std=8.0, diameter=128.0)
        >>> eta, state = rate.update(rate.init(), dr.Signal(batch_size=256, shift=0.5))
        >>> round(eta, 4)
        3.999

    Reference:
        Fahrbach, Javanmard, Mirrokni and Worah (2023), Proposition 4.3.
    """

    smoothness: float
    noise_std: float
    diameter: float

    signals: ClassVar[tuple[str, ...]] = ("batch_size", "shift")

    def __post_init__(self) -> None:
        _checks.number(self, "smoothness", low=1e-30, high=1e30)
        _checks.number(self, "noise_std", low=0.0)
        _checks.positive(self, "diameter")

    @classmethod
    def example(cls) -> Self:  # noqa: D102
        return cls(smoothness=1.0, noise_std=4.0, diameter=4.0)

    def _start(self) -> State:
        return {"rate": 0.0}

    def _step(self, xp: Any, state: State, signal: Signal) -> tuple[Array, State]:
        noise = 2.0 * self.noise_std / xp.sqrt(signal.batch_size)
        shift, last = signal.shift, state["rate"]
        low = self._threshold(xp, xp.sqrt(shift) * xp.sqrt(shift + 2.0 * self.diameter), noise)
        high = self._threshold(xp, shift + self.diameter, noise)
        # A last rate of 0 means that there is none yet: η_0 = ∞.
        last = xp.where(last > 0.0, last, high)
        rate = xp.minimum(xp.maximum(last, low), high)
        return rate, {"rate": rate}

    def _threshold(self, xp: Any, root: Array, noise: Array) -> Array:
        """Return τ(b) from √b and 2σ/√B; without noise, 1/L."""
        reach = self.smoothness * root
        weight = reach + xp.hypot(reach, noise)
        some = weight > 0.0
        limit = 1.0 / self.smoothness
        tau = xp.where(some, 2.0 * root / xp.where(some, weight, 1.0), limit)
        return xp.where(tau < limit, tau, limit)
