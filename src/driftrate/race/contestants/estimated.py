"""The rates of the paper, their constants estimated from the gradients of single rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import isfinite
from typing import Any

import numpy as np

import driftrate as dr
from driftrate import estimate
from driftrate.race.contestants.base import LINEAR_MODELS, Contestant, Setup
from driftrate.race.models import Floats, Labels, Model

# The share of the past that running means of noise, curvature and loss keep a step.
_MEMORY = 0.99


class _Constants:
    """Running estimates of what the paper's rates must be told.

    L: the largest secant along the last step, both ends on the present batch. h: their running
    mean, the curvature where the learner moves. σ²: the variance of one row's gradient. D: twice
    the farthest distance from the start, at least 1. γ: the learner's steps less its own noise.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.largest = estimate.RunningSmoothness()
        self.farthest = estimate.RunningDiameter(floor=1.0)
        self.steep, self.far = self.largest.init(), self.farthest.init()
        self.moved = estimate.DebiasedShift().init()
        self.start: Floats | None = None
        self.before: Floats | None = None
        self.smoothness = self.curvature = self.diameter = 1.0
        self.variance = self.shift = 0.0
        self.count = 0

    def look(self, theta: Floats, x: Floats, y: Labels, gradients: Floats, mean: Floats) -> None:
        """Take in one batch, with the gradients of its rows at θ."""
        if self.start is None or self.before is None:
            self.start = theta
            # No step yet: a short one along the gradient tells the curvature of this batch.
            self.before = theta - 1e-4 * mean / max(float(np.linalg.norm(mean)), 1e-30)
        other = self.model.gradients(self.before, x, y)[1]
        secant = float(estimate.secant(theta, mean, self.before, other))
        parts = estimate.from_parts(gradients)
        spread = float(parts.spread)
        weight = max(1.0 / (self.count + 1), 1.0 - _MEMORY)
        self.variance += weight * (spread * len(x) - self.variance)
        if secant > 0.0:
            self.smoothness, self.steep = self.largest.update(self.steep, secant)
            self.curvature += weight * (secant - self.curvature)
        distance = float(np.linalg.norm(theta - self.start))
        self.diameter, self.far = self.farthest.update(self.far, distance)
        length = float(np.linalg.norm(theta - self.before)) if self.count else 0.0
        rule = estimate.DebiasedShift(curvature=self.curvature)
        signal = dr.Signal(step_length=length, grad_sq=float(parts.grad_sq), spread=spread)
        self.shift, self.moved = rule.update(self.moved, signal)
        self.before = theta
        self.count += 1


class _Estimated(ABC):
    """SGD at a rate of the paper, its constants at every step the newest estimates."""

    def __init__(self, setup: Setup) -> None:
        self.model = setup.linear
        self.theta = self.model.init()
        self.rate: float | None = None
        self.known = _Constants(setup.linear)
        self.state: dict[str, Any] | None = None

    def step(self, x: Floats, y: Labels) -> Floats:
        scores, loss, gradients = self.model.parts(self.theta, x, y, parts=len(x))
        if not isfinite(loss):  # the estimators would refuse it; the race marks it
            return scores
        gradient = gradients.mean(axis=0)
        self.known.look(self.theta, x, y, gradients, gradient)
        schedule, signal, scale = self.ask(x, y, float(loss))
        if self.state is None:
            self.state = schedule.init()
        rate, self.state = schedule.update(self.state, signal)
        self.rate = float(rate) * scale
        self.theta = self.theta - self.rate * gradient
        return scores

    def forecast(self, x: Floats) -> Floats:
        return self.model.scores(self.theta, x)

    @abstractmethod
    def ask(self, x: Floats, y: Labels, loss: float) -> tuple[dr.Schedule, dr.Signal, float]:
        """Return the schedule, its signal, and what its rate is multiplied by."""


class _Convex(_Estimated):
    """ConvexRate with estimated L, σ, D and γ."""

    def ask(self, x: Floats, y: Labels, loss: float) -> tuple[dr.Schedule, dr.Signal, float]:
        k = self.known
        rate = dr.ConvexRate(k.smoothness, noise_std=k.variance**0.5, diameter=k.diameter)
        return rate, dr.Signal(batch_size=len(x), shift=k.shift), 1.0


class _Linear(_Estimated):
    """LinearRate in units of L: gradients over L have the curvature 1 that it assumes, or less."""

    def ask(self, x: Floats, y: Labels, loss: float) -> tuple[dr.Schedule, dr.Signal, float]:
        k = self.known
        noise = (k.variance / self.model.size) ** 0.5 / k.smoothness
        rate = dr.LinearRate(self.model.size, noise_std=noise)
        return rate, dr.Signal(batch_size=len(x), shift=k.shift), 1.0 / k.smoothness


class _Nonconvex(_Estimated):
    """NonconvexRate with estimated L and σ.

    The loss is the running mean before this batch; its shift the running mean, signs kept, of this
    batch's loss less the last one's, both at the present weights.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.last: tuple[Floats, Labels] | None = None
        self.loss: float | None = None
        self.change = 0.0

    def ask(self, x: Floats, y: Labels, loss: float) -> tuple[dr.Schedule, dr.Signal, float]:
        k, expected = self.known, loss if self.loss is None else self.loss
        if self.last is not None:
            old = float(self.model.gradients(self.theta, *self.last)[0])
            self.change += 0.1 * (loss - old - self.change)
        self.last, self.loss = (x, y), expected + 0.1 * (loss - expected)
        rate = dr.NonconvexRate(k.smoothness, noise_std=k.variance**0.5)
        signal = dr.Signal(batch_size=len(x), loss=expected, loss_shift=abs(self.change))
        return rate, signal, 1.0


CONTESTANTS = (
    Contestant("ConvexRate", "driftrate", _Convex, ours=True, models=LINEAR_MODELS),
    Contestant("NonconvexRate", "driftrate", _Nonconvex, ours=True, models=LINEAR_MODELS),
    Contestant("LinearRate", "driftrate", _Linear, ours=True, models=LINEAR_MODELS),
)
