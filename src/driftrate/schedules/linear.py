"""Algorithm 1: the rate for online linear regression under shift."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar, Literal, Self

from driftrate.schedules import _checks
from driftrate.schedules._flow import flow
from driftrate.schedules.base import Array, Schedule, Signal, State, register

# Beyond this v the products of the update would overflow single precision.
_LARGEST = 1e18


@register
@dataclass(frozen=True)
class LinearRate(Schedule):
    r"""The optimal rate for linear regression with covariates x ~ N(0, I).

    Tracks v, a bound on the squared error E‖θ_t - θ*_t‖², and emits the rate that shrinks it most.
    Over one step of rate η with batch size B the error contracts as

        v ← (1 - η)² v + η² ((d + 1) v + σ² d)/B,

    which η_t = v B / ((B + d + 1) v + σ² d) minimises. `form` chooses how time is treated:

    - `"exact"`: discrete time. √v += γ_{t-1}; emit η_t; contract with B_t. The rate is below 1 by
      itself, needs no cap, and v bounds the true squared error even when nature runs away from the
      learner (Minkowski).
    - `"flow"`: the paper's continuous time, v' = (A r² - 2 r) v + S r² + 2 γ √v with
      A = (d + 1)/B, S = σ² d/B, r = min(v/(A v + S), max_rate), integrated accurately over one unit
      of time per step.
    - `"euler"`: Algorithm 1 as printed, ⌈1/kappa⌉ Euler steps of that flow; `"flow"` is its limit
      as kappa → 0. A v that a coarse kappa makes negative is set to 0 (the printed loop turns to
      NaN).

    Reads `Signal(batch_size=, shift=)`, where `shift` is γ_{t-1}.

    Args:
        dim: The dimension d.
        noise_std: The deviation σ of the label noise.
        max_rate: The largest rate ε, or None. `"flow"` and `"euler"` should have one: their rates
            can exceed 2, where SGD diverges.
        initial_error: The squared distance ‖θ_1 - θ*_1‖² at the start. Guess high: too high costs
            little, too low costs many times the regret, and 0 (as printed) never moves.
        form: `"exact"`, `"flow"` or `"euler"`.
        kappa: The length of an Euler step, in (0, 1]; read by `"euler"` alone.

    Example:
        >>> import driftrate as dr
        >>> rate = dr.LinearRate(dim=100, noise_std=2.0, max_rate=0.1)
        >>> state = rate.init()
        >>> for shift in [0.0, 0.0, 5.0]:
        ...     eta, state = rate.update(state, dr.Signal(batch_size=100, shift=shift))
        >>> eta
        0.1

    Reference:
        Fahrbach, Javanmard, Mirrokni and Worah (2023), Algorithm 1 and Theorem 3.3.
    """

    dim: int
    noise_std: float
    max_rate: float | None = None
    initial_error: float = 1e4
    form: Literal["exact", "flow", "euler"] = "exact"
    kappa: float = 0.1

    signals: ClassVar[tuple[str, ...]] = ("batch_size", "shift")

    def __post_init__(self) -> None:
        _checks.integer(self, "dim", low=1)
        _checks.number(self, "noise_std", low=0.0)
        if self.max_rate is not None:
            _checks.positive(self, "max_rate")
        _checks.number(self, "initial_error", low=0.0, high=_LARGEST)
        _checks.choice(self, "form", ("exact", "flow", "euler"))
        _checks.number(self, "kappa", low=0.0, high=1.0, open_low=True)

    @classmethod
    def example(cls) -> Self:  # noqa: D102
        return cls(dim=16, noise_std=0.5, max_rate=0.5)

    def _start(self) -> State:
        return {"rate": 0.0, "v": self.initial_error}

    def _step(self, xp: Any, state: State, signal: Signal) -> tuple[Array, State]:
        batch, shift = signal.batch_size, signal.shift
        a, s = (self.dim + 1.0) / batch, self.noise_std**2 * self.dim / batch
        v = state["v"]
        if self.form == "exact":
            root = xp.sqrt(v) + shift
            v = root * root
            v = xp.where(v < _LARGEST, v, _LARGEST)
            rate = self._best(xp, v, a + 1.0, s)
            rest = 1.0 - rate
            return rate, {"rate": rate, "v": rest * rest * v + rate * rate * (a * v + s)}
        if self.form == "flow":
            v = flow(xp, v, a, s, self.max_rate, shift)
        else:
            for _ in range(ceil(1.0 / self.kappa)):
                r = self._best(xp, v, a, s)
                drift = (a * r - 2.0) * r * v + s * r * r + 2.0 * shift * xp.sqrt(v)
                v = v + self.kappa * drift
                v = xp.where(v > 0.0, v, 0.0 * v)
        v = xp.where(v < _LARGEST, v, _LARGEST)
        rate = self._best(xp, v, a, s)
        return rate, {"rate": rate, "v": v}

    def _best(self, xp: Any, v: Array, a: Array, s: Array) -> Array:
        """Return min(v / (a v + s), max_rate); where v = s = 0, the limit 1/a."""
        weight = a * v + s
        some = weight > 0.0
        rate = xp.where(some, v / xp.where(some, weight, 1.0), 1.0 / a)
        cap = self.max_rate
        return rate if cap is None else xp.where(rate < cap, rate, cap)
