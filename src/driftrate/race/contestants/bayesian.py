"""River's Bayesian linear regression, row by row.

River is under the 3-clause BSD licence. Its model is of numbers alone: it has no likelihood of
classes, and squared loss on their codes would give no chances to score.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from driftrate.errors import ConfigError
from driftrate.race.contestants.base import Contestant, Setup, grid
from driftrate.race.models import Floats, Labels


class BayesianRegression:
    """All rows of a batch are predicted before the first of them is learned.

    Args:
        setup: The model.
        smoothing: The share of the past that is kept a row; nothing is forgotten if none.

    Reference:
        Bishop (2006), "Pattern Recognition and Machine Learning", section 3.3.
    """

    rate: float | None = None

    def __init__(self, setup: Setup, smoothing: float | None = None) -> None:
        from river.linear_model import BayesianLinearRegression

        if setup.linear.task != "regression":
            raise ConfigError(f"this method is of numbers alone, got {setup.model!r}")
        self.model: Any = BayesianLinearRegression(smoothing=smoothing)

    def step(self, x: Floats, y: Labels) -> Floats:
        """Train on a batch and return its scores by the weights of before."""
        rows = [dict(enumerate(row)) for row in x.tolist()]
        scores = np.array([self.model.predict_one(row) for row in rows])
        for row, label in zip(rows, y.tolist(), strict=True):
            self.model.learn_one(row, label)
        return scores


CONTESTANTS = (
    Contestant(
        "bayesian regression",
        "second order",
        BayesianRegression,
        grid("smoothing", [0.9, 0.99, 0.999, 0.9999]),
        first_order=False,
        packages=(("river", "river"),),
        models=("linear",),
        by_row=True,
    ),
)
