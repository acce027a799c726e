"""Recursive least squares with forgetting, and its extended Kalman form for classes."""

from __future__ import annotations

import numpy as np

from driftrate.errors import ConfigError
from driftrate.race.contestants.base import LINEAR_MODELS, Contestant, Setup
from driftrate.race.models import Floats, Labels

# So many equations take 128 MB, and seconds.
_LARGEST = 4000
# A class' chance counts as at least this, so that a sure mistake still moves the weights.
_LEAST = 0.01


class ForgettingFilter:
    r"""A Kalman filter whose past loses weight by λ a row.

    With J the derivative of a row's scores by the weights, p its prediction, R the covariance of
    its target given the scores (1 in a regression, p(1 - p) for two classes, diag(p) - ppᵀ for
    more), n the rows of a batch and A the information on the weights, in units of the noise,

        A ← λⁿ A + (1 - λⁿ) I/v + Σ Jᵀ R J,    θ ← θ + A⁻¹ Σ Jᵀ (y - p),    A = I/v at first.

    In a regression this is recursive least squares. What is forgotten falls back to the prior: left
    to itself, A would vanish in directions in which nothing is seen, and the filter with it.

    Args:
        setup: The model.
        forgetting: λ, of one row; 1 never forgets. This and the prior were chosen on the streams
            that `descent` names.
        prior: v, the variance of each weight at the start.

    Reference:
        Åström and Wittenmark (1995), "Adaptive Control", chapters 2 and 11; Kulhavý and Zarrop
        (1993), "On a general concept of forgetting", for the fall back to the prior.
    """

    rate: float | None = None

    def __init__(self, setup: Setup, forgetting: float = 0.997, prior: float = 0.1) -> None:
        self.model = setup.linear
        if self.model.size > _LARGEST:
            raise ConfigError(
                f"the filter solves {self.model.size:,} equations a step: {_LARGEST:,} at most"
            )
        self.decay = forgetting**setup.batch
        self.theta = self.model.init()
        self.least = np.eye(self.model.size) / prior
        self.information = self.least

    def step(self, x: Floats, y: Labels) -> Floats:
        """Train on a batch and return its scores by the weights of before."""
        scores, _, gradients = self.model.parts(self.theta, x, y, parts=1)
        # Weights are (feature, output), and so are the two axes that they make of A.
        seen = np.einsum("ni,nj,nkl->ikjl", x, x, self._covariances(scores), optimize=True)
        self.information = self.decay * self.information + (1.0 - self.decay) * self.least
        self.information = self.information + seen.reshape(self.information.shape)
        self.theta = self.theta - np.linalg.solve(self.information, len(y) * gradients[0])
        return scores

    def forecast(self, x: Floats) -> Floats:
        """Return the scores of rows that are not learned from."""
        return self.model.scores(self.theta, x)

    def _covariances(self, scores: Floats) -> Floats:
        """Return R of every row, (rows, outputs, outputs)."""
        if self.model.task == "regression":
            return np.ones((len(scores), 1, 1))
        if self.model.task == "binary":
            p = np.clip(0.5 * (1.0 + np.tanh(0.5 * scores)), _LEAST, 1.0 - _LEAST)
            return (p * (1.0 - p))[:, None, None]
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        p = np.maximum(p / p.sum(axis=1, keepdims=True), _LEAST)
        p = p / p.sum(axis=1, keepdims=True)
        spread: Floats = p[:, :, None] * np.eye(p.shape[1]) - p[:, :, None] * p[:, None, :]
        return spread


_GRID = tuple(
    {"forgetting": forgetting, "prior": prior}
    for prior in (0.1, 1.0)
    for forgetting in (1.0, 0.9999, 0.999, 0.997, 0.99)
    if (forgetting, prior) != (0.997, 0.1)
)
CONTESTANTS = (
    Contestant(
        "kalman forgetting",
        "second order",
        ForgettingFilter,
        _GRID,
        first_order=False,
        models=LINEAR_MODELS,
    ),
)
