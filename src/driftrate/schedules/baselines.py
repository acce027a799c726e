"""The rates that people use today: none of them depends on the data."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import ceil, pi, sqrt
from typing import Any, ClassVar, Self

from driftrate.schedules import _checks
from driftrate.schedules.base import Array, Schedule, Signal, State, counted, real, register

_LONGEST = 2**30  # steps of a cycle: twice that would overflow 32-bit counters


class _Baseline(Schedule):
    """A rate that needs no signal."""

    signals: ClassVar[tuple[str, ...]] = ()


class _Constant(_Baseline):
    """A rate that is one number, that of the initial state, however it was found."""

    def _step(self, xp: Any, state: State, signal: Signal) -> tuple[Array, State]:
        return state["rate"], state


class _Clocked(_Baseline):
    """A rate that is a function of the step number t = 1, 2, ..."""

    @abstractmethod
    def _at(self, xp: Any, t: Array) -> Array:
        """Return the rate of step t, a float."""

    def _start(self) -> State:
        return {"rate": 0.0, "count": 0}

    def _step(self, xp: Any, state: State, signal: Signal) -> tuple[Array, State]:
        count = counted(state["count"], xp)
        rate = self._at(xp, real(xp, count, state["rate"]))
        return rate, {"rate": rate, "count": count}


@register
@dataclass(frozen=True)
class ConstantRate(_Constant):
    """The same rate for ever.

    Args:
        rate: η > 0, or 0 to stand still.

    Example:
        >>> import driftrate as dr
        >>> rate = dr.ConstantRate(0.1)
        >>> rate.update(rate.init(), dr.Signal())[0]
        0.1

    Reference:
        Robbins and Monro (1951) proposed decaying rates; under shift this is the one to beat.
    """

    rate: float

    def __post_init__(self) -> None:
        _checks.number(self, "rate", low=0.0)

    @classmethod
    def example(cls) -> Self:  # noqa: D102
        return cls(0.1)

    def _start(self) -> State:
        return {"rate": self.rate}


@register
@dataclass(frozen=True)
class InverseTimeRate(_Clocked):
    r"""η_t = rate / (1 + decay (t - 1)): optimal for strongly convex losses at standstill.

    Args:
        rate: The first rate.
        decay: How fast it falls; half of `rate` is reached after 1/decay steps.

    Example:
        >>> import driftrate as dr
        >>> rate = dr.InverseTimeRate(0.5)
        >>> eta, state = rate.update(rate.init(), dr.Signal())
        >>> rate.update(state, dr.Signal())[0]
        0.25

    Reference:
        Robbins and Monro, A stochastic approximation method (1951).
    """

    rate: float
    decay: float = 1.0

    def __post_init__(self) -> None:
        _checks.positive(self, "rate")
        _checks.number(self, "decay", low=0.0)

    @classmethod
    def example(cls) -> Self:  # noqa: D102
        return cls(0.5, decay=0.1)

    def _at(self, xp: Any, t: Array) -> Array:
        return self.rate / (1.0 + self.decay * (t - 1.0))


@register
@dataclass(frozen=True)
class InverseSqrtRate(_Clocked):
    r"""η_t = rate / √t: the anytime rate of online gradient descent against a fixed comparator.

    Args:
        rate: The first rate; diameter / gradient bound in the theorem.

    Example:
        >>> import driftrate as dr
        >>> rate = dr.InverseSqrtRate(0.5)
        >>> rate.update(rate.init(), dr.Signal())[0]
        0.5

    Reference:
        Zinkevich, Online convex programming and generalized infinitesimal gradient ascent (2003).
    """

    rate: float

    def __post_init__(self) -> None:
        _checks.positive(self, "rate")

    @classmethod
    def example(cls) -> Self:  # noqa: D102
        return cls(0.5)

    def _at(self, xp: Any, t: Array) -> Array:
        return self.rate / xp.sqrt(t)


@register
@dataclass(frozen=True)
class CosineRestartRate(_Baseline):
    r"""Cosine annealing with warm restarts.

    Within a cycle of n steps, η = low + (rate - low) (1 + cos(π j / n)) / 2 for j = 0, ..., n - 1;
    the next cycle is `growth` times as long.

    Args:
        rate: The rate at the start of a cycle.
        period: The number of steps of the first cycle.
        growth: The factor by which a cycle's length grows at a restart, 1 or more.
        low: The rate that a cycle falls to.

    Example:
        >>> import driftrate as dr
        >>> rate = dr.CosineRestartRate(0.1, period=10)
        >>> rate.update(rate.init(), dr.Signal())[0]
        0.1

    Reference:
        Loshchilov and Hutter, SGDR: stochastic gradient descent with warm restarts (2017).
    """

    rate: float
    period: int
    growth: int = 1
    low: float = 0.0

    def __post_init__(self) -> None:
        _checks.positive(self, "rate")
        _checks.integer(self, "period", "growth", low=1)
        _checks.number(self, "low", low=0.0, high=self.rate)

    @classmethod
    def example(cls) -> Self:  # noqa: D102
        return cls(0.5, period=10, growth=2)

    def _start(self) -> State:
        return {"rate": 0.0, "position": 0, "period": self.period}

    def _step(self, xp: Any, state: State, signal: Signal) -> tuple[Array, State]:
        position, period = state["position"], state["period"]
        left = real(xp, period - position, state["rate"]) / real(xp, period, state["rate"])
        # sin² of the half angle: 1 + cos would cancel at the end of a long cycle.
        rise = xp.sin(0.5 * pi * left)
        rate = self.low + (self.rate - self.low) * rise * rise
        ended = position + 1 >= period
        longer = xp.where(period < _LONGEST // self.growth, period * self.growth, period)
        position = xp.where(ended, 0 * position, position + 1)
        return rate, {"rate": rate, "position": position, "period": xp.where(ended, longer, period)}


@register
@dataclass(frozen=True)
class PathLengthRate(_Constant):
    r"""The constant rate for a known horizon and a known length of the oracle's path.

    Online gradient descent has regret at most (D² + 2 D V)/(2 η) + η G² T/2 against a path of
    length V, which η = √(D (D + 2 V)/T) / G minimises; it grows as √(V/T).

    Args:
        path_length: V = Σ γ_t over the whole run.
        horizon: T, the number of steps.
        diameter: D, of the set that holds weights and oracle.
        gradient_bound: G, a bound on the norm of the stochastic gradient.

    Example:
        >>> import driftrate as dr
        >>> rate = dr.PathLengthRate(12.0, horizon=100, diameter=1.0, gradient_bound=5.0)
        >>> rate.update(rate.init(), dr.Signal())[0]
        0.1

    Reference:
        Yang, Zhang, Jin and Yi, Tracking slowly moving clairvoyant (2016), Theorem 7.
    """

    path_length: float
    horizon: int
    diameter: float
    gradient_bound: float

    def __post_init__(self) -> None:
        _checks.number(self, "path_length", low=0.0)
        _checks.integer(self, "horizon", low=1)
        _checks.positive(self, "diameter", "gradient_bound")

    @classmethod
    def example(cls) -> Self:  # noqa: D102
        return cls(path_length=10.0, horizon=1000, diameter=2.0, gradient_bound=4.0)

    def _start(self) -> State:
        reach = self.diameter * (self.diameter + 2.0 * self.path_length)
        return {"rate": sqrt(reach / self.horizon) / self.gradient_bound}


@register
@dataclass(frozen=True)
class RestartedRate(_Clocked):
    r"""Online gradient descent that restarts at fixed times, for a known variation budget.

    The horizon is cut into blocks of Δ = ⌈(T/V)^{2/3}⌉ steps; within a block η = D/(G √j) for
    j = 1, ..., Δ. Besbes et al. keep D/(G √Δ) throughout a block and move the weights back to a
    fixed point at its start. A rate cannot move weights, so here the decay restarts instead, which
    gives regret of the same order.

    Args:
        variation: V, the sum over the run of the largest change of the loss from step to step.
        horizon: T, the number of steps.
        diameter: D, of the set that holds weights and oracle.
        gradient_bound: G, a bound on the norm of the gradient.

    Example:
        >>> import driftrate as dr
        >>> rate = dr.RestartedRate(variation=1.0, horizon=1000, diameter=1.0, gradient_bound=2.0)
        >>> rate.block, rate.update(rate.init(), dr.Signal())[0]
        (100, 0.5)

    Reference:
        Besbes, Gur and Zeevi, Non-stationary stochastic optimization (2015), Theorem 3.
    """

    variation: float
    horizon: int
    diameter: float
    gradient_bound: float

    def __post_init__(self) -> None:
        _checks.positive(self, "variation", "diameter", "gradient_bound")
        _checks.integer(self, "horizon", low=1)

    @classmethod
    def example(cls) -> Self:  # noqa: D102
        return cls(variation=10.0, horizon=1000, diameter=1.0, gradient_bound=2.0)

    @property
    def block(self) -> int:
        """The number of steps between restarts, Δ."""
        # The power of 1000/1 is 100.00000000000003; a block must not grow by rounding.
        exact = float((self.horizon / self.variation) ** (2.0 / 3.0))
        return max(1, min(self.horizon, ceil(exact * (1.0 - 1e-12))))

    def _step(self, xp: Any, state: State, signal: Signal) -> tuple[Array, State]:
        count = state["count"] % self.block + 1
        rate = self._at(xp, real(xp, count, state["rate"]))
        return rate, {"rate": rate, "count": count}

    def _at(self, xp: Any, t: Array) -> Array:
        return self.diameter / (self.gradient_bound * xp.sqrt(t))


@register
@dataclass(frozen=True)
class InexactRate(_Constant):
    r"""The constant step of inexact online gradient descent.

    A step of rate η shrinks the distance to the minimiser of a μ-strongly convex, L-smooth loss by
    max(|1 - η L|, |1 - η μ|), which η = 2/(L + μ) makes smallest; the noise is taken as given.

    Args:
        smoothness: L.
        strong_convexity: μ, at most L.

    Example:
        >>> import driftrate as dr
        >>> rate = dr.InexactRate(smoothness=3.0, strong_convexity=1.0)
        >>> rate.update(rate.init(), dr.Signal())[0]
        0.5

    Reference:
        Bedi, Sarma and Rajawat, Tracking moving agents via inexact online gradient descent (2018).
    """

    smoothness: float
    strong_convexity: float

    def __post_init__(self) -> None:
        _checks.positive(self, "smoothness", "strong_convexity")
        if self.strong_convexity > self.smoothness:
            want = f"at most smoothness = {self.smoothness:g}"
            raise _checks.refuse(self, "strong_convexity", self.strong_convexity, want)

    @classmethod
    def example(cls) -> Self:  # noqa: D102
        return cls(smoothness=4.0, strong_convexity=1.0)

    def _start(self) -> State:
        return {"rate": 2.0 / (self.smoothness + self.strong_convexity)}
