"""A rate that serves in the long run: up while the weights' way goes downhill, down where not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from driftrate.errors import ConfigError
from driftrate.schedules.base import Array, Schedule, Signal, State, counted, real, register


@dataclass(frozen=True)
class Pace:
    """Every number of `LongHorizonRate` that was chosen; docs/measured_how.md has what each does.

    Loss over that of the best constant rate on the development streams, this choice last.
    """

    least_gain: float = 0.01  # change of the logarithm of the rate a step; 0.03: 1.14 for 1.09
    first_gain: float = 0.2  # over √t at step t, if that is more; 0.1 and 0.2 the same but at 1e-4
    # 0: 1.14 for 0.99 on labels_10000 from Adam's 0.003; 0.8: 1.05 for 0.81 on flipping from 0.01.
    pull: float = 0.5  # of a factor above 1 back to 1, at an e-fold 1/2 of this many deviations
    # 0.5: 0.77 for 0.74 of Adam on three streams; 0.1: 0.73, but 1.03 for 0.99 at rest.
    lift: float = 0.25  # the same of a factor below 1
    # 0.99: a rest is measured by itself, and its rate falls for ever: 1.30 of Adam for 1.00.
    memory: float = 0.999  # share that the mean of squares keeps
    clip: float = 3.0  # deviations, at which a product is clipped
    # 0.05: the first step may raise its own batch's loss; 0.01: 1.3 for 1.04 in 100 steps.
    first_step: float = 0.025  # of the weights' length, along the gradient: the longest first step
    # Without it one run in five of three layers is not finite after a jump.
    longest_step: float = 0.03  # of the same, at any later step, where nobody gave a rate
    first_rate: float = 0.2  # at most, where nobody gave one: a first gradient may be next to 0


PACE = Pace()
_SMALLEST, _LARGEST = 1e-15, 1e15  # squares of what is beyond would leave single precision


@register
@dataclass(frozen=True)
class LongHorizonRate(Schedule):
    r"""The rate that serves a network in the long run, from the gradients and the weights alone.

    With w̄ a slow average of the weights, w̄ ← w̄ + (w - w̄)/50, the lead w - w̄ is the discounted
    sum of the steps so far, that is, the derivative of the weights by the logarithm of the rate. So

        z_t = ⟨g_t, w_t - w̄_t⟩

    is the derivative of the loss by the logarithm of the rate, with a horizon of 50 steps: negative
    while the steps should have been longer, positive where they should have been shorter. For a
    quadratic whose target walks at random, E z = 0 exactly at the constant rate that serves best,
    whatever the curvature; a horizon of one step, which `MeasuredRate` has, weighs the directions
    by their curvature and makes the rate too small where they differ, as in every network. The
    rate follows the sign and the certainty of z,

        log η ← log η - μ_t clip(z_t/√q_t, ±3),    μ_t = max(0.01, 0.2/√t),

    q the mean of z² over some 1,000 steps: at rest z is small beside what was at stake before, and
    the rate falls slowly, while steps that are too long keep z large. A factor is pulled back to 1
    besides: log η/(2 (1 + log² η)), half of it below 1, is added to the clipped term, the slope of
    the logarithm of a Cauchy prior. Somebody chose that rate, and z, which sees 50 steps, does not
    know of the next jump; far from 1 the pull fades, for then the choice was wrong. A rate that
    nobody gave is not pulled.

    The first step is at most 2.5 % of the weights' length, along the gradient: nearly no network's
    loss rises on the batch of a step so short. The longest of all is 3 %, where the rate is not a
    factor on one that somebody gave.

    Reads `Signal(lead=, weights_sq=, reach=)`. For weights that do not start from 0.

    Args:
        relative: Whether the rate is a factor on another one, such as Adam's: it then starts from 1
            where the first step is short enough, and does without `weights_sq` and `reach`.

    Example:
        >>> import driftrate as dr
        >>> rate = dr.LongHorizonRate()
        >>> state = rate.init()
        >>> for lead in (0.0, -0.3, -0.1, -0.4):  # the way so far leads on downhill, up to 3 %
        ...     signal = dr.Signal(lead=lead, weights_sq=100.0, reach=2.0)
        ...     eta, state = rate.update(state, signal)
        ...     print(round(eta, 3))
        0.125
        0.144
        0.15
        0.15

    Reference:
        The one-step form is the hypergradient of Almeida et al. (1998) and Baydin et al. (2018);
        why one step is too short a horizon: Wu, Ren, Liao and Grosse (2018), Understanding
        Short-Horizon Bias in Stochastic Meta-Optimization.
    """

    relative: bool = False

    signals: ClassVar[tuple[str, ...]] = ("lead", "weights_sq", "reach")
    pace: ClassVar[Pace] = PACE  # a study of one number subclasses and replaces it

    def __post_init__(self) -> None:
        if not isinstance(self.relative, bool):
            raise ConfigError(
                f"LongHorizonRate.relative must be True or False, got {self.relative!r}"
            )

    @property
    def optional(self) -> frozenset[str]:
        """A factor can do without knowing how long a step is."""
        return frozenset(("weights_sq", "reach") if self.relative else ())

    @classmethod
    def example(cls) -> Self:  # noqa: D102
        return cls()

    def _start(self) -> State:
        return {"rate": 0.0, "level": 0.0, "square": 0.0, "seen": 0.0, "count": 0}

    def _step(self, xp: Any, state: State, signal: Signal) -> tuple[Array, State]:
        pace, first = self.pace, state["count"] == 0
        lead = _within(xp, signal.lead, -_LARGEST, _LARGEST)
        new = 1.0 - pace.memory  # in this form single precision rounds less
        square = state["square"] + new * (lead * lead - state["square"])
        seen = state["seen"] + new * (1.0 - state["seen"])
        # At the first step the weights have no lead.
        square = xp.where(first, 0.0 * square, square)
        seen = xp.where(first, 0.0 * seen, seen)
        some = square > 0.0
        deviation = xp.sqrt(xp.where(some, square / xp.where(some, seen, 1.0), 1.0))
        sure = _within(xp, lead / deviation, -pace.clip, pace.clip)
        gain = pace.first_gain / xp.sqrt(real(xp, state["count"], state["level"]) + 1.0)
        gain = xp.where(gain > pace.least_gain, gain, pace.least_gain)
        if self.relative:
            away = xp.log(xp.where(first, 1.0, state["level"]))
            slope = away / (1.0 + away * away)
            sure = sure + xp.where(away > 0.0, pace.pull * slope, pace.lift * slope)
        level = state["level"] * xp.exp(-gain * sure)
        length = self._length(xp, signal)
        begin = 1.0 if self.relative else pace.first_rate
        begin = begin + 0.0 * level
        if length is not None:
            begin = xp.minimum(begin, pace.first_step * length)
        level = _within(xp, xp.where(first, begin, level), _SMALLEST, _LARGEST)
        rate = level
        if length is not None and not self.relative:
            rate = xp.minimum(rate, pace.longest_step * length)
        return rate, {
            "rate": rate,
            "level": level,
            "square": square,
            "seen": seen,
            "count": counted(state["count"], xp),
        }

    @staticmethod
    def _length(xp: Any, signal: Signal) -> Array | None:
        """Return the rate at which a step is as long as the weights; None where nobody knows."""
        if signal.weights_sq is None or signal.reach is None:
            return None
        known = (signal.weights_sq > 0.0) & (signal.reach > 0.0)
        length = xp.sqrt(signal.weights_sq) / xp.where(known, signal.reach, 1.0)
        return xp.where(known, length, _LARGEST)


def _within(xp: Any, value: Array, low: float, high: float) -> Array:
    value = xp.where(value < high, value, high)
    return xp.where(value > low, value, low)
