"""Adam and its kin, with torch's own defaults."""

from __future__ import annotations

from math import isfinite
from typing import Any

from driftrate.race.contestants.base import Contestant, Player, Setup, grid

_TORCH = (("torch", "torch"),)
_RATES = [1e-4, 3e-4, 3e-3, 1e-2, 3e-2, 1e-1]


def _torch_adam(setup: Setup, kind: str, options: dict[str, Any], after: Any = None) -> Player:
    import torch

    from driftrate.race.contestants._optimizer import OptimizerPlayer
    from driftrate.race.contestants._optimizer import lr as read

    maker = getattr(torch.optim, kind)
    return OptimizerPlayer(setup, lambda p: maker(p, **options), after=after, rate=read)


def _adam(setup: Setup, **options: Any) -> Player:
    return _torch_adam(setup, "Adam", options)


def _adamw(setup: Setup, **options: Any) -> Player:
    return _torch_adam(setup, "AdamW", options)


def _amsgrad(setup: Setup, **options: Any) -> Player:
    return _torch_adam(setup, "Adam", {**options, "amsgrad": True})


def _adam_adwin(setup: Setup, **options: Any) -> Player:
    from driftrate.estimate import detector

    alarm = detector("adwin")

    def after(optimizer: Any, loss: float) -> None:
        # The weights stay; the moments, and with them the bias correction, begin anew.
        if isfinite(loss) and alarm.update(loss):
            optimizer.state.clear()

    return _torch_adam(setup, "Adam", options, after)


CONTESTANTS = (
    Contestant("adam", "adaptive", _adam, grid("lr", _RATES), packages=_TORCH),
    Contestant("adamw", "adaptive", _adamw, grid("lr", _RATES), packages=_TORCH),
    Contestant("amsgrad", "adaptive", _amsgrad, grid("lr", _RATES), packages=_TORCH),
    Contestant(
        "adam adwin resets",
        "adaptive",
        _adam_adwin,
        grid("lr", _RATES),
        packages=(*_TORCH, ("river", "river")),
    ),
)
