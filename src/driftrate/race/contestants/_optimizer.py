"""A torch optimizer as a player."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from driftrate.race.contestants._module import loss, module, tensors
from driftrate.race.contestants.base import Setup
from driftrate.race.models import Floats, Labels


class OptimizerPlayer:
    """Forward, backward and the optimizer's own step.

    Args:
        setup: The model and its seed.
        make: Makes the optimizer from the parameters.
        after: Called with the optimizer and the batch loss after each step: schedulers, alarms.
        rate: Reads the rate from the optimizer; None for a method that has none.
    """

    def __init__(
        self,
        setup: Setup,
        make: Callable[[Any], torch.optim.Optimizer],
        after: Callable[[torch.optim.Optimizer, float], None] | None = None,
        rate: Callable[[torch.optim.Optimizer], float] | None = None,
    ) -> None:
        self.task = setup.model.task
        self.net = module(setup.model, setup.model.init(setup.seed))
        self.optimizer = make(self.net.parameters())
        self._after, self._rate = after, rate
        self.rate: float | None = None

    def step(self, x: Floats, y: Labels) -> Floats:
        """Train on a batch and return its scores by the weights of before."""
        features, target = tensors(self.task, x, y)
        before = self.predict(features)
        self.optimizer.zero_grad()
        scores, value = self.backward(features, target)
        if self._rate is not None:
            self.rate = float(self._rate(self.optimizer))
        self.optimizer.step()
        self.trained()
        if self._after is not None:
            self._after(self.optimizer, float(value.detach()))
        scored = scores.detach() if before is None else before
        return scored.numpy().astype(np.float64)

    def backward(
        self, features: torch.Tensor, target: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores and mean loss, with the gradients in place."""
        scores = self.net(features)
        value = loss(self.task, scores, target)
        value.backward()  # type: ignore[no-untyped-call]
        return scores, value

    def predict(self, features: torch.Tensor) -> torch.Tensor | None:
        """Return scores by weights other than those that are trained; None if there are none."""
        return None

    def trained(self) -> None:
        """Do what is to be done with the new weights."""


def lr(optimizer: torch.optim.Optimizer) -> float:
    """Return the learning rate of the first group."""
    return float(optimizer.param_groups[0]["lr"])
