"""The noise N = κv + s of a batch's gradient, and the effective dimension D behind κ."""

from __future__ import annotations

from typing import Any, NamedTuple

from driftrate.schedules.base import TRAIL, Array, State, real
from driftrate.schedules.measured.batch import Batch, at_most, clipped, number
from driftrate.schedules.measured.filter import Bank, Jump, positive
from driftrate.schedules.measured.tuning import LEAST_INVERSE, LEAST_JUMP, SMALLEST, Tuning


class Noise(NamedTuple):
    """What is known of the noise, but for the additive one: each hypothesis has its own."""

    tuning: Tuning
    dim: Array  # D
    slope: Array  # κ = (D + 1)/B, as for normal covariates
    freedom: Array  # degrees of freedom of the gradient's square, 1/(1/B + 1/D + 2/(BD))
    mean: Array  # N as it was measured, the unit of drift
    recent: Array  # N of the last batches, or their ‖g‖² where noise is not seen apart
    trail_sq: Array  # ‖h‖²
    dim_weight: Array  # of all estimates of 1/D so far
    dim_inverse: Array  # their weighted sum

    @classmethod
    def read(cls, xp: Any, state: State, batch: Batch, told: Array, tuning: Tuning) -> Noise:
        """Take the noise out of a state, for a batch of its size.

        `told` is the number of coordinates, or None.
        """
        weight, inverse = state["dim_weight"], state["dim_inverse"]
        if told is not None:
            # Of very many coordinates few move by themselves: the more, the less they count.
            most = at_most(xp, told, 2.0 * tuning.dim_many)
            credit = tuning.dim_credit * at_most(xp, tuning.dim_many / told, 1.0)
            credit = xp.where(credit > 1.0, credit, 1.0)
            weight = xp.where(batch.first, credit + 0.0 * weight, weight)
            inverse = xp.where(batch.first, credit / most, inverse)
        dim, size = weight / inverse, batch.size
        dim = xp.where(dim > 1.0, dim, 1.0)
        mean, recent = state["noise_mean"] / batch.growth, state["noise_recent"] / batch.growth
        freedom = 1.0 / (1.0 / size + 1.0 / dim + 2.0 / (size * dim))
        slope, trail_sq = (dim + 1.0) / size, state["trail_sq"]
        return cls(tuning, dim, slope, freedom, mean, recent, trail_sq, weight, inverse)

    def loudness(self, square: Array, expected: Array) -> Array:
        """Return a batch's square over the expected one, a little drawn to 1.

        A batch's residuals move all its products together: only angles tell of the signal.
        """
        own, prior = self.dim + 1.0, self.tuning.own_square
        return (prior + own * (square / expected)) / (prior + own)

    def jump(self, xp: Any, square: Array, additive: Array) -> Jump:
        """Return what the square says of v, had the target jumped: v = (‖g‖² - s)/(1 + κ)."""
        level = (square - additive) / (1.0 + self.slope)
        level = xp.where(level > 0.0, level, 0.0 * level)
        ratio = (level / (square + SMALLEST)) ** 2
        evidence = ratio / (ratio + 2.0 / (self.freedom * (1.0 + self.slope) ** 2))
        level = level * evidence + LEAST_JUMP * square
        variance = level * level * (2.0 / self.freedom)
        return Jump(level, variance, evidence)

    def gain(self, xp: Any, bank: Bank) -> Array:
        """Return ζ = v/(v + N), the signal's share of the gradient's square."""
        level = bank.mean(bank.level)
        return number(xp, level / (level + bank.mean(bank.noise(self.slope))))

    def measure(
        self, xp: Any, state: State, bank: Bank, batch: Batch, forecast: Forecast, relative: bool
    ) -> tuple[Bank, State]:
        """Take a batch into the measurement of the noise; return the filter and the noise's leaves.

        `state` is that before this step; the filter was corrected by the batch.
        """
        first, tuning = batch.first, self.tuning
        steps = real(xp, state["count"], state["rate"])
        jumped = number(xp, bank.weight[-1])
        spread = spreads = batch.spread
        if batch.cross is None:
            # Not the share of noise in it, which would confirm whatever was believed.
            spreads = batch.square - bank.level
            spread = batch.square - number(xp, bank.mean(bank.level))
        least = tuning.first_noise * batch.square
        start = xp.where(spread > least, spread, least)

        def gain(least: float) -> Array:
            own = 1.0 / (steps + 1.0)
            return xp.where(own > least, own, least)

        slow, fast = gain(tuning.noise_gain), gain(tuning.recent_gain)
        spread = at_most(xp, spread, tuning.loud * self.mean)  # one outlier must not raise it
        mean = xp.where(first, start, self.mean + slow * (spread - self.mean))
        recent = xp.where(first, start, self.recent + fast * (batch.spread - self.recent))
        observed = spreads - self.slope * bank.level
        additive = self._additive(bank, observed, slow * (1.0 - jumped))
        additive = bank.xp.where(first, tuning.first_noise * start, additive)
        bank = bank._replace(additive=additive)
        if not relative:
            bank = self._bounded(xp, bank, batch, recent)
        bank = bank._replace(additive=clipped(bank.xp, bank.additive))
        usual = number(xp, bank.mean(bank.additive))
        return bank, {
            "noise_mean": clipped(xp, xp.where(mean > usual, mean, usual)),
            "noise_recent": clipped(xp, recent),
            **self._dimension(xp, state, batch, forecast, 1.0 - jumped),
        }

    def _additive(self, bank: Bank, observed: Array, gain: Array) -> Array:
        """Return the additive noise of each hypothesis after an observation of it."""
        xp, old = bank.xp, bank.additive
        # One outlier must not raise it, nor end it.
        observed = at_most(xp, observed, self.tuning.loud * self.mean)
        least = -self.tuning.loud * old
        observed = xp.where(observed > least, observed, least)
        return positive(xp, old, old + gain * (observed - old))

    def _bounded(self, xp: Any, bank: Bank, batch: Batch, recent: Array) -> Bank:
        """Clip the additive noise by that of the last batches: louder times fade too slowly.

        Not so under Adam: a network that is sure of its labels has quiet batches between loud ones.
        """
        vx, gain = bank.xp, self.tuning.recent_gain
        deviation = (2.0 * gain / ((2.0 - gain) * self.freedom)) ** 0.5
        most = (1.0 + self.tuning.deviations * deviation) * recent
        bank = bank._replace(additive=at_most(vx, bank.additive, most))
        if batch.cross is None:
            # No more signal than the gradients are long: products are taken in units of what was
            # expected, so that too high a level would confirm itself.
            most = xp.where(most > batch.square, most, batch.square)
            bank = bank._replace(level=at_most(vx, bank.level, most / (1.0 + self.slope)))
        return bank

    def _dimension(
        self, xp: Any, state: State, batch: Batch, forecast: Forecast, trust: Array
    ) -> State:
        """Return the sums whose quotient is D, and the innovations of this batch's products.

        1/D is the variance of an innovation in units of its noise. It is estimated by half the
        squared difference of two successive ones: a bias that lasts cancels, and does not pass for
        noise.
        """
        level, noise = number(xp, forecast.level), number(xp, forecast.noise)
        loudness = self.loudness(batch.square, level + noise + SMALLEST)
        found = {name: state[name] for name in ("trail_innovation", "cross_innovation")}
        weight = inverse = 0.0 * level
        share = (noise / (level + noise + SMALLEST)) ** 2
        if batch.trail is not None:
            innovation = batch.trail / loudness**0.5 - number(xp, forecast.trail)
            error, unit = number(xp, forecast.trail_var), noise * self.trail_sq
            one = self._estimate(xp, innovation, error, unit, found["trail_innovation"])
            # A trail from louder times tells more of them than of the noise now.
            alike = (level + noise) / ((1.0 - TRAIL * TRAIL) * self.trail_sq + SMALLEST)
            alike = at_most(xp, alike, 1.0) ** 2
            weight, inverse = weight + alike * one.weight, inverse + alike * one.inverse
            found["trail_innovation"] = one.innovation
        if batch.cross is not None:
            innovation = batch.cross / loudness - level
            error, unit = number(xp, forecast.level_var), batch.cross_variance(level, noise) * noise
            one = self._estimate(xp, innovation, error, unit, found["cross_innovation"])
            weight, inverse = weight + one.weight, inverse + one.inverse
            found["cross_innovation"] = one.innovation
        memory = self.tuning.memory
        weight = memory * self.dim_weight + trust * (share * weight)
        inverse = memory * self.dim_inverse + trust * (share * inverse)
        least = LEAST_INVERSE * weight
        inverse = xp.where(inverse > least, inverse, least)
        return found | {
            "dim_weight": xp.where(batch.first, self.dim_weight, weight),
            "dim_inverse": xp.where(batch.first, self.dim_inverse, inverse),
        }

    def _estimate(
        self, xp: Any, innovation: Array, error: Array, unit: Array, last: Array
    ) -> _Estimate:
        """Return an estimate of 1/D; outliers are clipped.

        Args:
            xp: The namespace.
            innovation: That of a product.
            error: The variance of its forecast: the larger, the less the estimate weighs.
            unit: D times the variance of its noise.
            last: The innovation of the batch before, over √unit.
        """
        unit = unit + SMALLEST**2
        weight = (unit / (unit + self.dim * error)) ** 2
        innovation = clipped(xp, innovation / unit**0.5)
        value = 0.5 * (innovation - last) ** 2
        value = at_most(xp, value, self.tuning.deviations**2 / self.dim)
        return _Estimate(weight, weight * value, innovation)


class _Estimate(NamedTuple):
    weight: Array
    inverse: Array  # the weight times the estimate of 1/D
    innovation: Array  # over the deviation of its noise times √D


class Forecast(NamedTuple):
    """Means and variances of v and c, and the noise, as the filter expects them of a batch."""

    level: Array
    noise: Array
    trail: Array
    level_var: Array
    trail_var: Array

    @classmethod
    def of(cls, bank: Bank, noise: Noise) -> Forecast:
        """Return the moments over all hypotheses."""
        level, trail = bank.mean(bank.level), bank.mean(bank.trail)
        return cls(
            level,
            bank.mean(bank.noise(noise.slope)),
            trail,
            bank.mean(bank.level_var + (bank.level - level) ** 2),
            bank.mean(bank.trail_var + (bank.trail - trail) ** 2),
        )

    def square(self, xp: Any) -> Array:
        """Return the expected square of the gradient, v + N."""
        return number(xp, self.level + self.noise)
