"""The rate that minimises the non-convex bound on the cumulative squared gradient norm."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar, Self

from driftrate.schedules import _checks
from driftrate.schedules.base import Array, Schedule, Signal, State, register


@register
@dataclass(frozen=True)
class NonconvexRate(Schedule):
    r"""A closed form that rises with the loss and with its shift.

    The sequential minimiser of the bound on Σ‖∇ℓ̄_t(θ_t)‖² for L-smooth losses is

        η_t = 2 √b / (L (√b + √(b + 2 σ²/B_t))),   b = L (γ_t + ℓ̄_t(θ_t)),

    which is the paper's formula without its cancellation. Reads `Signal(batch_size=, loss=,
    loss_shift=)`. The paper's shift is a supremum over all weights, infinite for regression; its
    proof uses the change of the loss at the current weights, which is what `loss_shift` means
    here. Feeding this batch's own loss makes the rate depend on this batch; the bound holds with
    the expected or the previous loss.

    Args:
        smoothness: L, a bound on the curvature of the expected loss. Every rate is at most 1/L.
        noise_std: The deviation σ of one sample's gradient, √E‖∇ℓ - E∇ℓ‖².

    Example:
        >>> import driftrate as dr
        >>> rate = dr.NonconvexRate(smoothness=4.0, noise_std=1.0)
        >>> signal = dr.Signal(batch_size=64, loss=0.1, loss_shift=0.0)
        >>> eta, state = rate.update(rate.init(), signal)
        >>> round(eta, 4)
        0.2453

    Reference:
        Fahrbach, Javanmard, Mirrokni and Worah (2023), Theorem 5.1 and the closed form below it.
    """

    smoothness: float
    noise_std: float

    signals: ClassVar[tuple[str, ...]] = ("batch_size", "loss", "loss_shift")

    def __post_init__(self) -> None:
        _checks.number(self, "smoothness", low=1e-30, high=1e30)
        _checks.number(self, "noise_std", low=0.0)

    @classmethod
    def example(cls) -> Self:  # noqa: D102
        return cls(smoothness=2.0, noise_std=2.0)

    def _start(self) -> State:
        return {"rate": 0.0}

    def _step(self, xp: Any, state: State, signal: Signal) -> tuple[Array, State]:
        root = sqrt(self.smoothness) * xp.sqrt(signal.loss + signal.loss_shift)
        weight = root + xp.hypot(root, self.noise_std * xp.sqrt(2.0 / signal.batch_size))
        some = weight > 0.0
        limit = 1.0 / self.smoothness
        share = xp.where(some, 2.0 * root / xp.where(some, weight, 1.0), 1.0)
        rate = limit * xp.where(share < 1.0, share, 1.0)
        return rate, {"rate": rate}
