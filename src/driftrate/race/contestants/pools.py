"""Pools of rates: Ader, and HedgedSGD of this library."""

from __future__ import annotations

from math import ceil, log2, sqrt
from typing import Any

import numpy as np

from driftrate.learners.hedged_sgd import HedgedSGD
from driftrate.learners.hedged_sgd_fast import FastHedgedSGD
from driftrate.race.contestants.base import LINEAR_MODELS, Contestant, Setup, grid
from driftrate.race.models import Floats, Labels


class Ader:
    r"""Online gradient descent at N rates in a ball, mixed by Hedge.

    With horizon T, diameter D and gradient bound G,

        η_i = 2^{i-1} (D/G) √(7/(2T)),   i = 1, ..., N = ⌈½ log₂(1 + 4T/7)⌉ + 1,
        w_i ∝ w_i exp(-α ℓ_t(θ_i)),   α = √(8/T)/c,   w_i = (1 + 1/N)/(i (i + 1)) at first,

    θ = Σ w_i θ_i predicts, each expert steps along its own gradient and is projected onto the ball
    of diameter D. T, D, G and the range c of the loss must be told; T is, D is a guess, G is taken
    as the length √d of a row of standardised features, and c as 1.

    Args:
        setup: The model and the horizon.
        diameter: D; the default had the lowest mean log loss of a few on the streams that
            `descent` names.

    Reference:
        Zhang, Lu and Zhou (2018), "Adaptive online learning in dynamic environments", Algorithms 1
        and 2.
    """

    def __init__(self, setup: Setup, diameter: float = 3.0) -> None:
        self.model, horizon = setup.linear, max(setup.steps, 1)
        count = ceil(0.5 * log2(1.0 + 4.0 * horizon / 7.0)) + 1
        index = np.arange(1, count + 1)
        bound = sqrt(self.model.features)
        self.rates = 2.0 ** (index - 1) * (diameter / bound) * sqrt(7.0 / (2.0 * horizon))
        self.logs = np.log((1.0 + 1.0 / count) / (index * (index + 1.0)))
        self.alpha = sqrt(8.0 / horizon)
        self.radius = 0.5 * diameter
        self.experts = np.tile(self.model.init(), (count, 1))
        self.rate: float | None = None

    def step(self, x: Floats, y: Labels) -> Floats:
        """Train on a batch and return its scores by the weights of before."""
        weights = np.exp(self.logs - self.logs.max())
        weights /= weights.sum()
        self.rate = float(weights @ self.rates)
        scores = self.model.scores(weights @ self.experts, x)
        losses, gradients = self.model.gradients(self.experts, x, y)
        self.logs = np.log(np.maximum(weights, 1e-300)) - self.alpha * losses
        moved = self.experts - self.rates[:, None] * gradients
        length = np.linalg.norm(moved, axis=1, keepdims=True)
        self.experts = moved * np.minimum(1.0, self.radius / np.maximum(length, 1e-300))
        return scores


class HedgedPlayer:
    """HedgedSGD, by its fast twin, on the flat weights; every copy sees the same batch."""

    def __init__(self, setup: Setup, **options: Any) -> None:
        self.model, rule = setup.linear, HedgedSGD(**options)
        self.pool = FastHedgedSGD(rule, rule.init(self.model.init()))
        self.rate: float | None = None

    def step(self, x: Floats, y: Labels) -> Floats:
        """Train on a batch and return its scores by the weights of before."""
        scores, losses, gradients = self.model.parts(self.pool.points, x, y, parts=1)
        self.pool.update(losses, gradients[0])
        self.rate = self.pool.rate
        mixture: Floats = scores[0]
        return mixture


_DIAMETERS = grid("diameter", [0.3, 1.0, 10.0, 30.0])
_COPIES = grid("copies", [6, 14])
CONTESTANTS = (
    Contestant("ader", "pool", Ader, _DIAMETERS, models=LINEAR_MODELS),
    Contestant("HedgedSGD", "driftrate", HedgedPlayer, _COPIES, ours=True, models=LINEAR_MODELS),
)
