"""A torch optimizer as a player."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from driftrate.race.contestants.base import Setup
from driftrate.race.models import Floats, Labels, Model

if TYPE_CHECKING:
    import torch


class OptimizerPlayer:
    """Forward, backward and the optimizer's own step; torch is imported when one is made."""

    # The class of the optimizer, as MODULE:CLASS, and whether it is one of torch's with a fused
    # step. It moves networks of some size several times as fast; linear models stay as they were.
    maker: str
    fused = False
    rate: float | None = None

    def __init__(self, setup: Setup, **options: Any) -> None:
        from driftrate.race.contestants._module import module, tensors
        from driftrate.race.networks._losses import loss

        self.task = setup.model.task
        self.loss = partial(loss, self.task)
        self.tensors = partial(tensors, self.task)
        self.net = module(setup.model, setup.seed).to(setup.device)
        if self.fused and not isinstance(setup.model, Model):
            options["fused"] = True
        self.optimizer = self.make(self.net.parameters(), **options)

    def make(self, parameters: Any, **options: Any) -> Any:
        """Return the optimizer."""
        module, _, name = self.maker.partition(":")
        return getattr(import_module(module), name)(parameters, **options)

    def step(self, x: Floats, y: Labels) -> Floats:
        """Train on a batch and return its scores by the weights of before."""
        scores = self.learn(*self.tensors(x, y)).numpy().astype(np.float64)
        return scores if self.task == "classes" else scores[:, 0]

    def learn(self, features: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Train on a batch and return its scores, (rows, outputs), by the weights of before."""
        before = self.predict(features)
        self.optimizer.zero_grad()
        scores, value = self.backward(features, target)
        self.rate = self.read_rate()
        self.move(value.detach())
        self.trained(value.detach())
        return scores.detach() if before is None else before

    def scores(self, features: torch.Tensor) -> torch.Tensor:
        """Return the scores of rows that are not learned from."""
        import torch

        with torch.no_grad():
            before = self.predict(features)
            found: torch.Tensor = self.net(features) if before is None else before
            return found

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

    def move(self, loss: torch.Tensor) -> None:
        """Take the optimizer's step, on a batch of this loss."""
        self.optimizer.step()

    def trained(self, loss: torch.Tensor) -> None:
        """Do what is to be done after a step on a batch of this loss: schedulers, alarms."""
