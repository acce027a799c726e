"""Estimates of the shift from the learner's own steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from driftrate.errors import ConfigError
from driftrate.schedules import _checks
from driftrate.schedules.base import Array, Estimator, Signal, State

# Beyond these a product of the update would overflow single precision.
_LONGEST_STEP = 1e9
_LARGEST = 1e18
_NOISIEST = 1e12
_FARTHEST = 1e30


def _check_beta(owner: ShiftEMA | DebiasedShift) -> None:
    _checks.number(owner, "beta", low=0.0, high=1.0)
    if owner.beta == 1.0:
        raise ConfigError(f"{type(owner).__name__}.beta must be < 1, got 1.0: it would never move")


@dataclass(frozen=True)
class ShiftEMA(Estimator):
    r"""The paper's estimate: an exponential average of the learner's own step lengths.

    γ̂_t = β γ̂_{t-1} + (1 - β) ‖θ_t - θ_{t-1}‖. It counts the learner's noise as shift, which
    raises the rate, which lengthens the steps: a capped schedule stays at its cap. It is here to
    show that; prefer `DebiasedShift`.

    Reads `Signal(step_length=)`, provides `shift`.

    Args:
        beta: β, the weight of the past, in [0, 1).

    Example:
        >>> import driftrate as dr
        >>> estimator = dr.estimate.ShiftEMA(beta=0.5)
        >>> value, state = estimator.update(estimator.init(), dr.Signal(step_length=1.0))
        >>> value
        0.5

    Reference:
        Fahrbach, Javanmard, Mirrokni and Worah (2023), the remark at Algorithm 1.
    """

    beta: float = 0.9

    signals: ClassVar[tuple[str, ...]] = ("step_length",)
    provides: ClassVar[str] = "shift"

    def __post_init__(self) -> None:
        _check_beta(self)

    def _start(self) -> State:
        return {"estimate": 0.0}

    def _step(self, xp: Any, state: State, signal: Signal) -> tuple[Array, State]:
        value = self.beta * state["estimate"] + (1.0 - self.beta) * signal.step_length
        return value, {"estimate": value}


@dataclass(frozen=True)
class DebiasedShift(Estimator):
    r"""The shift from the learner's steps, less what its own noise contributed to them.

    A step of SGD is η(∇ + ξ), with ξ the noise of the batch. Of its squared length η²‖g‖² the
    share 1 - spread/grad_sq, measured on the same gradient, is signal: unbiased for η²‖∇‖² where η
    was chosen before that batch. That is not enough: past noise displaced the weights, and the
    signal now carries them back, so that at standstill η²‖∇‖² ≈ η²·spread·ηh/(2 - ηh) and not 0
    (h the curvature), which keeps a rate many times too high. So the squared displacement by the
    learner's own noise is tracked,

        n_t = (1 - ηh)² n_{t-1} + η² spread_{t-1},

    and its return (ηh)² n_{t-1} is subtracted too, with η = ‖θ_t - θ_{t-1}‖ / √grad_sq_{t-1}:

        m_t = ‖θ_t - θ_{t-1}‖² (1 - spread_{t-1}/grad_sq_{t-1}) - (ηh)² n_{t-1},
        γ̂_t² = max(0, Σ_s β^{t-s} m_s / Σ_s β^{t-s}).

    The squares are averaged before the root is taken, so that negative values cancel positive ones
    instead of being clipped one by one; dividing by the sum of the weights removes the bias of the
    start. For a loss of curvature h in every direction and a constant rate, E m_t is

    - 0 at standstill, once the first error is forgotten (γ̂ itself keeps a small remainder, the
      clipped sampling noise of the average);
    - γ² for a target of constant velocity γ;
    - γ² ηh/(2 - ηh) for a random walk of γ per step: most of such a path is never followed, and a
      schedule that was told all of γ would be too fast.

    A shift shows only in the learner's own steps, by at most η‖∇‖ per step: at a rate near 0 a
    jump is noticed late. Keep a smallest rate (`Clip(min=)`) or a detector for jumps.

    Reads `Signal(step_length=, grad_sq=, spread=)`, the last two of the present batch; provides
    `shift`.

    Args:
        beta: β, the weight of the past, in [0, 1). A longer memory has less noise and more delay;
            about 0.9 is best over standstill, drift, random walk and jumps together.
        curvature: h, the curvature of the loss: 1 for linear regression with x ~ N(0, I), else
            an eigenvalue of the Hessian that is typical of the directions of the gradient noise. 0
            subtracts only the noise of the step itself.

    Example:
        >>> import driftrate as dr
        >>> estimator = dr.estimate.DebiasedShift(curvature=0.0)
        >>> state = estimator.init()
        >>> for step in [0.0, 2.0, 2.0]:
        ...     signal = dr.Signal(step_length=step, grad_sq=4.0, spread=3.0)
        ...     value, state = estimator.update(state, signal)
        >>> round(value, 12)  # a quarter of the squared length was signal
        1.0

    Reference:
        Corrects the remark at Algorithm 1 of Fahrbach, Javanmard, Mirrokni and Worah (2023); the
        noise from independent parts of a batch as in McCandlish et al. (2018), arXiv:1812.06162,
        appendix A.1.
    """

    beta: float = 0.9
    curvature: float = 1.0

    signals: ClassVar[tuple[str, ...]] = ("step_length", "grad_sq", "spread")
    provides: ClassVar[str] = "shift"

    def __post_init__(self) -> None:
        _check_beta(self)
        _checks.number(self, "curvature", low=0.0, high=_LARGEST)

    def _start(self) -> State:
        # grad_sq = -1: no gradient has been seen, so there is nothing to divide by yet.
        return {
            "estimate": 0.0,
            "mean": 0.0,
            "weight": 0.0,
            "own": 0.0,
            "grad_sq": -1.0,
            "spread": 0.0,
        }

    def _step(self, xp: Any, state: State, signal: Signal) -> tuple[Array, State]:
        step, last = signal.step_length, state["grad_sq"]
        step = xp.where(step < _LONGEST_STEP, step, _LONGEST_STEP)
        seen, moved = last >= 0.0, last > 0.0
        safe = xp.where(moved, last, 1.0)
        # Noise over signal is bounded: two halves may cancel and leave a gradient of almost 0.
        noise = xp.where(state["spread"] < _NOISIEST * safe, state["spread"], _NOISIEST * safe)
        square = xp.where(moved, step * step, 0.0 * step)
        injected = square * (noise / safe)
        rate = xp.where(moved, step, 0.0 * step) / xp.sqrt(safe)
        gain = self.curvature * xp.where(rate < _LARGEST, rate, _LARGEST)
        # A learner past ηh = 1 overshoots; its noise still does not outlive one step.
        gain = xp.where(gain < 1.0, gain, 1.0)
        move = square - injected - gain * gain * state["own"]
        rest = 1.0 - gain
        own = rest * rest * state["own"] + injected
        own = xp.where(own < _FARTHEST, own, _FARTHEST)
        past, new = self.beta, 1.0 - self.beta
        mean = xp.where(seen, past * state["mean"] + new * move, state["mean"])
        weight = xp.where(seen, past * state["weight"] + new, state["weight"])
        known = weight > 0.0
        squared = xp.where(known, mean / xp.where(known, weight, 1.0), 0.0 * mean)
        value = xp.sqrt(xp.where(squared > 0.0, squared, 0.0 * squared))
        grad_sq, spread = signal.grad_sq, signal.spread
        return value, {
            "estimate": value,
            "mean": mean,
            "weight": weight,
            "own": own,
            "grad_sq": xp.where(grad_sq < _LARGEST, grad_sq, _LARGEST),
            "spread": xp.where(spread < _LARGEST, spread, _LARGEST),
        }
