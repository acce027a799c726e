"""Step sizes that are solved for or learned row by row: NLMS, IDBD, Autostep.

All three were written for squared loss, from their papers. With several scores each is a unit of
its own, and for classes they are played in the gradient form: the error of a unit is y - p, p its
chance by the logistic function or softmax, and where the squared loss has the curvature x² there
is x² p (1 - p).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from driftrate.race.contestants.base import LINEAR_MODELS, Contestant, Setup, grid
from driftrate.race.models import Floats, Labels


class _RowByRow(ABC):
    """All rows of a batch are predicted before the first of them is learned."""

    def __init__(self, setup: Setup) -> None:
        self.model = setup.linear
        self.theta = self.model.init().reshape(self.model.features, self.model.outputs)
        self.rate: float | None = None

    def step(self, x: Floats, y: Labels) -> Floats:
        """Train on a batch and return its scores by the weights of before."""
        scores = self.model.scores(self.theta.ravel(), x)
        for row, label in zip(x, y, strict=True):
            error, curvature = self._look(row @ self.theta, label)
            self.learn(row[:, None], error, curvature)
        return scores

    def _look(self, scores: Floats, label: Any) -> tuple[Floats, Floats]:
        """Return the errors of the units on a row, and the curvature of its loss in the scores."""
        if self.model.task == "regression":
            return label - scores, np.ones(1)
        if self.model.task == "binary":
            p = 0.5 * (1.0 + np.tanh(0.5 * scores))
            return label - p, p * (1.0 - p)
        p = np.exp(scores - scores.max())
        p /= p.sum()
        target = np.zeros_like(p)
        target[label] = 1.0
        return target - p, p * (1.0 - p)

    @abstractmethod
    def learn(self, x: Floats, error: Floats, curvature: Floats) -> None:
        """Learn from a row, (features, 1), with an error and a curvature for each score."""


class NLMS(_RowByRow):
    r"""Normalised least mean squares: the step is solved for, not chosen.

        θ ← θ + μ δ x / (ε + ‖x‖²),

    so that with μ = 1 and ε = 0 the row, shown again, is predicted without an error.

    Args:
        setup: The model.
        mu: μ, the share of the error that a step takes away; below 2. No paper names a default:
            this is that of the filters of padasip and MATLAB.
        eps: ε.

    Reference:
        Nagumo and Noda (1967), "A learning method for system identification"; Haykin, "Adaptive
        Filter Theory", chapter 6.
    """

    def __init__(self, setup: Setup, mu: float = 0.1, eps: float = 1e-3) -> None:
        super().__init__(setup)
        self.mu, self.eps = mu, eps

    def learn(self, x: Floats, error: Floats, curvature: Floats) -> None:
        """Step by what takes away a share of the error."""
        self.rate = self.mu / (self.eps + float(np.vdot(x, x)))
        self.theta = self.theta + self.rate * error * x


class IDBD(_RowByRow):
    r"""Incremental delta-bar-delta: a step size for each weight, learned by its meta-gradient.

    With δ the error of a unit and c the curvature of its loss (1 for squared loss),

        β ← β + μ δ x h,    α = e^β,    θ ← θ + α δ x,    h ← h [1 - α c x²]₊ + α δ x.

    Args:
        setup: The model.
        meta: μ; the default and that of α are those of the paper's experiment.
        alpha: α at the start.

    Reference:
        Sutton (1992), "Adapting bias by gradient descent: an incremental version of
        delta-bar-delta", AAAI.
    """

    def __init__(self, setup: Setup, meta: float = 0.001, alpha: float = 0.05) -> None:
        super().__init__(setup)
        self.meta = meta
        self.beta = np.full_like(self.theta, np.log(alpha))
        self.trace = np.zeros_like(self.theta)

    def learn(self, x: Floats, error: Floats, curvature: Floats) -> None:
        """Move the step sizes, then the weights."""
        along = error * x
        self.beta = self.beta + self.meta * along * self.trace
        alpha = np.exp(self.beta)
        self.rate = float(alpha.mean())
        self.theta = self.theta + alpha * along
        kept = np.maximum(1.0 - alpha * curvature * x * x, 0.0)
        self.trace = self.trace * kept + alpha * along


class Autostep(_RowByRow):
    r"""IDBD whose meta-gradient is measured in its own largest values, and that never overshoots.

    With δ the error of a unit and c the curvature of its loss (1 for squared loss),

        v ← max(|δ x h|, v + α c x² (|δ x h| - v)/τ),
        α ← α exp(μ δ x h / v) where v > 0,    α ← α / max(Σ α x², 1),
        θ ← θ + α δ x,    h ← h (1 - α c x²) + α δ x.

    Args:
        setup: The model.
        meta: μ; this and τ are the paper's, which finds them to need no tuning.
        alpha: The sum of all α of a unit at the start, as an overshoot is a matter of their sum.
        tau: τ.

    Reference:
        Mahmood, Sutton, Degris and Pilarski (2012), "Tuning-free step-size adaptation", ICASSP.
    """

    def __init__(
        self, setup: Setup, meta: float = 0.01, alpha: float = 0.1, tau: float = 1e4
    ) -> None:
        super().__init__(setup)
        self.meta, self.tau = meta, tau
        self.alpha = np.full_like(self.theta, alpha / self.model.features)
        self.trace, self.largest = np.zeros_like(self.theta), np.zeros_like(self.theta)

    def learn(self, x: Floats, error: Floats, curvature: Floats) -> None:
        """Move the step sizes, then the weights."""
        along, square = error * x, x * x
        meta = along * self.trace
        size = np.abs(meta)
        slow = self.largest + self.alpha * curvature * square * (size - self.largest) / self.tau
        self.largest = np.maximum(size, slow)
        share = np.divide(meta, self.largest, out=np.zeros_like(meta), where=self.largest > 0.0)
        alpha = self.alpha * np.exp(self.meta * share)
        self.alpha = alpha / np.maximum((alpha * square).sum(axis=0), 1.0)
        self.rate = float(self.alpha.mean())
        self.theta = self.theta + self.alpha * along
        self.trace = self.trace * (1.0 - self.alpha * curvature * square) + self.alpha * along


def _by_row(name: str, build: Any, settings: Any) -> Contestant:
    return Contestant(name, "step sizes", build, settings, models=LINEAR_MODELS, by_row=True)


_MUS = grid("mu", [0.003, 0.01, 0.03, 0.3, 1.0])
_IDBD = tuple(
    {"alpha": alpha, "meta": meta}
    for alpha in (0.001, 0.01, 0.05)
    for meta in (0.0001, 0.001, 0.01)
    if (alpha, meta) != (0.05, 0.001)
)
_AUTOSTEP = (*grid("meta", [0.001, 0.1]), *grid("alpha", [0.01, 1.0]))
CONTESTANTS = (
    _by_row("nlms", NLMS, _MUS),
    _by_row("idbd", IDBD, _IDBD),
    _by_row("autostep", Autostep, _AUTOSTEP),
)
