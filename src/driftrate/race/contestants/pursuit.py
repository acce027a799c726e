"""What this library has for networks: Pursuit and Hedged, and rates that are attached to Adam."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driftrate.race.contestants import _chances
from driftrate.race.contestants._optimizer import OptimizerPlayer
from driftrate.race.contestants.base import NETWORKS, OTHER, TORCH, Contestant, Setup, grid
from driftrate.race.contestants.plasticity import Anchored, Renewed
from driftrate.schedules import MeasuredRate

if TYPE_CHECKING:
    import torch


class PursuitPlayer(OptimizerPlayer):
    """`driftrate.torch.Pursuit(model.parameters())`, and no more."""

    def make(self, parameters: Any, **options: Any) -> Any:
        """Return the optimizer."""
        import driftrate.torch

        door: Any = driftrate.torch
        return door.Pursuit(parameters, **options)

    def read_rate(self) -> None:
        """Return None: its `lr` is a multiplier, and each weight has a step of its own."""
        return


class _AnchoredPursuit(Anchored, PursuitPlayer):
    pass


class _RenewedPursuit(Renewed, PursuitPlayer):
    def forget(self, weight: torch.Tensor, index: tuple[Any, ...]) -> None:
        """Leave its state: what it knows of a weight's gradients holds for a renewed one."""


class _Attached(OptimizerPlayer):
    """`attach(optimizer, MeasuredRate())`, and no more."""

    def __init__(self, setup: Setup, lr: float = 1e-3) -> None:
        from driftrate.adapters.torch.attach import attach

        super().__init__(setup, lr=lr)
        self.attached = attach(self.optimizer, MeasuredRate())

    def trained(self, loss: torch.Tensor) -> None:
        """Read the rate, which was set in the step itself."""
        self.rate = self.read_rate()


class _AttachedSGD(_Attached):
    maker = "torch.optim:SGD"


class _AttachedAdam(_Attached):
    maker = "torch.optim:Adam"
    fused = True


class PoolPlayer:
    """`driftrate.torch.Hedged(model, loss=...)`, and no more."""

    rate: float | None = None

    def __init__(self, setup: Setup, **options: Any) -> None:
        import torch

        import driftrate.torch
        from driftrate.race.contestants._module import module

        self.task = setup.model.task
        losses = {"regression": "squared", "binary": "binary", "classes": "cross_entropy"}
        net = module(setup.model, setup.seed).to(setup.device)
        door: Any = driftrate.torch
        with torch.random.fork_rng():
            # The copies draw their own first weights, which must not be the network's again.
            torch.manual_seed(setup.seed + OTHER)
            self.pool = door.Hedged(net, loss=losses[self.task], **options)

    def learn(self, features: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Train on a batch and return its scores by the weights of before."""
        scores = self.scores(features)
        self.pool.learn(features, target)
        return scores

    def scores(self, features: torch.Tensor) -> torch.Tensor:
        """Return scores whose softmax is the mixture's chances; those themselves are numbers."""
        return _chances.scores(self.task, self.pool(features))


def _ours(name: str, build: Any, settings: Any = (), module: str = "") -> Contestant:
    needs = ((f"driftrate.adapters.torch.{module}", f"driftrate.torch with {name}"),)
    return Contestant(
        name,
        "driftrate",
        build,
        settings,
        ours=True,
        packages=(TORCH, *(needs if module else ())),
        models=NETWORKS,
    )


_STRENGTHS = grid("strength", [1e-5, 1e-4, 1e-2])
_BASES = grid("lr", [1e-4, 3e-3, 1e-2, 3e-2, 1e-1])
CONTESTANTS = (
    _ours("Pursuit", PursuitPlayer, grid("lr", [0.5, 2.0]), "pursuit"),
    _ours("Pursuit l2 start", _AnchoredPursuit, _STRENGTHS, "pursuit"),
    _ours("Pursuit continual backprop", _RenewedPursuit, (), "pursuit"),
    _ours("Hedged", PoolPlayer, (), "hedged"),
    _ours("MeasuredRate on sgd", _AttachedSGD, _BASES),
    _ours("MeasuredRate on adam", _AttachedAdam, _BASES),
)
