"""MeasuredRate as a user attaches it: one line in a torch loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from driftrate.race.contestants._optimizer import OptimizerPlayer
from driftrate.race.contestants.base import TORCH, Contestant, Setup, grid
from driftrate.schedules import MeasuredRate

if TYPE_CHECKING:
    import torch


class _Attached(OptimizerPlayer):
    """`attach(SGD(..., lr=0.1), MeasuredRate())`, and no more."""

    maker = "torch.optim:SGD"
    mode: Literal["parts"] | None = None

    def __init__(self, setup: Setup, **options: Any) -> None:
        from driftrate.adapters.torch.attach import attach

        super().__init__(setup, lr=0.1)
        self.attached = attach(self.optimizer, MeasuredRate(**options), mode=self.mode)

    def trained(self, loss: torch.Tensor) -> None:
        self.rate = self.read_rate()  # set in the step itself


class _Parts(_Attached):
    """The same with `mode="parts"`: each batch in two halves, whose gradients are added up."""

    mode = "parts"

    def backward(
        self, features: torch.Tensor, target: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        scores: list[torch.Tensor] = []

        def closure(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            scores.append(self.net(x))
            return self.loss(scores[-1], y)

        value = self.attached.backward(closure, features, target)
        return torch.cat(scores), value


_CAPS = grid("max_rate", [0.1, 0.3, 1.0, 3.0])
CONTESTANTS = (
    Contestant("MeasuredRate", "driftrate", _Attached, _CAPS, ours=True, packages=(TORCH,)),
    Contestant("MeasuredRate parts", "driftrate", _Parts, _CAPS, ours=True, packages=(TORCH,)),
)
