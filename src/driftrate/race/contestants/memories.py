"""The pool of memories: HedgedFilter of this library."""

from __future__ import annotations

import numpy as np

from driftrate.learners.hedged_filter import HedgedFilter
from driftrate.race.contestants.base import LINEAR_MODELS, Contestant, Setup
from driftrate.race.models import Floats, Labels

_LEAST = 1e-300  # of a chance, so that its logarithm is finite


class FilterPlayer:
    """HedgedFilter on the batches of a linear model."""

    rate: float | None = None

    def __init__(self, setup: Setup) -> None:
        model = setup.linear
        self.task, self.rule = model.task, HedgedFilter()
        count = {"regression": None, "binary": 2, "classes": model.outputs}[model.task]
        self.state = self.rule.init(model.features, count)

    def step(self, x: Floats, y: Labels) -> Floats:
        """Train on a batch and return its scores by the weights of before."""
        found = self.rule.predict(self.state, x)
        self.state = self.rule.update(self.state, x, y)
        if self.task == "regression":
            return found
        scores: Floats = np.log(np.maximum(found, _LEAST))
        return scores[:, 1] - scores[:, 0] if self.task == "binary" else scores


CONTESTANTS = (
    Contestant(
        "HedgedFilter",
        "driftrate",
        FilterPlayer,
        first_order=False,
        ours=True,
        models=LINEAR_MODELS,
    ),
)
