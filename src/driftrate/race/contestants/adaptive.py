"""Adam and its kin, with torch's own defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driftrate.estimate import detector
from driftrate.race.contestants._optimizer import OptimizerPlayer
from driftrate.race.contestants.base import TORCH, Contestant, Setup, grid

if TYPE_CHECKING:
    import torch


class _Adam(OptimizerPlayer):
    maker = "torch.optim:Adam"


class _AdamW(OptimizerPlayer):
    maker = "torch.optim:AdamW"


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
_RIVER = ("river", "river")
CONTESTANTS = (
    Contestant("adam", "adaptive", _Adam, _RATES, packages=(TORCH,)),
    Contestant("adamw", "adaptive", _AdamW, _RATES, packages=(TORCH,)),
    Contestant("amsgrad", "adaptive", _AMSGrad, _RATES, packages=(TORCH,)),
    Contestant("adam adwin resets", "adaptive", _AdamAdwin, _RATES, packages=(TORCH, _RIVER)),
)
