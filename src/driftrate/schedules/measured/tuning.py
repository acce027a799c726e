"""The numbers that were tuned, in one record; guards and numbers that follow from others apart.

A study of one number subclasses the schedule, and nothing else:

    class Bolder(dr.MeasuredRate):
        tuning = replace(TUNING, first_step=0.25)

Figures are geometric means of the regret over the better of the greedy and the best constant rate,
this choice last ("1.41 for 1.34"), unless they say otherwise; docs/measured.md has the streams.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Every number of `MeasuredRate` that was chosen by what it does to the regret."""

    # The hypotheses. A drift is told by the constant rate that would follow it best.
    drift_rates: tuple[float, ...] = (0.003, 0.01, 0.03, 0.08, 0.2, 0.5)
    drift_prior: float = 0.3  # prior probability of all drifts together; else it rests
    first_prior: float = 0.1  # that the start is anything but a jump
    # Other chances of change, by factors of 1.5 to 4: 2.32 to 2.40 for 2.36 on the hardest paths.
    switch_chance: float = 0.003  # probability per step that the drift changes, without rest
    jump_chance: float = 0.008  # probability per step of a jump, without rest
    jump_lasts: float = 0.8  # probability that a jump is still one a step later
    switch_patience: float = 4.0  # steps of rest that halve the chance of a switch
    # 650 finds more jumps, but false alarms then cost a sixth of the regret at rest.
    jump_patience: float = 100.0  # steps of rest that quarter the chance of a jump
    # None, so that every jump's moments are merged: regret at rest 17.3 for 12.9 in 10^5 steps.
    sliver: float = 0.01  # share of a hypothesis; a jump of less leaves its moments as they are

    # Likelihoods: of products, and of the gradient's square.
    product_freedom: float = 3.0  # degrees of freedom of Student's t: one outlier convinces nobody
    thin_tail: float = 24.0  # half the lower degrees of freedom of a regular square's F law
    # 8 lower degrees of freedom in place of 12 saw 91 of 100 jumps; 16 made 2 runs of 128 4x worse.
    heavy_tail: float = 6.0  # the same of an irregular square, whole gradients alone; at least 6
    parts_tail: float = 12.0  # the same where a product of parts is seen too; at least 6
    thin_prior: float = 0.01  # prior probability of the thin tail
    thin_fade: float = 0.01  # its return to the prior, per step
    jump_range: float = 5.0  # a jump multiplies the square by up to e^5, all factors equally likely
    jump_error: float = 0.1  # relative variance of the level after a jump, beside that of sampling

    # Corrections. A batch's residuals move all its products together.
    square_inflation: float = 3.0  # of the variance of the square
    cross_inflation: float = 3.0  # of the variance of a product of parts; 1: 1.37 for 1.34 at d = 2
    square_clip: float = 2.0  # deviations, at which the innovation of the square is clipped
    own_square: float = 0.2  # degrees of freedom that draw a batch's relative square to 1

    # The noise.
    additive_memory: float = 0.03  # gain of the additive noise
    additive_delay: float = 1.5  # its first gains are 1/(t + this)
    additive_start: float = 0.25  # of the first batch's noise: where it starts
    additive_rise: float = 10.0  # times itself: the largest observation it takes
    additive_known: float = 20.0  # steps, from which on that limit holds
    additive_fall: float = 0.9  # of what its gain leaves: the least it falls to in a step
    mean_memory: float = 0.06  # gain of the mean noise, the unit of drift
    recent_memory: float = 0.25  # gain of the noise of the last batches
    recent_deviations: float = 3.0  # above which the additive noise is clipped by the recent one
    least_noise: float = 0.1  # of the first batch's square, at least

    # The effective dimension. 10 batches' worth of prior: diverges at d = 512, B = 256.
    dim_credit: float = 60.0  # batches that the number of coordinates is worth, where it is told
    dim_many: float = 512.0  # coordinates, beyond which it is worth less
    dim_unknown: float = 128.0  # the dimension before anything was seen, where it is not told
    dim_bound: float = 4.0  # times the dimension at which all noise would be a multiple of v
    dim_memory: float = 0.995  # share of the past that its measurement keeps per step
    dim_clip: float = 9.0  # over D: the largest squared innovation that it takes
    dim_trust: float = 0.05  # return of trust in it after a jump, per step
    # None: one run in 24 diverged at d = 512.
    forecast_doubt: float = 0.25  # of a forecast's square: its variance, beyond the filter's

    # The curvature L.
    curvature_guess: float = 1.6  # its prior mean and deviation; 2.5: 1.41 for 1.34
    guess_deviations: float = 5.0  # beyond which a larger L makes the prior give way
    least_curvature: float = 0.2  # with parts; 0.05: 1.339, 0.01: 1.346, for 1.332
    curvature_memory: float = 0.999  # share of the past kept per step; 0.99 and 0.995: the same
    jump_noise: float = 10.0  # times the expected noise: products of such parts may not lower L
    # 1/4: 1.310, 1/2: 1.283, for 1.332; but one real stream 1.085 and 1.51 for 1.036.
    first_step: float = 0.125  # of ζ/L
    long_step: float = 4.0  # times the expected square: the longest step while L is a guess

    # Outliers: squares of so many times the expected one are not believed the first time.
    outlier: float = 1e6
    outlier_relative: float = 1e12  # under another optimizer: a sure network has next to no square

    @property
    def drift_variances(self) -> tuple[float, ...]:
        """Return q of each hypothesis in units of the noise: rest, the drifts, the jump.

        A random walk of variance q per step is followed best at the rate r, q = r²/(1 - r).
        """
        drifts = (rate * rate / (1.0 - rate) for rate in self.drift_rates)
        return (0.0, *drifts, 0.0)

    @property
    def first_weights(self) -> tuple[float, ...]:
        """Weights of the hypotheses before any batch."""
        others = len(self.drift_rates) + 1
        return (*[self.first_prior / others] * others, 1.0 - self.first_prior)

    @property
    def curvature_prior(self) -> float:
        """Precision of the prior of L."""
        return 1.0 / self.curvature_guess**2


TUNING = Tuning()

# Guards: none of these is felt where numbers are ordinary.
SMALLEST, LARGEST = 1e-15, 1e15  # squares of what is beyond would leave single precision
TINY = 1e-30  # added to a divisor that may be 0
# Far below any chance of change, or no rest would last: with 1e-6 the regret of each decade at rest
# is 3.1 times that of the one before.
LEAST_WEIGHT = 1e-12
LEAST_EXPONENT = -60.0  # of a likelihood
LEAST_ERROR, LARGEST_ERROR = 1e-8, 4.0  # variance of a level over its square
LARGEST_CORRELATION = 0.99
STEEPEST_FALL = 0.2  # of a level, by one correction: what is below is reached by degrees
LEAST_JUMP = 1e-6  # of the gradient's square
LEAST_INVERSE = 1e-9  # 1/D
