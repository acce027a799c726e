"""The numbers that were tuned, in one record; guards and numbers that follow from others apart.

A study of one number subclasses the schedule, and nothing else:

    class Bolder(dr.MeasuredRate):
        tuning = replace(TUNING, first_step=0.25)

`python benchmarks/sensitivity.py` tells what half and twice of each is worth; docs/measured_how.md
has the table, and what there were more of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from driftrate.schedules.base import Array


@dataclass(frozen=True)
class Tuning:
    """Every number of `MeasuredRate` that was chosen by what it does to the regret."""

    # The hypotheses. A drift is told by the constant rate that would follow it best.
    slowest: float = 0.003  # these rates go from here
    fastest: float = 0.5  # to here
    drifts: int = 6  # in so many steps of one ratio
    drift_prior: float = 0.3  # prior probability of all drifts together; else it rests
    switch_chance: float = 0.003  # probability per step that the drift changes, without rest
    jump_chance: float = 0.0016  # that of a jump, per factor e by which it raises the square
    jump_lasts: float = 0.8  # probability that a jump is still one a step later, as the start is
    patience: float = 100.0  # steps of rest that quarter the chances of change
    # A jump of a smaller share leaves a hypothesis' moments as they are. Also the prior probability
    # of a thin tail, and its return to the prior per step.
    unlikely: float = 0.01

    # Likelihoods: of products, and of the gradient's square.
    product_freedom: float = 3.0  # degrees of freedom of Student's t: one outlier convinces nobody
    thin_tail: float = 24.0  # half the lower degrees of freedom of a regular square's F law
    heavy_tail: float = 6.0  # the same of an irregular square; at least 6

    # Corrections. A batch's residuals move all its products together.
    inflation: float = 3.0  # of the variances of the square and of a product of parts
    own_square: float = 0.2  # degrees of freedom that draw a batch's relative square to 1

    # The noise.
    noise_gain: float = 0.03  # of its means
    first_noise: float = 0.25  # of the first square, at least; and of that, what is additive
    loud: float = 5.0  # times the expected noise, beyond which a batch is not believed

    # The effective dimension.
    dim_credit: float = 60.0  # batches that the number of coordinates is worth, where it is told
    dim_many: float = 512.0  # coordinates, beyond which it is worth less; where not told, so many

    # More than one of them.
    memory: float = 0.999  # share of the past that the measurements of D and L keep per step
    deviations: float = 3.0  # beyond which an innovation is clipped, noise bounded, a prior left

    # The curvature L.
    curvature_guess: float = 1.6  # its prior mean and deviation
    # Larger ones serve drawn streams better, but one real stream is then thrown.
    first_step: float = 0.125  # of ζ/L; with parts L may come to be this share of the guess
    long_step: float = 4.0  # times the expected square: the longest step while L is a guess

    # Squares of so many times the expected one are not believed the first time. Not fewer: a shift
    # finds a network that is sure of its labels with next to no square.
    outlier: float = 1e12

    @property
    def drift_variances(self) -> tuple[float, ...]:
        """Return q of each hypothesis in units of the noise: rest, the drifts, the jump.

        A random walk of variance q per step is followed best at the rate r, q = r²/(1 - r).
        """
        ratio = (self.fastest / self.slowest) ** (1.0 / (self.drifts - 1))
        rates = (self.slowest * ratio**place for place in range(self.drifts))
        return (0.0, *(rate * rate / (1.0 - rate) for rate in rates), 0.0)

    @property
    def first_weights(self) -> tuple[float, ...]:
        """Weights of the hypotheses before any batch."""
        others = self.drifts + 1
        return (*[(1.0 - self.jump_lasts) / others] * others, self.jump_lasts)

    @property
    def parts_tail(self) -> float:
        """Half the lower degrees of freedom where a product of parts confirms a jump: between."""
        return math.sqrt(self.heavy_tail * self.thin_tail)

    @property
    def recent_gain(self) -> float:
        """Gain of the noise of the last batches: as many as a jump lasts."""
        return 1.0 - self.jump_lasts

    @property
    def curvature_prior(self) -> float:
        """Precision of the prior of L."""
        return 1.0 / self.curvature_guess**2

    def fading(self, rest: Array) -> Array:
        """Return what is left of the chances of change after so many steps of rest.

        Squared: what false alarms leave behind then falls as 1/t, as the optimal rate does.
        """
        return (self.patience / (self.patience + rest)) ** 2


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
STEEPEST_FALL = 0.2  # of a level or a noise, by one correction: what is below is reached by degrees
LEAST_JUMP = 1e-6  # of the gradient's square
LEAST_INVERSE = 1e-9  # 1/D
