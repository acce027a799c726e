"""Adam and its kin, with torch's own defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driftrate.estimate import detector
from driftrate.race.contestants._optimizer import OptimizerPlayer
from driftrate.race.contestants.base import NETWORKS, TORCH, Contestant, Setup, grid

if TYPE_CHECKING:
    import torch


class _Adam(OptimizerPlayer):
    maker = "torch.optim:Adam"
    fused = True

    def __init__(
        self, setup: Setup, beta1: float = 0.9, beta2: float = 0.999, **options: Any
    ) -> None:
        super().__init__(setup, betas=(beta1, beta2), **options)


class _AdamW(_Adam):
    maker = "torch.optim:AdamW"


class _AdaGrad(OptimizerPlayer):
    maker = "torch.optim:Adagrad"
    fused = True


class Warmed(OptimizerPlayer):
    """An optimizer whose rate rises over the first steps, with gradients clipped by their norm."""

    def __init__(
        self, setup: Setup, warmup: int = 100, clip: float | None = 1.0, **options: Any
    ) -> None:
        from torch.optim.lr_scheduler import LambdaLR

        super().__init__(setup, **options)
        self.clip = clip
        self.schedulers = [
            LambdaLR(optimizer, lambda t: min(1.0, (t + 1) / warmup))
            for optimizer in self.optimizers()
        ]

    def optimizers(self) -> list[Any]:
        """Return every optimizer whose rate rises."""
        return [self.optimizer]

    def backward(
        self, features: torch.Tensor, target: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores and mean loss, with the clipped gradients in place."""
        from torch.nn.utils import clip_grad_norm_

        scores, value = super().backward(features, target)
        if self.clip is not None:
            clip_grad_norm_(self.net.parameters(), self.clip)
        return scores, value

    def trained(self, loss: torch.Tensor) -> None:
        """Let the rate rise."""
        for scheduler in self.schedulers:
            scheduler.step()


class _WarmedAdamW(Warmed, _AdamW):
    pass


class _AMSGrad(_Adam):
    def __init__(self, setup: Setup, **options: Any) -> None:
        super().__init__(setup, amsgrad=True, **options)


class _AdamAdwin(_Adam):
    def __init__(self, setup: Setup, **options: Any) -> None:
        super().__init__(setup, **options)
        self.alarm = detector("adwin")

    def trained(self, loss: torch.Tensor) -> None:
        # The weights stay; the moments, and with them the bias correction, begin anew.
        if loss.isfinite() and self.alarm.update(float(loss)):
            self.optimizer.state.clear()


_RATES = grid("lr", [1e-4, 3e-4, 3e-3, 1e-2, 3e-2, 1e-1])
# Torch's default, 0.01, is the middle one.
_SCALED = grid("lr", [1e-3, 3e-3, 3e-2, 1e-1, 3e-1])
_RIVER = ("river", "river")
CONTESTANTS = (
    Contestant("adam", "adaptive", _Adam, _RATES, packages=(TORCH,)),
    Contestant("adamw", "adaptive", _AdamW, _RATES, packages=(TORCH,)),
    Contestant("amsgrad", "adaptive", _AMSGrad, _RATES, packages=(TORCH,)),
    Contestant("adam adwin resets", "adaptive", _AdamAdwin, _RATES, packages=(TORCH, _RIVER)),
    Contestant(
        "adamw warmed", "adaptive", _WarmedAdamW, _RATES, packages=(TORCH,), models=NETWORKS
    ),
    Contestant("adagrad", "adaptive", _AdaGrad, _SCALED, packages=(TORCH,)),
)
