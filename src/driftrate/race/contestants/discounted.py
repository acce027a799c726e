"""A pool of discounts: smoothed OGD with the discounted normal predictor."""

from __future__ import annotations

from math import ceil, erf, exp, log2, pi, sqrt

import numpy as np

from driftrate.race.contestants.base import LINEAR_MODELS, Contestant, Setup, grid
from driftrate.race.models import Floats, Labels


class NormalPredictor:
    r"""The discounted normal predictor with conservative updating: how much to trust the second.

    With discount ρ, n = 1/(1 - ρ) and payoffs b in [-1, 1], positive where the second of two was
    better, the discounted sum x of payoffs gives the second the weight

        g(x) = √(n/8) Z e^{x²/16n} ∫_0^{x/√(8n)} e^{-s²/2} ds,    clipped to [0, 1],

    and x ← ρ x + b where the weight was neither 0 nor 1 or b speaks against it; else x ← ρ x.

    Args:
        discount: ρ.
        wealth: Z.

    Reference:
        Kapralov and Panigrahy (2011), "Prediction strategies without loss"; Zhang, Jiang, Yi and
        Yang (2022), "Smoothed online convex optimization based on discounted-normal-predictor",
        NeurIPS.
    """

    def __init__(self, discount: float, wealth: float) -> None:
        self.discount, self.wealth = discount, wealth
        self.length = 1.0 / (1.0 - discount)
        self.sum = 0.0

    @property
    def weight(self) -> float:
        """The weight of the second, in [0, 1]."""
        x, n = self.sum, self.length
        # Beyond this g is over 1 for every Z that double precision holds.
        if x <= 0.0 or x * x > 16.0 * n * 700.0:
            return float(x > 0.0)
        # The integral in terms of the usual error function.
        area = sqrt(pi / 2.0) * erf(x / sqrt(16.0 * n))
        return min(sqrt(n / 8.0) * self.wealth * exp(x * x / (16.0 * n)) * area, 1.0)

    def update(self, payoff: float) -> None:
        """Take in a payoff."""
        weight = self.weight
        sure = (self.sum < 0.0 and payoff < 0.0) or (weight >= 1.0 and payoff > 0.0)
        self.sum = self.discount * self.sum + (0.0 if sure else payoff)


class SmoothedOGD:
    r"""OGD at rates for a grid of discounts, mixed one after the other by normal predictors.

    With horizon T, diameter D, gradient bound G and the shortest memory τ, the discounts and their
    rates are

        λ_i = 1 - 2^{i-1}/T,    η_i = (D/G) √(2^i/T),    i = 1, ..., ⌈log₂(T/τ)⌉ + 1,

    the last discount at least 1 - 1/τ. Each expert θ_i takes projected gradient steps of its own,
    and

        m_1 = θ_1,    m_i = (1 - ω_i) m_{i-1} + ω_i θ_i,

    ω_i the weight of a predictor of discount λ_i and Z = 1/T that is paid (ℓ(m_{i-1}) - ℓ(θ_i))/c,
    clipped to [-1, 1]; the last m predicts. The paper starts from any learner, here from the expert
    of the longest memory, and takes c = G D; as in `pools.Ader`, which must be told the same, the
    range c of the loss is taken as 1 and G as the length √d of a row of standardised features. A
    predictor is sure when its sum is near √(16 n ln T): with gaps of loss well below c, an expert
    must lead for hundreds of steps before it is followed.

    Args:
        setup: The model and the horizon.
        diameter: D; the default had the lowest mean log loss of a few on the streams that
            `descent` names.
        shortest: τ, in steps.
        wealth: Z T; the paper finds 0.1 to 100 much the same.

    Reference:
        Yang, Yang and Zhang (2026), "Discounted online convex optimization: uniform regret across
        a continuous interval", ICLR, arXiv 2505.19491, Algorithms 2 to 4.
    """

    def __init__(
        self, setup: Setup, diameter: float = 3.0, shortest: float = 2.0, wealth: float = 1.0
    ) -> None:
        self.model, horizon = setup.linear, max(setup.steps, 4)
        count = max(ceil(log2(horizon / shortest)), 1) + 1
        powers = 2.0 ** np.arange(1, count + 1)
        self.rates = diameter / sqrt(self.model.features) * np.sqrt(powers / horizon)
        discounts = np.maximum(1.0 - powers[1:] / (2.0 * horizon), 1.0 - 1.0 / shortest)
        self.predictors = [NormalPredictor(float(d), wealth / horizon) for d in discounts]
        self.radius = 0.5 * diameter
        self.experts = np.tile(self.model.init(), (count, 1))
        self.rate: float | None = None

    def step(self, x: Floats, y: Labels) -> Floats:
        """Train on a batch and return its scores by the weights of before."""
        mixtures, rate = [self.experts[0]], float(self.rates[0])
        for i, predictor in enumerate(self.predictors, 1):
            weight = predictor.weight
            mixtures.append((1.0 - weight) * mixtures[-1] + weight * self.experts[i])
            rate += weight * (float(self.rates[i]) - rate)
        self.rate = rate
        scores = self.model.scores(mixtures[-1], x)
        both = np.stack([mixtures, self.experts])
        losses, gradients = self.model.gradients(both, x, y)
        for i, predictor in enumerate(self.predictors, 1):
            predictor.update(float(np.clip(losses[0, i - 1] - losses[1, i], -1.0, 1.0)))
        moved = self.experts - self.rates[:, None] * gradients[1]
        length = np.linalg.norm(moved, axis=1, keepdims=True)
        self.experts = moved * np.minimum(1.0, self.radius / np.maximum(length, 1e-300))
        return scores


CONTESTANTS = (
    Contestant(
        "smoothed ogd",
        "pool",
        SmoothedOGD,
        (*grid("diameter", [0.3, 1.0, 10.0, 30.0]), {"wealth": 100.0}),
        models=LINEAR_MODELS,
    ),
)
