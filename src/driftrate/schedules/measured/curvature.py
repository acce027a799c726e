"""The curvature L, by how far a step lowers the next product with the trail."""

from __future__ import annotations

from typing import Any, NamedTuple

from driftrate.schedules.base import Array, State
from driftrate.schedules.measured.batch import Batch, clipped, number
from driftrate.schedules.measured.noise import Forecast, Noise
from driftrate.schedules.measured.tuning import SMALLEST, Tuning


class Curvature(NamedTuple):
    """The sums of weighted least squares for y = L·x, with a prior.

    x = η⟨g, h⟩ is the last step's displacement along the trail h, y the forecast of the next
    product with h, had there been no step, less the product that was seen.
    """

    tuning: Tuning
    xy: Array  # Σ w x y
    xx: Array  # Σ w x²

    @classmethod
    def read(cls, state: State, tuning: Tuning) -> Curvature:
        """Take the sums out of a state."""
        return cls(tuning, state["curvature_xy"], state["curvature_xx"])

    def measure(
        self, xp: Any, state: State, batch: Batch, noise: Noise, forecast: Forecast, relative: bool
    ) -> Curvature:
        """Take this batch's product with the trail into the sums; `state` is that before it."""
        tuning, memory = self.tuning, self.tuning.memory
        xy, xx = memory * self.xy, memory * self.xx
        level, expected = number(xp, forecast.level), number(xp, forecast.noise)
        x, y = state["displacement"], state["trail_forecast"] - batch.trail
        # The noise of this product, of the one before and of the product of the parts.
        variance = expected * noise.trail_sq + 4.0 * expected * (expected + level) + SMALLEST**2
        # A jump's product with the trail is as loud as its batch: it must not pass for L. Where it
        # speaks for a larger one it may all the same, for a step that went too far looks like it.
        loudness = batch.square / (level + expected + SMALLEST)
        if not relative:
            prior = tuning.curvature_prior
            innovation = y - x * (prior * tuning.curvature_guess + xy) / (prior + xx)
            smaller = innovation * x < 0.0
            loudness = xp.where(smaller, loudness, 0.0 * loudness)
            # Nor must the product of the parts of a jump, which is in the forecast.
            last = state["last_spread"]
            jumped = smaller & (last > tuning.loud * expected)
            variance = variance + xp.where(jumped, 4.0 * last * last, 0.0 * last)
        weight = noise.dim / (variance * xp.where(loudness > 1.0, loudness, 1.0))
        weight = xp.where(batch.first, 0.0 * weight, weight)
        xy, xx = clipped(xp, xy + weight * x * y), clipped(xp, xx + weight * x * x)
        return self._replace(xy=xy, xx=xx)

    def inverse(self, xp: Any, mode: str, relative: bool) -> Array:
        """Return 1/L: the posterior of a prior whose deviation is its mean, and of the sums."""
        tuning, xy, xx = self.tuning, self.xy, self.xx
        precision, guess = tuning.curvature_prior, tuning.curvature_guess
        off = xy - guess * xx
        # A measurement far above the prior's mean makes the prior give way.
        far = off * off / (xx * xx / precision + xx + SMALLEST**2)
        far = xp.where(off > 0.0, far, 0.0 * far) / tuning.deviations**2
        prior = precision / (1.0 + far**2)
        xy, xx = prior * guess + xy, prior + xx
        if relative:
            least: Array = 1.0
        elif mode == "sequence":
            least = guess  # noise that persists would hide L
        else:
            # While little is known of L, at first and after long rest, it is not taken for small.
            share = prior / xx
            least = guess * (tuning.first_step * (1.0 - share) + share)
        least = least * xx
        return xx / xp.where(xy > least, xy, least)
