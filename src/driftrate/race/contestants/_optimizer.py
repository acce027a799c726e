"""A torch optimizer as a player."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from driftrate.race.contestants.base import Setup
from driftrate.race.models import Floats, Labels

if TYPE_CHECKING:
    import torch


class OptimizerPlayer:
    """Forward, backward and the optimizer's own step; torch is imported when one is made."""

    # The class of the optimizer, as MODULE:CLASS.
    maker: str
    rate: float | None = None

    def __init__(self, setup: Setup, **options: Any) -> None:
        from driftrate.race.contestants._module import Net, loss, tensors

        self.loss = partial(loss, setup.model.task)
        self.tensors = partial(tensors, setup.model.task)
        self.net = Net(setup.model, setup.model.init(setup.seed))
        self.optimizer = self.make(self.net.parameters(), **options)

    def make(self, parameters: Any, **options: Any) -> Any:
        """Return the optimizer."""
        module, _, name = self.maker.partition(":")
        return getattr(import_module(module), name)(parameters, **options)

    def step(self, x: Floats, y: Labels) -> Floats:
        """Train on a batch and return its scores by the weights of before."""
        features, target = self.tensors(x, y)
        before = self.predict(features)
        self.optimizer.zero_grad()
        scores, value = self.backward(features, target)
        self.rate = self.read_rate()
        self.optimizer.step()
        self.trained(value.detach())
        return (scores.detach() if before is None else before).numpy().astype(np.float64)

    def backward(
        self, features: torch.Tensor, target: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores and mean loss, with the gradients in place."""
        scores = self.net(features)
        value = self.loss(scores, target)
        value.backward()  # type: ignore[no-untyped-call]
        return scores, value

    def predict(self, features: torch.Tensor) -> torch.Tensor | None:
        """Return scores by weights other than those that are trained; None if there are none."""
        return None

    def read_rate(self) -> float | None:
        """Return the rate of the next step, that of the first group; None if there is none."""
        return float(self.optimizer.param_groups[0]["lr"])

    def trained(self, loss: torch.Tensor) -> None:
        """Do what is to be done after a step on a batch of this loss: schedulers, alarms."""
