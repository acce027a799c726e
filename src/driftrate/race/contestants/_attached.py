"""A schedule attached to torch's SGD as a player: `driftrate.torch.attach`, and no more."""

from __future__ import annotations

import torch

from driftrate.race.contestants._module import loss
from driftrate.race.contestants._optimizer import OptimizerPlayer, lr
from driftrate.race.contestants.base import Setup
from driftrate.schedules import Schedule
from driftrate.torch import attach


class AttachedPlayer(OptimizerPlayer):
    """`attach(optimizer, schedule)` with all its defaults.

    Args:
        setup: The model and its seed.
        schedule: The schedule.
    """

    mode: str | None = None

    def __init__(self, setup: Setup, schedule: Schedule) -> None:
        super().__init__(setup, lambda parameters: torch.optim.SGD(parameters, lr=0.1))
        self.attached = attach(self.optimizer, schedule, mode=self.mode)  # type: ignore[arg-type]

    def trained(self) -> None:
        """Note the rate of the step just taken."""
        self.rate = lr(self.optimizer)


class PartsPlayer(AttachedPlayer):
    """`attach(optimizer, schedule, mode="parts")`: each batch in two halves."""

    mode = "parts"

    def backward(
        self, features: torch.Tensor, target: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores and mean loss, the gradients of the halves added up."""
        scores: list[torch.Tensor] = []

        def closure(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            scores.append(self.net(x))
            return loss(self.task, scores[-1], y)

        value = self.attached.backward(closure, features, target)
        return torch.cat(scores), value
