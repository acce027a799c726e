"""Plain SGD at a constant rate and on the schedules that people use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driftrate.race.contestants._optimizer import OptimizerPlayer
from driftrate.race.contestants.base import TORCH, Contestant, Player, Setup, grid

if TYPE_CHECKING:
    import torch

# Four a decade, from 1e-4 to 3.2, and the default: the best is what hindsight would pick.
_RATES = [float(f"{10 ** (k / 4):.3g}") for k in range(-16, 3) if k != -12]
# No package says where a schedule of plain SGD starts: the defaults below had the lowest mean log
# loss of a few on elec2, bike_hourly, keystroke and airquality_co.
_STARTS = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
# A stream has no epochs; the plateau scheduler looks at the mean loss of this many batches.
_EPOCH = 100


class _SGD(OptimizerPlayer):
    maker = "torch.optim:SGD"

    def __init__(self, setup: Setup, lr: float = 1e-3) -> None:
        super().__init__(setup, lr=lr)


class _Scheduled(_SGD):
    """SGD with one of torch's schedulers, which moves on after each step."""

    def __init__(self, setup: Setup, lr: float, scheduler: str, **options: Any) -> None:
        from torch.optim import lr_scheduler

        super().__init__(setup, lr)
        self.scheduler = getattr(lr_scheduler, scheduler)(self.optimizer, **options)

    def trained(self, loss: torch.Tensor) -> None:
        self.scheduler.step()


class _Plateau(_Scheduled):
    def __init__(self, setup: Setup, lr: float = 0.03) -> None:
        super().__init__(setup, lr, "ReduceLROnPlateau")
        self.losses: list[float] = []

    def trained(self, loss: torch.Tensor) -> None:
        self.losses.append(float(loss))
        if len(self.losses) == _EPOCH:
            self.scheduler.step(sum(self.losses) / _EPOCH)
            self.losses.clear()


def _inverse_time(setup: Setup, lr: float = 0.3) -> Player:
    return _Scheduled(setup, lr, "LambdaLR", lr_lambda=lambda t: 1.0 / (t + 1))


def _inverse_sqrt(setup: Setup, lr: float = 0.3) -> Player:
    return _Scheduled(setup, lr, "LambdaLR", lr_lambda=lambda t: (t + 1) ** -0.5)


def _cosine(setup: Setup, lr: float = 0.1, T_0: int = 100) -> Player:
    return _Scheduled(setup, lr, "CosineAnnealingWarmRestarts", T_0=T_0)


def _starts(default: float) -> tuple[dict[str, float], ...]:
    return grid("lr", [lr for lr in _STARTS if lr != default])


_WARM = (*_starts(0.1), *({"lr": lr, "T_0": 1000} for lr in _STARTS))
CONTESTANTS = (
    Contestant("sgd", "constant", _SGD, grid("lr", _RATES), packages=(TORCH,)),
    Contestant("sgd 1/t", "decay", _inverse_time, _starts(0.3), packages=(TORCH,)),
    Contestant("sgd 1/sqrt(t)", "decay", _inverse_sqrt, _starts(0.3), packages=(TORCH,)),
    Contestant("sgd cosine restarts", "schedule", _cosine, _WARM, packages=(TORCH,)),
    Contestant("sgd plateau", "schedule", _Plateau, _starts(0.03), packages=(TORCH,)),
)
