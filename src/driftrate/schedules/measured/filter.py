"""The filter behind `MeasuredRate`: how large the signal is, and how fast it grows.

One Kalman filter per hypothesis on the drift, mixed as interacting multiple models.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any, NamedTuple

from driftrate.schedules import _scalars
from driftrate.schedules.base import Array, State
from driftrate.schedules.measured.tuning import (
    LARGEST_CORRELATION,
    LARGEST_ERROR,
    LEAST_ERROR,
    LEAST_EXPONENT,
    LEAST_WEIGHT,
    STEEPEST_FALL,
    TINY,
    Tuning,
)

LEAVES = ("level", "trail", "level_var", "trail_var", "cov", "weight", "additive")


class Bank(NamedTuple):
    """A filter per hypothesis: the moments of (v, c), an additive noise and a weight.

    v = ‖∇‖² and c = ⟨∇, h⟩, h the trail of past gradients. Hypothesis 0 is a target that rests,
    the last one a target that has just jumped, those between drift. Each has an additive noise s of
    its own: what one takes for signal, another takes for noise, and a shared s would confirm the
    one with the largest weight. Hypotheses lie on the first axis.
    """

    xp: Any  # the namespace of the vectors
    tuning: Tuning
    drift: Array  # q, the variance of the target's step, in units of the noise
    jumped: Array  # a mask of the hypothesis of a jump
    level: Array  # mean of v
    trail: Array  # mean of c
    level_var: Array
    trail_var: Array
    cov: Array  # of v and c
    weight: Array  # probability of the hypothesis
    additive: Array  # s

    @classmethod
    def read(cls, xp: Any, state: State, tuning: Tuning) -> Bank:
        """Take the filter's leaves out of a state."""
        drifts = tuning.drift_variances
        if xp is _scalars:
            # One formula for eight numbers in NumPy costs less than eight on Python floats.
            xp = import_module("array_api_compat.numpy")  # late: it brings all of NumPy
            drift = xp.asarray(drifts)
        else:
            # Filled, not copied: a copy from the host would make the device wait.
            drift = xp.stack([xp.full_like(state["rate"], value) for value in drifts])
        last = xp.cumulative_sum(xp.ones_like(drift), axis=0) > len(drifts) - 0.5
        return cls(xp, tuning, drift, last, *(state[name] for name in LEAVES))

    @staticmethod
    def start(tuning: Tuning) -> State:
        """Return the leaves of a state that has seen nothing: most likely the next step jumps."""
        xp = import_module("numpy")
        weight = xp.asarray(tuning.first_weights)
        return {name: xp.zeros_like(weight) for name in LEAVES} | {"weight": weight}

    def leaves(self) -> State:
        """Return the filter's leaves of a state."""
        return {name: getattr(self, name) for name in LEAVES}

    def mean(self, values: Array) -> Array:
        """Return the mean over the hypotheses by their weights."""
        return self.xp.sum(self.weight * values, axis=0)

    def noise(self, slope: Array) -> Array:
        """Return N = κv + s under each hypothesis, κ the slope."""
        return slope * self.level + self.additive

    def begin(self, level: Array, first: Array) -> Bank:
        """Give every hypothesis the same vague prior where nothing was seen before."""
        xp = self.xp
        level = xp.where(first, level, self.level)
        return self._replace(level=level, level_var=xp.where(first, level * level, self.level_var))

    def correct_trail(self, product: Array, variance: Array, scale: Array) -> Bank:
        """Correct by a product with the trail, an observation of c times `scale`.

        Args:
            product: The product.
            variance: That of its noise, over scale².
            scale: How much louder than expected the batch is.
        """
        total = self.trail_var + variance + TINY
        innovation = product / scale - self.trail
        weight = self._by_student(innovation, total, scale)
        gain, other, trail_var, cov, level_var = _update(
            1.0, total, self.trail_var, self.cov, self.level_var
        )
        return self._replace(
            weight=weight,
            level=positive(self.xp, self.level, self.level + other * innovation),
            trail=self.trail + gain * innovation,
            level_var=level_var,
            trail_var=trail_var,
            cov=cov,
        )._valid()

    def correct_level(self, product: Array, variance: Array, scale: Array) -> Bank:
        """Correct by a product of two parts, an observation of v; args as in `correct_trail`."""
        total = self.level_var + variance + TINY
        innovation = product / scale - self.level
        weight = self._by_student(innovation, total, scale)
        return self._replace(weight=weight)._observe_level(1.0, innovation, total)

    def correct_square(
        self, square: Array, noise: Array, slope: Array, freedom: Array, tail: float, thin: Array
    ) -> tuple[Bank, Array, Array]:
        r"""Correct by ‖g‖², whose mean is v + N; return its likelihood without a jump, and tail.

        The ratio of the square to its mean is taken for an F variate with 2b lower degrees of
        freedom, of density u^a (1 + u)^{-(a+b)}/B(a, b), u = a·ratio/b, in its logarithm. The
        probability that b is large, a thin tail, is learned: where squares are regular a jump is
        plain to see, and a heavier tail takes less for one.

        Args:
            square: ‖g‖².
            noise: E‖ξ‖² under each hypothesis.
            slope: Derivative of the square's mean by v.
            freedom: Degrees of freedom of the square.
            tail: b of the heavy tail.
            thin: Probability of the thin one.

        Returns:
            The filter; the likelihood over that of a jump; the probability of the thin tail.
        """
        xp, tuning = self.xp, self.tuning
        expected = self.level + noise
        relative = self.level_var * (slope / expected) ** 2
        a = 0.5 / (1.0 / freedom + 0.5 * relative)
        ratio = a * (square / expected) + TINY
        heavy = (1.0 - thin) * self.weight * self._f_density(a, tail, ratio)
        light = thin * self.weight * self._f_density(a, tuning.thin_tail, ratio)
        weight = heavy + light
        likelihood = xp.sum(weight, axis=0)
        variance = 2.0 * tuning.inflation * expected * expected / freedom
        total = slope * slope * self.level_var + variance
        weighed = self._replace(weight=_normalized(xp, weight))
        bank = weighed._observe_level(slope, square - expected, total)
        return bank, likelihood, xp.sum(light, axis=0) / likelihood

    def mix_jump(
        self,
        jump: Jump,
        likelihood: Array,
        rest: Array,
        product: Array,
        trail_var: Array,
        slope: Array,
    ) -> Bank:
        """Let the target have jumped, with the probability that the gradient's square says.

        Args:
            jump: What the square says of v after a jump.
            likelihood: That of the square without a jump, over that with one.
            rest: For how many steps the target has rested.
            product: That of the gradient with the trail, or None.
            trail_var: The trail's squared length over the effective dimension.
            slope: κ.
        """
        xp, here, tuning = self.xp, self.jumped, self.tuning
        chance = jump.evidence * tuning.jump_chance * tuning.fading(rest)
        new = chance / (chance + (1.0 - chance) * likelihood)
        before = xp.where(here, 0.0 * self.weight, self.weight)
        trail = xp.sum(before * self.trail, axis=0)
        error = xp.sum(before * self.trail_var, axis=0) + jump.level * trail_var
        additive = xp.sum(before * self.additive, axis=0) / xp.sum(before, axis=0)
        if product is not None:
            noise = (slope * jump.level + additive) * trail_var
            gain = error / (error + noise + TINY)
            trail = trail + gain * (product - trail)
            error = (1.0 - gain) * error
        old = (1.0 - new) * self.weight[-1]
        total = old + new

        def merge(rows: Array, errors: Array, mean: Array, error: Array) -> tuple[Array, Array]:
            merged = (old * rows + new * mean) / total
            spread = old * (errors + (rows - merged) ** 2) + new * (error + (mean - merged) ** 2)
            return xp.where(here, merged, rows), xp.where(here, spread / total, errors)

        levels, level_vars = merge(self.level, self.level_var, jump.level, jump.variance)
        trails, trail_vars = merge(self.trail, self.trail_var, trail, error)
        weight = (1.0 - new) * self.weight
        merged = (old * self.additive + new * additive) / total
        return self._replace(
            level=levels,
            trail=trails,
            level_var=level_vars,
            trail_var=trail_vars,
            cov=xp.where(here, self.cov * (old / total), self.cov),
            additive=xp.where(here, merged, self.additive),
            weight=_normalized(xp, xp.where(here, weight + new, weight)),
        )._valid()

    def mix(self, rest: Array) -> Bank:
        """Let the hypothesis change: a drift begins or ends, a jump becomes old.

        The mixing step of interacting multiple models: what moves from one hypothesis to another
        takes its mean and covariance along (moment matching). The longer the target has rested, in
        steps, the less moves.
        """
        xp, here, w, tuning = self.xp, self.jumped, self.weight, self.tuning
        switch = tuning.switch_chance * tuning.fading(rest)
        before = xp.where(here, 0.0 * w, w)
        settled = xp.sum(before, axis=0)  # not 1 - w[-1], which single precision makes 0
        among = before / settled
        drift_prior = tuning.drift_prior / tuning.drifts
        prior = xp.where(self.drift > 0.0, 0.0 * w + drift_prior, 1.0 - tuning.drift_prior)
        prior = xp.where(here, 0.0 * w, prior)
        stay = xp.where(here, tuning.jump_lasts * w, (1.0 - switch) * w)
        come = switch * settled * prior
        old = (1.0 - tuning.jump_lasts) * w[-1] * prior
        mass = stay + come + old
        # An unlikely jump is far from what the others know: one Gaussian over both would be as wide
        # as the jump, and at rest that would be most of what is known.
        old = old * (old / (old + tuning.unlikely * mass))
        carried = stay + come + old

        def mean(rows: Array) -> tuple[Array, Array, Array]:
            pool = xp.sum(among * rows, axis=0)
            return rows, pool, (stay * rows + come * pool + old * rows[-1]) / carried

        def covariance(errors: Array, a: tuple[Array, ...], b: tuple[Array, ...]) -> Array:
            # Of two of level and trail: means before, of the pool of all, and after.
            pooled = xp.sum(among * (errors + (a[0] - a[1]) * (b[0] - b[1])), axis=0)
            own = errors + (a[0] - a[2]) * (b[0] - b[2])
            all_of = pooled + (a[1] - a[2]) * (b[1] - b[2])
            jumped = errors[-1] + (a[0][-1] - a[2]) * (b[0][-1] - b[2])
            return (stay * own + come * all_of + old * jumped) / carried

        levels, trails = mean(self.level), mean(self.trail)
        return self._replace(
            level=levels[-1],
            trail=trails[-1],
            level_var=covariance(self.level_var, levels, levels),
            trail_var=covariance(self.trail_var, trails, trails),
            cov=covariance(self.cov, levels, trails),
            weight=_normalized(xp, mass),
            additive=mean(self.additive)[-1],
        )._valid()

    def predict(
        self,
        gain: Array,
        square: Array,
        slope: Array,
        unit: Array,
        dim: Array,
        keep: float,
        fall: Array,
        trail_sq: Array,
    ) -> Bank:
        """Predict the moments after the learner's step, under the drift that each supposes.

        Args:
            gain: ηL of the step.
            square: ‖g‖².
            slope: κ, the derivative of the noise by v.
            unit: The unit of drift, E‖ξ‖² as it was measured.
            dim: The effective dimension.
            keep: What the trail keeps of itself per step.
            fall: How much the step lowered the product with the trail.
            trail_sq: The trail's new squared length.
        """
        x, p, noise = self.level, self.level_var, self.noise(slope)
        q = self.drift * unit
        stay, own = (1.0 - gain) ** 2, gain * gain
        # What this batch's own square adds, ⟨∇, g⟩ by regression on it: a quiet batch leads less
        # far, a loud one overshoots where the step was too long. A gain is not believed.
        worse = gain * (gain - 2.0 * x / (2.0 * x + noise)) * (square - x - noise)
        level = stay * x + own * noise + self.xp.where(worse > 0.0, worse, 0.0 * worse)
        product = x * noise / dim  # the variance of ⟨∇, ξ⟩
        change = stay + own * slope
        level_var = change * change * p + 4.0 * own * stay * product
        level_var = level_var + 2.0 * (own * noise) ** 2 / dim
        level_var = level_var + (4.0 * level + 2.0 * q) * q / dim
        trail_var = p + 2.0 * keep * self.cov + keep * keep * self.trail_var
        return self._replace(
            level=level + q,
            trail=keep * self.trail + x - fall,
            level_var=level_var,
            trail_var=trail_var + product + q * trail_sq / dim,
            cov=change * (p + keep * self.cov) - 2.0 * gain * product,
        )._valid()

    def _observe_level(self, slope: Array, innovation: Array, total: Array) -> Bank:
        """Return the Kalman correction by an observation of slope·v."""
        gain, other, level_var, cov, trail_var = _update(
            slope, total, self.level_var, self.cov, self.trail_var
        )
        return self._replace(
            level=positive(self.xp, self.level, self.level + gain * innovation),
            trail=self.trail + other * innovation,
            level_var=level_var,
            trail_var=trail_var,
            cov=cov,
        )._valid()

    def _by_student(self, innovation: Array, total: Array, scale: Array) -> Array:
        """Return the weights after a product, by Student's likelihood of its innovation."""
        freedom = self.tuning.product_freedom
        tail = (1.0 + innovation * innovation / (freedom * total)) ** (0.5 * (freedom + 1.0))
        return _normalized(self.xp, self.weight / (tail * scale * self.xp.sqrt(total)))

    def _f_density(self, a: Array, b: float, ratio: Array) -> Array:
        """Return the F density of the square's logarithm; `ratio` is a times the variate."""
        xp = self.xp
        value = -a * xp.log1p(b / ratio) - b * xp.log1p(ratio / b) - log_beta(xp, a, b)
        return xp.exp(xp.where(value > LEAST_EXPONENT, value, LEAST_EXPONENT))

    def _valid(self) -> Bank:
        """Return the filter with a positive level and a covariance matrix that can be one."""
        xp = self.xp
        level = xp.where(self.level > TINY**0.5, self.level, TINY**0.5)
        square = level * level
        low, high = LEAST_ERROR * square, LARGEST_ERROR * square
        level_var = xp.where(self.level_var > low, self.level_var, low)
        level_var = xp.where(level_var < high, level_var, high)
        trail_var = xp.where(self.trail_var > TINY, self.trail_var, TINY)
        most = LARGEST_CORRELATION * xp.sqrt(level_var) * xp.sqrt(trail_var)
        cov = xp.where(self.cov < most, self.cov, most)
        return self._replace(
            level=level,
            level_var=level_var,
            trail_var=trail_var,
            cov=xp.where(cov > -most, cov, -most),
        )


class Jump(NamedTuple):
    """What the gradient's square says of v, had the target just jumped."""

    level: Array  # v
    variance: Array  # of v
    evidence: Array  # how well the square shows a jump, from 0 to 1


def log_beta(xp: Any, a: Array, b: float) -> Array:
    """Return log B(a, b), b >= 6.

    Γ(a + 6)/Γ(a) is a product; Γ(a + b)/Γ(a + 6) is Stirling's, so arranged that nothing cancels.
    """
    more, low, high = b - 6.0, a + 6.0, a + b
    value = math.lgamma(b) - xp.log(a * (a + 1.0) * (a + 2.0) * (a + 3.0) * (a + 4.0) * (a + 5.0))
    value = value - (low - 0.5) * xp.log1p(more / low) - more * (xp.log(high) - 1.0)
    return value - (1.0 / high - 1.0 / low) / 12.0


def _update(
    slope: Array, total: Array, own_var: Array, cov: Array, other_var: Array
) -> tuple[Array, Array, Array, Array, Array]:
    """Return both gains of an observation of slope·(own), and own, shared and other variance."""
    gain, other = slope * own_var / total, slope * cov / total
    left = 1.0 - slope * gain
    return gain, other, left * own_var, left * cov, other_var - slope * other * cov


def _normalized(xp: Any, weight: Array) -> Array:
    """Return the weights as shares of 1, none of them quite 0."""
    total = xp.sum(weight, axis=0)
    share = weight / xp.where(total > 0.0, total, 1.0)
    share = xp.where(share > LEAST_WEIGHT, share, LEAST_WEIGHT)
    return share / xp.sum(share, axis=0)


def positive(xp: Any, old: Array, new: Array) -> Array:
    """Return the new value; far below the old one it falls by a factor and stays positive."""
    low = STEEPEST_FALL * old
    return xp.where(new > low, new, (1.0 - STEEPEST_FALL) * old * (low / (old - new + low + TINY)))
