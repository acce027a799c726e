"""Optimizers that promise to need no rate, each from its authors' package."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

from driftrate.race.contestants import _chances
from driftrate.race.contestants._optimizer import OptimizerPlayer
from driftrate.race.contestants.base import NETWORKS, OTHER, TORCH, Contestant, Setup, grid

if TYPE_CHECKING:
    import torch


class _ScheduleFree(OptimizerPlayer):
    """Trained where the package trains, scored at its evaluation weights."""

    def predict(self, features: torch.Tensor) -> torch.Tensor:
        import torch

        self.optimizer.eval()
        with torch.no_grad():
            scores: torch.Tensor = self.net(features)
        self.optimizer.train()
        return scores


class _SGD(_ScheduleFree):
    maker = "schedulefree:SGDScheduleFree"


class _AdamW(_ScheduleFree):
    maker = "schedulefree:AdamWScheduleFree"


class _Scaled(OptimizerPlayer):
    """Steps by d · lr, with d an estimate of the distance."""

    def read_rate(self) -> float:
        group = self.optimizer.param_groups[0]
        return float(group["d"] * group["lr"])


class _Prodigy(_Scaled):
    maker = "prodigyopt:Prodigy"


class _DAdaptSGD(_Scaled):
    maker = "dadaptation:DAdaptSGD"


class _DAdaptAdam(_Scaled):
    maker = "dadaptation:DAdaptAdam"


class _WithoutRate(OptimizerPlayer):
    def read_rate(self) -> None:
        return None


class _DoG(_WithoutRate):
    """With `average`, scored at the package's own average of the weights."""

    maker = "dog:DoG"

    def __init__(self, setup: Setup, average: bool = False, **options: Any) -> None:
        from dog import PolynomialDecayAverager

        super().__init__(setup, **options)
        self.averager = PolynomialDecayAverager(self.net) if average else None

    def predict(self, features: torch.Tensor) -> torch.Tensor | None:
        import torch

        if self.averager is None:
            return None
        with torch.no_grad():
            scores: torch.Tensor = self.averager.averaged_model(features)
        return scores

    def trained(self, loss: torch.Tensor) -> None:
        if self.averager is not None:
            self.averager.step()


class _COCOB(_WithoutRate):
    maker = "parameterfree:COCOB"


class _Averaged:
    """As many COCOBs as `Hedged` has copies, with other first weights, averaged: an ensemble."""

    rate: float | None = None

    def __init__(self, setup: Setup, copies: int = 6) -> None:
        self.task = setup.model.task
        seeds = [setup.seed + OTHER * k for k in range(copies)]
        self.players = [_COCOB(setup._replace(seed=seed)) for seed in seeds]

    def learn(self, features: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Train on a batch and return its scores by the weights of before."""
        return self._mean([player.learn(features, target) for player in self.players])

    def scores(self, features: torch.Tensor) -> torch.Tensor:
        """Return the scores of rows that are not learned from."""
        return self._mean([player.scores(features) for player in self.players])

    def _mean(self, scores: list[torch.Tensor]) -> torch.Tensor:
        chances = [_chances.chances(self.task, each) for each in scores]
        return _chances.scores(self.task, sum(chances[1:], chances[0]) / len(chances))


class _TRAC(_WithoutRate):
    def make(self, parameters: Any, **options: Any) -> Any:
        from torch.optim import Adam
        from trac_optimizer import start_trac

        # It writes a line a step to a file that it must be given.
        return start_trac(os.devnull, Adam)(parameters, **options)


def _free(name: str, build: Any, settings: Any, package: str, module: str = "") -> Contestant:
    packages = (TORCH, (module or package, package))
    return Contestant(name, "parameter-free", build, settings, packages=packages)


_FREE = (TORCH, ("schedulefree", "schedulefree"))
_SGD_RATES = grid("lr", [0.01, 0.03, 0.1, 0.3, 3.0])
_ADAMW_RATES = grid("lr", [0.0003, 0.001, 0.01, 0.03, 0.1])
_DOG_GRID = (*grid("reps_rel", [1e-4, 1e-2]), {"average": True})
CONTESTANTS = (
    Contestant("schedule-free sgd", "schedule-free", _SGD, _SGD_RATES, packages=_FREE),
    Contestant("schedule-free adamw", "schedule-free", _AdamW, _ADAMW_RATES, packages=_FREE),
    _free("prodigy", _Prodigy, grid("d_coef", [0.3, 3.0, 10.0]), "prodigyopt"),
    _free("d-adapt sgd", _DAdaptSGD, grid("lr", [0.3, 3.0]), "dadaptation"),
    _free("d-adapt adam", _DAdaptAdam, grid("lr", [0.3, 3.0]), "dadaptation"),
    _free("dog", _DoG, _DOG_GRID, "dog-optimizer", "dog"),
    _free("cocob", _COCOB, grid("alpha", [10.0, 1000.0]), "parameterfree"),
    Contestant(
        "cocob averaged",
        "parameter-free",
        cast("Any", _Averaged),  # learns by batches of tensors, as the pool does
        (),
        packages=(TORCH, ("parameterfree", "parameterfree")),
        models=NETWORKS,
    ),
    _free("trac", _TRAC, grid("lr", [0.003, 0.01, 0.03, 0.1]), "trac-optimizer", "trac_optimizer"),
)
