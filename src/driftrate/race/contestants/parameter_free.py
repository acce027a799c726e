"""Optimizers that promise to need no rate, each from its authors' package."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from driftrate.race.contestants.base import Contestant, Player, Setup, grid

if TYPE_CHECKING:
    import torch

_TORCH = ("torch", "torch")


def _schedule_free(setup: Setup, kind: str, options: dict[str, Any]) -> Player:
    import schedulefree
    import torch

    from driftrate.race.contestants._optimizer import OptimizerPlayer
    from driftrate.race.contestants._optimizer import lr as read

    maker = getattr(schedulefree, kind)

    class Averaged(OptimizerPlayer):
        """Trained where the package trains, scored at its evaluation weights."""

        def predict(self, features: torch.Tensor) -> torch.Tensor:
            self.optimizer.eval()  # type: ignore[attr-defined]
            with torch.no_grad():
                scores: torch.Tensor = self.net(features)
            self.optimizer.train()  # type: ignore[attr-defined]
            return scores

    return Averaged(setup, lambda p: maker(p, **options), rate=read)


def _sgd_schedule_free(setup: Setup, **options: Any) -> Player:
    return _schedule_free(setup, "SGDScheduleFree", options)


def _adamw_schedule_free(setup: Setup, **options: Any) -> Player:
    return _schedule_free(setup, "AdamWScheduleFree", options)


def _scaled(optimizer: torch.optim.Optimizer) -> float:
    """Return d · lr, the rate that the package steps by."""
    group = optimizer.param_groups[0]
    return float(group["d"] * group["lr"])


def _prodigy(setup: Setup, **options: Any) -> Player:
    from prodigyopt import Prodigy

    from driftrate.race.contestants._optimizer import OptimizerPlayer

    return OptimizerPlayer(setup, lambda p: Prodigy(p, **options), rate=_scaled)


def _dadapt_sgd(setup: Setup, **options: Any) -> Player:
    from dadaptation import DAdaptSGD

    from driftrate.race.contestants._optimizer import OptimizerPlayer

    return OptimizerPlayer(setup, lambda p: DAdaptSGD(p, **options), rate=_scaled)


def _dadapt_adam(setup: Setup, **options: Any) -> Player:
    from dadaptation import DAdaptAdam

    from driftrate.race.contestants._optimizer import OptimizerPlayer

    return OptimizerPlayer(setup, lambda p: DAdaptAdam(p, **options), rate=_scaled)


def _dog(setup: Setup, average: bool = False, **options: Any) -> Player:
    import torch
    from dog import DoG, PolynomialDecayAverager

    from driftrate.race.contestants._optimizer import OptimizerPlayer

    class Averaged(OptimizerPlayer):
        """Scored at the package's own average of the weights."""

        averager: Any = None

        def predict(self, features: torch.Tensor) -> torch.Tensor:
            if self.averager is None:
                self.averager = PolynomialDecayAverager(self.net)
            with torch.no_grad():
                scores: torch.Tensor = self.averager.averaged_model(features)
            return scores

        def trained(self) -> None:
            self.averager.step()

    player = Averaged if average else OptimizerPlayer
    return player(setup, lambda p: DoG(p, **options))


def _cocob(setup: Setup, **options: Any) -> Player:
    from parameterfree import COCOB

    from driftrate.race.contestants._optimizer import OptimizerPlayer

    return OptimizerPlayer(setup, lambda p: COCOB(p, **options))


def _trac(setup: Setup, **options: Any) -> Player:
    import torch
    from trac_optimizer import start_trac

    from driftrate.race.contestants._optimizer import OptimizerPlayer

    # It writes a line a step to a file that it must be given.
    maker = start_trac(os.devnull, torch.optim.Adam)
    return OptimizerPlayer(setup, lambda p: maker(p, **options))


_FREE = (_TORCH, ("schedulefree", "schedulefree"))
_DADAPT = (_TORCH, ("dadaptation", "dadaptation"))
CONTESTANTS = (
    Contestant(
        "schedule-free sgd",
        "schedule-free",
        _sgd_schedule_free,
        grid("lr", [0.01, 0.03, 0.1, 0.3, 3.0]),
        packages=_FREE,
    ),
    Contestant(
        "schedule-free adamw",
        "schedule-free",
        _adamw_schedule_free,
        grid("lr", [0.0003, 0.001, 0.01, 0.03, 0.1]),
        packages=_FREE,
    ),
    Contestant(
        "prodigy",
        "parameter-free",
        _prodigy,
        grid("d_coef", [0.3, 3.0, 10.0]),
        packages=(_TORCH, ("prodigyopt", "prodigyopt")),
    ),
    Contestant(
        "d-adapt sgd", "parameter-free", _dadapt_sgd, grid("lr", [0.3, 3.0]), packages=_DADAPT
    ),
    Contestant(
        "d-adapt adam", "parameter-free", _dadapt_adam, grid("lr", [0.3, 3.0]), packages=_DADAPT
    ),
    Contestant(
        "dog",
        "parameter-free",
        _dog,
        ({"reps_rel": 1e-4}, {"reps_rel": 1e-2}, {"average": True}),
        packages=(_TORCH, ("dog", "dog-optimizer")),
    ),
    Contestant(
        "cocob",
        "parameter-free",
        _cocob,
        grid("alpha", [10.0, 1000.0]),
        packages=(_TORCH, ("parameterfree", "parameterfree")),
    ),
    Contestant(
        "trac",
        "parameter-free",
        _trac,
        grid("lr", [0.003, 0.01, 0.03, 0.1]),
        packages=(_TORCH, ("trac_optimizer", "trac-optimizer")),
    ),
)
