"""A rate that needs no constants: it measures signal and noise and follows them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from driftrate.errors import ConfigError
from driftrate.schedules import _checks, _scalars
from driftrate.schedules.base import (
    TRAIL,
    Array,
    Schedule,
    Signal,
    State,
    counted,
    register,
    select,
)
from driftrate.schedules.long_horizon import LongHorizonRate
from driftrate.schedules.measured.batch import Batch, at_most, number
from driftrate.schedules.measured.curvature import Curvature
from driftrate.schedules.measured.filter import Bank, Jump
from driftrate.schedules.measured.noise import Forecast, Noise
from driftrate.schedules.measured.tuning import LARGEST, SMALLEST, TUNING, Tuning


@register
@dataclass(frozen=True)
class MeasuredRate(Schedule):
    r"""The optimal rate, from what the gradients themselves show of signal and noise.

    For a loss of curvature L the step that brings the weights nearest to the optimum is

        η = ζ/L,    ζ = v/(v + N),    v = ‖∇‖²,    N = E‖ξ‖²,

    ∇ the expected gradient and ξ the noise of the batch's. Products of gradients with independent
    noise measure v without bias: `cross` those of parts of a batch; `trail` that of the batch with
    the trail of those before it, h ← 0.9 h + g, whose mean c = ⟨∇, h⟩ follows from v by

        c ← 0.9 c + v - ηL ⟨g, 0.9 h + g⟩,    v ← (1 - ηL)² v + (ηL)² N + q.

    A Kalman filter of (v, c) runs under each of eight hypotheses on the drift q: a target that
    rests, that drifts at one of six speeds, or that has just jumped. Their weights follow the
    likelihoods of each product and of the gradient's square. The noise is N = κv + s: κ = (D + 1)/B
    as for normal covariates, s of each hypothesis, D the effective dimension, measured by the
    innovations of the products from batch to batch. The prior probability of drift and of a jump
    falls while the target rests. The rate acts on this very batch; `lagged` uses the batches before
    alone, as the theorems ask.

    Reads `Signal(batch_size=, dim=, parts=, cross=, spread=, trail=)`; without the parts, in mode
    "sequence", `Signal(batch_size=, dim=, grad_sq=, trail=)`. All but cross and spread, or
    grad_sq, may be left out: the rate then makes do with less.

    This is the optimum of one step. Where curvature differs by direction, as in every network, what
    serves in the long run is larger: there, and under optimizers other than plain SGD, `attach`
    takes `LongHorizonRate` for `MeasuredRate()`.

    Args:
        max_rate: 1/L, the rate at which a gradient without noise would lead straight to the
            optimum; or None to measure L, by how far the product with the trail falls on the way
            of one step. The measurement starts from L = 1.6, as for standardised features, and the
            first step is an eighth of what that says.
        mode: `"parts"`, or `"sequence"` for whole gradients alone.
        lagged: Whether the rate depends on the past alone; its first rate is then 0.
        relative: Whether the rate is a factor on another one, such as Adam's: L is then measured in
            its units and is never below 1, so that the factor is at most 1: a rate that is too
            high is lowered, one that is too low stays so.

    Example:
        >>> import driftrate as dr
        >>> rate = dr.MeasuredRate(max_rate=1.0)
        >>> state = rate.init()
        >>> signal = dr.Signal(batch_size=64, dim=10, parts=2, cross=0.5, spread=0.5)
        >>> for _ in range(20):
        ...     eta, state = rate.update(state, signal)
        >>> 0.3 < eta < 0.7  # half of the gradient's square is signal
        True

    Reference:
        Extends Algorithm 1 of Fahrbach, Javanmard, Mirrokni and Worah (2023) to unknown shift and
        noise; the filter is the interacting multiple model of Blom and Bar-Shalom (1988), IEEE
        Transactions on Automatic Control 33(8).
    """

    max_rate: float | None = None
    mode: Literal["parts", "sequence"] = "parts"
    lagged: bool = False
    relative: bool = False

    version: ClassVar[int] = 8
    _heavy = True
    tuning: ClassVar[Tuning] = TUNING  # a study of one number subclasses and replaces it

    def __post_init__(self) -> None:
        if self.max_rate is not None:
            _checks.number(self, "max_rate", low=0.0, high=LARGEST, open_low=True)
        _checks.choice(self, "mode", ("parts", "sequence"))
        for name in ("lagged", "relative"):
            if not isinstance(value := getattr(self, name), bool):
                raise ConfigError(f"MeasuredRate.{name} must be True or False, got {value!r}")
        if self.relative and self.max_rate is not None:
            raise ConfigError(
                "MeasuredRate: relative=True measures how far the base rate may be used;"
                f" leave out max_rate, got {self.max_rate!r}"
            )

    @property
    def signals(self) -> tuple[str, ...]:
        """The fields of `Signal` that the mode reads."""
        own = ("grad_sq",) if self.mode == "sequence" else ("parts", "cross", "spread")
        return ("batch_size", "dim", *own, "trail")

    @property
    def optional(self) -> frozenset[str]:
        """The fields that it can do without."""
        return frozenset(("batch_size", "dim", "parts", "trail"))

    @classmethod
    def example(cls) -> Self:  # noqa: D102
        return cls(max_rate=1.0)

    def reading(self, fields: Collection[str]) -> Schedule:
        """Return the form for a loop that gives these fields: without parts, the sequence's.

        Where the loop gives the `lead` of the weights, one step's optimum is not what serves in
        the long run, and the form is `LongHorizonRate`; unless the user has chosen a `max_rate`,
        `lagged` or `relative`, which it does not have or means otherwise.
        """
        if "lead" in fields and not (self.max_rate or self.lagged or self.relative):
            return LongHorizonRate()
        return self if {"cross", "spread"} <= {*fields} else replace(self, mode="sequence")

    def _start(self) -> State:
        return Bank.start(self.tuning) | {
            "rate": 0.0,
            "next_gain": 0.0,  # ζ of the next step, from the past alone
            "noise_mean": 0.0,
            "noise_recent": 0.0,
            "trail_sq": 0.0,  # ‖h‖²
            "batch_size": 1.0,
            "dim_weight": 1.0,
            "dim_inverse": 1.0 / self.tuning.dim_many,
            "trail_innovation": 0.0,  # of the last products, in units of their noise
            "cross_innovation": 0.0,
            "rest": 0.0,  # for how many steps the target has rested
            "skipped": 0.0,  # whether the last batch was taken for an outlier
            "last_spread": 0.0,
            "thin": self.tuning.unlikely,  # probability that squares have a thin tail
            "trail_forecast": 0.0,  # of the next product with the trail, without a step
            "displacement": 0.0,  # η⟨g, h⟩ of the last step, h the trail after it
            "curvature_xy": 0.0,
            "curvature_xx": 0.0,
            "count": 0,
        }

    def _step(self, xp: Any, state: State, signal: Signal) -> tuple[Array, State]:
        tuning = self.tuning
        batch = Batch.read(xp, self.mode, state, signal)
        if xp is _scalars and batch.first and batch.square == 0.0:
            return state["rate"], state  # it shows nothing, and NumPy would warn of 0/0
        bank = Bank.read(xp, state, tuning)
        noise = Noise.read(xp, state, batch, signal.dim, tuning)
        # A larger batch has less noise, at once.
        bank = bank._replace(additive=bank.additive / batch.growth)
        jump = noise.jump(xp, batch.square, number(xp, bank.mean(bank.additive)))
        bank = bank.begin(jump.level, batch.first)
        forecast = Forecast.of(bank, noise)
        bank, thin = self._correct(state, bank, batch, noise, jump)
        level, gain = number(xp, bank.mean(bank.level)), noise.gain(xp, bank)

        curvature = before = Curvature.read(state, tuning)
        if self.max_rate is None and batch.trail is not None:
            curvature = before.measure(xp, state, batch, noise, forecast, self.relative)
        if self.lagged:
            gain, rate = self._rate(xp, state["next_gain"], before, batch, forecast)
        else:
            gain, rate = self._rate(xp, gain, curvature, batch, forecast)

        bank, measured = noise.measure(xp, state, bank, batch, forecast, self.relative)
        noise = noise._replace(mean=measured["noise_mean"])
        resting = number(xp, bank.weight[0] + bank.weight[1])
        after, trail_sq = self._predict(xp, state, bank, batch, noise, gain)
        new: State = (
            after.leaves()
            | measured
            | {
                "rate": rate,
                "next_gain": noise.gain(xp, after) if self.lagged else 0.0 * gain,
                "trail_sq": trail_sq,
                "batch_size": batch.size,
                # Squared: a little doubt does not end a rest.
                "rest": (state["rest"] + 1.0) * (1.0 - (1.0 - resting) ** 2),
                "skipped": 0.0 * gain,
                "last_spread": batch.spread,
                "thin": self._thin(xp, state["thin"], number(xp, thin), resting, batch.first),
                **self._regressors(xp, bank, batch, rate, level),
                "curvature_xy": curvature.xy,
                "curvature_xx": curvature.xx,
                "count": counted(state["count"], xp),
            }
        )
        return self._skip_outliers(xp, state, new, batch, noise, forecast)

    def _correct(
        self, state: State, bank: Bank, batch: Batch, noise: Noise, jump: Jump
    ) -> tuple[Bank, Array]:
        """Correct the filter by all that the batch shows; return the chance of a thin tail too."""
        tuning, xp, prior = self.tuning, bank.xp, bank
        trail_var = noise.trail_sq / noise.dim
        if batch.trail is not None:
            own = bank.noise(noise.slope)
            scale = xp.sqrt(noise.loudness(batch.square, bank.level + own))
            bank = bank.correct_trail(batch.trail, own * trail_var, scale)
        own = bank.noise(noise.slope)
        tail = tuning.heavy_tail if batch.cross is None else tuning.parts_tail
        bank, likelihood, thin = bank.correct_square(
            batch.square, own, 1.0 + noise.slope, noise.freedom, tail, state["thin"]
        )
        bank = bank.mix_jump(jump, likelihood, state["rest"], batch.trail, trail_var, noise.slope)
        # The prior of the first batch was made of its square already.
        kept = {
            name: xp.where(batch.first, getattr(prior, name), leaf)
            for name, leaf in bank.leaves().items()
        }
        bank = bank._replace(**kept)
        if batch.cross is not None:
            own = bank.noise(noise.slope)
            # Inflated, for much of its noise is in the square too, which was seen already.
            variance = tuning.inflation * batch.cross_variance(bank.level, own)
            scale = noise.loudness(batch.square, bank.level + own)
            bank = bank.correct_level(batch.cross, variance * own / noise.dim, scale)
        return bank, thin

    def _rate(
        self, xp: Any, gain: Array, curvature: Curvature, batch: Batch, forecast: Forecast
    ) -> tuple[Array, Array]:
        """Return ηL, shortened while L is a guess, and η."""
        if self.max_rate is not None:
            return gain, gain * self.max_rate
        tuning = self.tuning
        # A first step that goes too far costs more than one that is short.
        gain = xp.where(batch.first, tuning.first_step * gain, gain)
        if not (self.relative or self.lagged):
            # So does one along a loud batch.
            usual = tuning.long_step * forecast.square(xp)
            loud = (batch.square > usual) & (curvature.xx < tuning.curvature_prior)
            shorter = (usual / (batch.square + SMALLEST)) ** 0.5
            gain = xp.where(loud, gain * shorter, gain)
        return gain, gain * curvature.inverse(xp, self.mode, self.relative)

    def _thin(self, xp: Any, old: Array, new: Array, resting: Array, first: Array) -> Array:
        """Return the probability that squares have a thin tail, learned at rest.

        What a jump explains tells nothing of the tail, and where the signal is large a thin one is
        too sure which part of the square is noise.
        """
        thin = old + resting * (new - old)
        thin = thin + self.tuning.unlikely * (self.tuning.unlikely - thin)
        return xp.where(first, old, thin)

    def _predict(
        self, xp: Any, state: State, bank: Bank, batch: Batch, noise: Noise, gain: Array
    ) -> tuple[Bank, Array]:
        """Return the filter after this step, and the trail's squared length."""
        trail = 0.0 * gain if batch.trail is None else batch.trail
        trail_sq = TRAIL * TRAIL * noise.trail_sq + 2.0 * TRAIL * trail + batch.square
        trail_sq = xp.where(trail_sq > 0.0, trail_sq, 0.0 * trail_sq)
        trail_sq = at_most(xp, trail_sq, 10.0 * LARGEST)
        bank = bank.mix(state["rest"]).predict(
            gain=gain,
            square=batch.square,
            slope=noise.slope,
            unit=noise.mean,
            dim=noise.dim,
            keep=TRAIL,
            fall=gain * (TRAIL * trail + batch.square),
            trail_sq=trail_sq,
        )
        return bank, trail_sq

    def _regressors(self, xp: Any, bank: Bank, batch: Batch, rate: Array, level: Array) -> State:
        """Return what the next product with the trail will say of L: x, and the forecast in y."""
        trail = 0.0 * rate if batch.trail is None else batch.trail
        # The noise of ⟨g, h⟩ is in the displacement too and would pass for curvature: hence the
        # filter's mean. A network is not followed well enough: there it passes, to be safe.
        mean = trail if self.relative else number(xp, bank.mean(bank.trail))
        return {
            "trail_forecast": TRAIL * mean + (level if batch.cross is None else batch.cross),
            "displacement": rate * (TRAIL * trail + batch.square),
        }

    def _skip_outliers(
        self, xp: Any, state: State, new: State, batch: Batch, noise: Noise, forecast: Forecast
    ) -> tuple[Array, State]:
        """Keep the state where a gradient is 0, or too large to be believed the first time."""
        known = (state["count"] > 0) & (state["skipped"] < 0.5)
        outlier = known & (batch.square > self.tuning.outlier * forecast.square(xp))
        skip = outlier | (batch.square <= 0.0)
        kept = select(xp, skip, state, new)
        # There is no step along an outlier.
        still = xp.where(outlier, 0.0 * state["rate"], state["rate"])
        rate = xp.where(skip, still, new["rate"])
        # The loop's trail has grown by it all the same.
        trail_var = TRAIL * TRAIL * state["trail_var"]
        trail_var = trail_var + state["level"] * (batch.square / noise.dim)
        return rate, kept | {
            "rate": rate,
            "skipped": xp.where(outlier, 0.0 * rate + 1.0, 0.0 * rate),
            "trail_sq": new["trail_sq"],
            "trail": xp.where(skip, TRAIL * state["trail"], kept["trail"]),
            "trail_var": xp.where(skip, trail_var, kept["trail_var"]),
        }
