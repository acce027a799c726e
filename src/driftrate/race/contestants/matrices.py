"""Optimizers that step by matrices: Muon and SOAP, with warm-up and clipping."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driftrate.race.contestants.adaptive import Warmed
from driftrate.race.contestants.base import NETWORKS, TORCH, Contestant, Setup

if TYPE_CHECKING:
    import torch


class _Muon(Warmed):
    """torch's Muon on hidden matrices, AdamW on the rest, as Muon's author asks for.

    The first and the last matrix of a network, embeddings and vectors are the rest; where there are
    but these two matrices, the first one counts as hidden.
    """

    def make(self, parameters: Any, **options: Any) -> Any:
        """Return Muon, and keep AdamW beside it."""
        from torch.nn import Embedding, Linear
        from torch.optim import AdamW, Muon

        layers = [layer for layer in self.net.modules() if isinstance(layer, Linear | Embedding)]
        inner = layers[1:-1] or layers[:1]
        hidden = [layer.weight for layer in inner if isinstance(layer, Linear)]
        rest = [p for p in parameters if all(p is not matrix for matrix in hidden)]
        self.beside = AdamW(rest, lr=options.pop("other_lr"), betas=(0.9, 0.95))
        return Muon(hidden, **options)

    def __init__(
        self,
        setup: Setup,
        lr: float = 0.02,
        momentum: float = 0.95,
        other_lr: float = 1e-3,
        **options: Any,
    ) -> None:
        super().__init__(setup, lr=lr, momentum=momentum, other_lr=other_lr, **options)

    def optimizers(self) -> list[Any]:
        """Return both."""
        return [self.optimizer, self.beside]

    def move(self, loss: torch.Tensor) -> None:
        """Take both steps; `zero_grad` of Muon leaves the gradients of the rest."""
        self.optimizer.step()
        self.beside.step()
        self.beside.zero_grad()


class _SOAP(Warmed):
    maker = "pytorch_optimizer:SOAP"

    def __init__(
        self, setup: Setup, beta1: float = 0.95, beta2: float = 0.95, **options: Any
    ) -> None:
        super().__init__(setup, betas=(beta1, beta2), **options)


_MUONS = tuple(
    {"lr": lr, "momentum": momentum}
    for momentum in (0.8, 0.95)
    for lr in (2.5e-3, 5e-3, 1e-2, 2e-2, 4e-2)
)
_SOAPS = tuple(
    {"lr": lr, "beta1": beta1} for beta1 in (0.8, 0.95) for lr in (3e-4, 1e-3, 3e-3, 1e-2)
)
CONTESTANTS = (
    Contestant("muon", "matrices", _Muon, _MUONS, packages=(TORCH,), models=NETWORKS),
    Contestant(
        "soap",
        "matrices",
        _SOAP,
        _SOAPS,
        False,
        packages=(TORCH, ("pytorch_optimizer", "pytorch-optimizer")),
        models=NETWORKS,
    ),
)
