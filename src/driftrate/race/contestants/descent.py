"""Plain SGD at a constant rate and on the schedules that people use."""

from __future__ import annotations

from typing import Any

from driftrate.race.contestants.base import Contestant, Player, Setup, grid

_TORCH = (("torch", "torch"),)
# Four a decade, from 1e-4 to 3.2, and the default: the best is what hindsight would pick.
_RATES = [float(f"{10 ** (k / 4):.3g}") for k in range(-16, 3) if k != -12]
# No package says where a schedule of plain SGD starts: the defaults below had the lowest mean log
# loss of a few on elec2, bike_hourly, keystroke and airquality_co.
_STARTS = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
# A stream has no epochs; the plateau scheduler looks at the mean loss of this many batches.
_EPOCH = 100


def _sgd(setup: Setup, lr: float = 1e-3) -> Player:
    import torch

    from driftrate.race.contestants._optimizer import OptimizerPlayer
    from driftrate.race.contestants._optimizer import lr as read

    return OptimizerPlayer(setup, lambda p: torch.optim.SGD(p, lr=lr), rate=read)


def _scheduled(setup: Setup, lr: float, scheduler: Any) -> Player:
    import torch

    from driftrate.race.contestants._optimizer import OptimizerPlayer
    from driftrate.race.contestants._optimizer import lr as read

    held: list[Any] = []

    def make(parameters: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(parameters, lr=lr)
        held.append(scheduler(optimizer))
        return optimizer

    return OptimizerPlayer(setup, make, after=lambda *_: held[0].step(), rate=read)


def _inverse_time(setup: Setup, lr: float = 0.3) -> Player:
    from torch.optim.lr_scheduler import LambdaLR

    return _scheduled(setup, lr, lambda o: LambdaLR(o, lambda t: 1.0 / (t + 1)))


def _inverse_sqrt(setup: Setup, lr: float = 0.3) -> Player:
    from torch.optim.lr_scheduler import LambdaLR

    return _scheduled(setup, lr, lambda o: LambdaLR(o, lambda t: (t + 1) ** -0.5))


def _cosine(setup: Setup, lr: float = 0.1, T_0: int = 100) -> Player:
    from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts

    return _scheduled(setup, lr, lambda o: CosineAnnealingWarmRestarts(o, T_0))


def _plateau(setup: Setup, lr: float = 0.03) -> Player:
    import torch

    from driftrate.race.contestants._optimizer import OptimizerPlayer
    from driftrate.race.contestants._optimizer import lr as read

    held: list[Any] = []
    losses: list[float] = []

    def make(parameters: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(parameters, lr=lr)
        held.append(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer))
        return optimizer

    def after(_: Any, loss: float) -> None:
        losses.append(loss)
        if len(losses) == _EPOCH:
            held[0].step(sum(losses) / _EPOCH)
            losses.clear()

    return OptimizerPlayer(setup, make, after=after, rate=read)


def _starts(default: float) -> tuple[dict[str, float], ...]:
    return grid("lr", [lr for lr in _STARTS if lr != default])


CONTESTANTS = (
    Contestant("sgd", "constant", _sgd, grid("lr", _RATES), packages=_TORCH),
    Contestant("sgd 1/t", "decay", _inverse_time, _starts(0.3), packages=_TORCH),
    Contestant("sgd 1/sqrt(t)", "decay", _inverse_sqrt, _starts(0.3), packages=_TORCH),
    Contestant(
        "sgd cosine restarts",
        "schedule",
        _cosine,
        (*_starts(0.1), *({"lr": lr, "T_0": 1000} for lr in _STARTS)),
        packages=_TORCH,
    ),
    Contestant("sgd plateau", "schedule", _plateau, _starts(0.03), packages=_TORCH),
)
